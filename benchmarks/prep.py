"""The offline stage next to its peers, in MB of text per CPU-second of the whole process tree.

Every contestant gets the same documents from the same JSONL file and the same tokenizer. It first handles a fifth of the text untimed, as
a worker of a long run would have; the rest is timed, from reading the file to its output on disk. Each repeat is a new process,
contestants take turns, and the figure is the median with the lowest and highest.

    remask bench prep --json prep.json

Peers: HF datasets.map, datatrove's tokenizer, webdataset with one sample a document, and MosaicML's MDS where it is installed, all with
Hugging Face's tokenizers. Limit: the tokenizer engine alone, on texts in memory. Ours writes every channel: ids, rows, splits, sentence
ends, document ends, word starts, and phrases of a list of 500; the Chinese one also cuts words, which no peer does. Memory: the peak of
ours on a fifth, on the rest, and on ten times the rest. In the JSON file the figures of BPE stand at the top, those of the others under
`wordpiece` and `chinese`.
"""

import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import orjson

from remask.benchmarks.prep_contestants import documents_of
from remask.benchmarks.record import Table, check_target, write_record
from remask.launcher.cli import guard
from remask.launcher.errors import UserError
from remask.launcher.options import parse

WARM_UP_SHARE = 0.2
PEERS = {"hf_datasets": "datasets", "datatrove": "datatrove", "webdataset": "webdataset"}
"""With the package that each needs."""
_QUICK_MB = 5

Part = Literal["bpe", "wordpiece", "chinese"]


@dataclass(frozen=True, kw_only=True)
class PrepBenchOptions:
    """Measure remask prep against its peers."""

    data: Path = Path("../shared/data")
    """Folder with en.jsonl.gz and zh.jsonl.gz; else the documentation of the installed packages is harvested, and Chinese left out."""
    parts: tuple[Part, ...] = ("bpe", "wordpiece", "chinese")
    """What to compare: the two kinds of tokenizer on English, and WordPiece with word segmentation on Chinese."""
    repeats: int = 3
    """Rounds; at least 3 for a spread."""
    mds_python: Path | None = None
    """A Python with mosaicml-streaming and tokenizers, in an environment of its own; without it MDS is left out."""
    quick: bool = False
    """5 MB of text, 2 rounds, and no run on ten times the text; what a run costs at its start weighs more on so little."""
    json: Path | None = None
    """Write the figures here."""


def measure(part: Part, text: Path, options: PrepBenchOptions) -> dict[str, Any]:
    """Figures of all contestants for one kind of tokenizer."""
    ours = "ours_chinese" if part == "chinese" else "ours"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        megabytes = _split(text, folder)
        _train(folder, "bpe" if part == "bpe" else "wordpiece")
        _list_phrases(folder)
        peers = [*(peer for peer, package in PEERS.items() if find_spec(package)), *(["mds"] if options.mds_python else [])]
        results: dict[str, list[dict[str, float]]] = {contestant: [] for contestant in (ours, "raw", *peers)}
        for _ in range(options.repeats):
            for contestant, runs in results.items():
                runs.append(_contest(contestant, folder, "rest.jsonl", options.mds_python))
        memory = {"warm": _contest(ours, folder, "warm.jsonl")["peak_rss_mb"], "rest": max(run["peak_rss_mb"] for run in results[ours])}
        if part == "bpe" and not options.quick:
            _multiply(folder, 10)
            memory["tenfold"] = _contest(ours, folder, "tenfold.jsonl")["peak_rss_mb"]
    speeds = {contestant: sorted(megabytes / run["cpu_s"] for run in runs) for contestant, runs in results.items()}
    rows = {c: {"mb_per_cpu_s": statistics.median(s), "lowest": s[0], "highest": s[-1]} for c, s in speeds.items()}
    best = max(rows[peer]["mb_per_cpu_s"] for peer in peers)
    return {
        "ours": rows[ours],
        "raw": rows["raw"],
        "peers": {peer: rows[peer] for peer in peers},
        "not_installed": [peer for peer in PEERS if peer not in peers],
        "ratio_best_peer": rows[ours]["mb_per_cpu_s"] / best,
        "ratio_raw": rows[ours]["mb_per_cpu_s"] / rows["raw"]["mb_per_cpu_s"],
        "peak_rss_mb": max(memory.values()),
        "peak_rss_mb_by_text": memory,
        "text_mb": megabytes,
    }


