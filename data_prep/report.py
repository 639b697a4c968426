"""What came of a corpus, in figures and in words."""

import io
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from remask.data_prep.item import KEPT
from remask.data_prep.manifest import Manifest


def summarise(manifest: Manifest, out: Path) -> dict[str, Any]:
    """Counts, drops by reason with their first places, row lengths and decoded samples, as plain values."""
    records = [orjson.loads(file.read_bytes()) for file in sorted((out / ".prep").glob("item-*.json"))]
    lengths: Counter[int] = Counter()
    examples: dict[str, list[str]] = {}
    for record in records:
        lengths.update({int(length): rows for length, rows in record["lengths"]["train"].items()})
        for reason, places in record["examples"].items():
            examples[reason] = (examples.get(reason, []) + places)[:3]
    rows, tokens = sum(lengths.values()), sum(length * rows for length, rows in lengths.items())
    budget = manifest.config["pack"]["sequence_length"]
    return {
        "rows": {"train": rows, "validation": sum(shard.rows for shard in manifest.validation)},
        "tokens": {"train": tokens, "validation": sum(shard.tokens for shard in manifest.validation)},
        "shards": len(manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
        "fill": tokens / (rows * budget) if rows else 0.0,
        "row_lengths": {str(length): lengths[length] for length in sorted(lengths)},
        "sources": manifest.documents,
        "dropped": _dropped(manifest),
        "examples": examples,
        "samples": _samples(manifest, out),
    }


def as_text(summary: dict[str, Any]) -> str:
    """The summary for people."""
    rows, tokens = summary["rows"], summary["tokens"]
    lines = [
        f"rows: {rows['train']:,} to train, {rows['validation']:,} held out, {summary['fill']:.1%} filled",
        f"tokens: {tokens['train']:,} to train, {tokens['validation']:,} held out",
        f"shards: {summary['shards']}, {summary['bytes'] / 1e6:,.1f} MB",
    ]
    lines.extend(_histogram({int(length): count for length, count in summary["row_lengths"].items()}))
    for source, counts in summary["sources"].items():
        kept, text_bytes, source_tokens, *marked = (counts.get(name, 0) for name in KEPT)
        lines.append(f"source {source}: {kept:,} documents, {text_bytes / 1e6:,.1f} MB, {source_tokens:,} tokens")
        if "phrases" in counts:
            lines[-1] += f", {marked[0]:,} phrases and {marked[1]:,} entities marked"
    for reason, count in summary["dropped"].items():
        places = "; ".join(summary["examples"].get(reason, []))
        lines.append(f"dropped {reason}: {count:,}{f' (first: {places})' if places else ''}")
    lines.extend(f"sample: {sample!r}" for sample in summary["samples"])
    return "\n".join(lines)


def _histogram(lengths: dict[int, int]) -> list[str]:
    """Rows by their length in tokens, in at most eight equal steps, each with its share as a bar."""
    step = -(-max(lengths, default=0) // 8)
    rows = Counter[int]()
    for length, count in lengths.items():
        rows[(length - 1) // step] += count
    total = sum(rows.values())
    return [
        f"rows of {at * step + 1:>5} to {(at + 1) * step:>5} tokens: {rows[at]:>12,} {'#' * round(40 * rows[at] / total)}".rstrip()
        for at in sorted(rows)
    ]


def _dropped(manifest: Manifest) -> dict[str, int]:
    together: Counter[str] = Counter()
    for counts in manifest.documents.values():
        together.update({reason: count for reason, count in counts.items() if reason not in KEPT})
    return dict(sorted(together.items()))


def _samples(manifest: Manifest, out: Path) -> list[str]:
    """The first row of the first, middle and last shard, decoded."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    shards = manifest.train
    chosen = [shards[i] for i in sorted({0, len(shards) // 2, len(shards) - 1})] if shards else []
    samples = []
    for shard in chosen:
        with tarfile.open(out / shard.name) as tar:
            ids, rows = (np.load(io.BytesIO(tar.extractfile(f"000000.{name}.npy").read())) for name in ("ids", "rows"))  # type: ignore[union-attr]
        samples.append(tokenizer.decode(ids[: rows[1]].tolist(), skip_special_tokens=False)[:200])
    return samples