def _contest(contestant: str, folder: Path, timed: str, mds_python: Path | None = None) -> dict[str, float]:
    script = [sys.executable, "-m", "remask.benchmarks.prep_contestants", contestant]
    if contestant == "mds":
        script = [str(mds_python), str(Path(__file__).with_name("mds_writer.py"))]
    ended = subprocess.run([*script, str(folder), timed], capture_output=True, text=True, timeout=1800, check=False)
    if ended.returncode:
        raise RuntimeError(f"{contestant}: {ended.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def _texts(options: PrepBenchOptions, folder: Path) -> dict[Part, Path]:
    """The text of each part that can be measured."""
    found: dict[Part, Path] = {"bpe": english_text(options.data, folder)}
    found["wordpiece"] = found["bpe"]
    if (chinese := options.data / "zh.jsonl.gz").exists():
        found["chinese"] = _unpacked(chinese, folder / "zh.jsonl")
    if options.quick:
        found = {part: first_documents(text, _QUICK_MB * 10**6, folder / f"first-{part}.jsonl") for part, text in found.items()}
    return {part: found[part] for part in options.parts if part in found}


def english_text(data: Path, folder: Path) -> Path:
    """A JSONL file of English, from the data folder or harvested."""
    if (packed := data / "en.jsonl.gz").exists():
        return _unpacked(packed, folder / "en.jsonl")
    from remask.data_prep.harvest import harvest

    harvest(folder / "harvest.jsonl", ("python", "numpy", "torch", "transformers"), os.cpu_count() or 1, lambda *_: None)
    return folder / "harvest.jsonl"


def first_documents(corpus: Path, most_bytes: int, file: Path) -> Path:
    """Those that stand in the first so many bytes of a JSONL file."""
    with corpus.open("rb") as lines, file.open("wb") as out:
        for line in lines:
            out.write(line)
            if out.tell() >= most_bytes:
                break
    return file


def _unpacked(packed: Path, file: Path) -> Path:
    with gzip.open(packed) as stream:
        file.write_bytes(stream.read())
    return file


def _split(text: Path, folder: Path) -> float:
    """warm.jsonl and rest.jsonl with the text field alone; returns the MB of text in the second."""
    documents = list(documents_of(text))
    total = sum(map(len, documents))
    done = rest_bytes = 0
    with (folder / "warm.jsonl").open("wb") as warm, (folder / "rest.jsonl").open("wb") as rest:
        for document in documents:
            is_warm = done < total * WARM_UP_SHARE
            done += len(document)
            rest_bytes += 0 if is_warm else len(document.encode())
            (warm if is_warm else rest).write(orjson.dumps({"text": document}, option=orjson.OPT_APPEND_NEWLINE))
    return rest_bytes / 1e6


def _list_phrases(folder: Path) -> None:
    """phrases.txt: the commonest pairs of words, in Chinese of ideographs."""
    pairs: Counter[str] = Counter()
    for document in documents_of(folder / "warm.jsonl"):
        pairs.update(re.findall(r"[A-Za-z]{3,} [A-Za-z]{3,}|[\u4e00-\u9fff]{2}", document))
    (folder / "phrases.txt").write_text("\n".join(pair for pair, _ in pairs.most_common(500)), encoding="utf-8")


def _multiply(folder: Path, times: int) -> None:
    """tenfold.jsonl: the rest again and again, with a word in front that makes each copy another document."""
    with (folder / "tenfold.jsonl").open("wb") as out:
        for copy in range(times):
            for document in documents_of(folder / "rest.jsonl"):
                out.write(orjson.dumps({"text": f"copy{copy} {document}"}, option=orjson.OPT_APPEND_NEWLINE))


def _train(folder: Path, kind: Literal["bpe", "wordpiece"]) -> None:
    from remask.data_prep.tokenizer import train

    def every_fourth() -> Iterator[str]:
        return (text for number, text in enumerate(documents_of(folder / "rest.jsonl")) if number % 4 == 0)

    (folder / "tokenizer.json").write_text(train(every_fourth(), kind, 30000, lowercase=False).text, encoding="utf-8")


def _table(part: Part, figures: dict[str, Any], repeats: int) -> Table:
    rows = {"ours": figures["ours"], **figures["peers"], "the engine alone": figures["raw"]}
    ours = figures["ours"]["mb_per_cpu_s"]
    cells = [
        [name, f"{row['mb_per_cpu_s']:.1f}", f"{row['lowest']:.1f} to {row['highest']:.1f}", f"{ours / row['mb_per_cpu_s']:.2f}x"]
        for name, row in rows.items()
    ]
    peaks = ", ".join(f"{peak:.0f} MB ({text})" for text, peak in figures["peak_rss_mb_by_text"].items())
    return Table(
        title=f"Offline stage, {part}",
        columns=("contestant", "MB per CPU-second", "lowest to highest", "ours is faster by"),
        rows=[*cells, *([name, "not installed", "", ""] for name in figures["not_installed"])],
        note=f"Median of {repeats} rounds over {figures['text_mb']:.0f} MB of text; on little text what a run costs at its start weighs on "
        f"ours. Our peak memory by text: {peaks}.",
    )


def main(args: Sequence[str]) -> int:
    options = parse(PrepBenchOptions, args, "bench prep")
    if options.repeats < 1:
        raise UserError(f"remask bench prep: --repeats: {options.repeats} was given, it must be at least 1")
    check_target("prep", options.json)
    if options.mds_python and not os.access(options.mds_python, os.X_OK):
        raise UserError(f"remask bench prep: --mds-python: {options.mds_python} is no program")
    if options.quick:
        options = replace(options, repeats=min(options.repeats, 2))
    began = time.monotonic()
    found: dict[Part, dict[str, Any]] = {}
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for part, text in _texts(options, Path(folder)).items():
            found[part] = measure(part, text, options)
            tables.append(_table(part, found[part], options.repeats))
            print(f"{tables[-1]}\n")
    if options.json:
        others: dict[str, Any] = {part: figures for part, figures in found.items() if part != "bpe"}
        write_record(options.json, "prep", args, began, tables, {**found.get("bpe", {}), **others})
    return 0


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
