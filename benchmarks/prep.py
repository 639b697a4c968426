"""The offline stage next to its peers, in MB of text per CPU-second of the whole process tree.

Every contestant gets the same documents from the same JSONL file and the same tokenizer. It first handles a fifth of them untimed, as a
worker of a long run would have; the rest is timed, from reading the file to its output on disk. Each repeat is a new process, contestants
take turns, and the figure is the median with the lowest and highest.

    remask bench prep --text corpus.jsonl --json prep.json

Peers: HF datasets.map, datatrove's tokenizer, webdataset with one sample a document, all with Hugging Face's tokenizers. Limit: the
tokenizer engine alone, on texts in memory. Ours writes every channel: ids, rows, splits, sentence ends, document ends, word starts.
"""

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from remask.launcher.cli import guard
from remask.launcher.errors import UserError
from remask.launcher.options import parse

WARM_UP_SHARE = 0.2

Kind = Literal["bpe", "wordpiece"]
Contestant = Callable[[Path, Path, Path], None]
"""(JSONL file, tokenizer.json, empty folder for the output)"""


@dataclass(frozen=True, kw_only=True)
class PrepBenchOptions:
    """Measure remask prep against its peers."""

    text: Path | None = None
    """A JSONL file with a text field; without it the documentation of the installed packages is harvested."""
    kinds: tuple[Kind, ...] = ("bpe", "wordpiece")
    """Tokenizers to compare with."""
    repeats: int = 3
    """Rounds; at least 3 for a spread."""
    json: Path | None = None
    """Write the figures here."""


def ours(text: Path, tokenizer: Path, out: Path) -> None:
    from remask.data_prep.corpus import Source
    from remask.data_prep.prep import PrepConfig, prepare
    from remask.data_prep.workers import Workers

    config = PrepConfig(sources=(Source(name="text", paths=(str(text),)),), tokenizer=tokenizer)
    outcome = prepare(config, out, Workers(lambda: ThreadPoolExecutor(1), 1), lambda *_: None)
    if outcome.manifest is None:
        raise RuntimeError(str(outcome.failures))


def raw(text: Path, tokenizer: Path, _: Path) -> None:
    documents = [document.encode() for document in _documents(text)]
    encode = _raw_engine(tokenizer.read_text(encoding="utf-8"))
    start = _cpu_seconds()
    for first in range(0, len(documents), 256):
        encode(documents[first : first + 256])
    global only_the_engine
    only_the_engine = _cpu_seconds() - start


only_the_engine = 0.0
"""CPU-seconds of `raw` without reading and parsing the file."""


def hf_datasets(text: Path, tokenizer: Path, out: Path) -> None:
    import datasets
    from transformers import PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    encode = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
    loaded = datasets.load_dataset("json", data_files=str(text), split="train", cache_dir=str(out / "cache"))

    def tokens(batch: dict[str, list[str]]) -> dict[str, Any]:
        return {"ids": encode(batch["text"], add_special_tokens=False)["input_ids"]}

    mapped = loaded.map(tokens, batched=True, remove_columns=["text"])
    mapped.save_to_disk(str(out / "tokens"))


def datatrove(text: Path, tokenizer: Path, out: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    steps = [
        JsonlReader(str(text.parent), glob_pattern=text.name, compression=None),
        DocumentTokenizer(str(out / "tokens"), tokenizer_name_or_path=str(tokenizer), eos_token=None, shuffle_documents=False),
    ]
    LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=str(out / "logs"), skip_completed=False).run()


def webdataset_per_document(text: Path, tokenizer: Path, out: Path) -> None:
    import numpy as np
    import webdataset
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(tokenizer))
    with webdataset.TarWriter(str(out / "tokens.tar")) as writer:
        for number, document in enumerate(_documents(text)):
            ids = encode.encode(document, add_special_tokens=False).ids
            writer.write({"__key__": f"{number:08d}", "ids.npy": np.array(ids, dtype=np.uint16)})


CONTESTANTS: dict[str, Contestant] = {
    "ours": ours,
    "raw": raw,
    "hf_datasets": hf_datasets,
    "datatrove": datatrove,
    "webdataset": webdataset_per_document,
}
PEERS = ("hf_datasets", "datatrove", "webdataset")


def _documents(text: Path) -> Iterator[str]:
    with text.open("rb") as lines:
        for line in lines:
            yield orjson.loads(line)["text"]


def _raw_engine(tokenizer_json: str) -> Callable[[list[bytes]], Any]:
    from remask.data_prep.engines import FAST

    return FAST[json.loads(tokenizer_json)["model"]["type"]][1](tokenizer_json)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def contest(name: str, folder: Path) -> dict[str, float]:
    """Run in a process of its own: warm up, then work on the rest. CPU-seconds of this process and its children, and peak memory."""
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    seconds = 0.0
    for part in ("warm", "rest"):
        with tempfile.TemporaryDirectory(dir=folder) as out:
            start = _cpu_seconds()
            CONTESTANTS[name](folder / f"{part}.jsonl", folder / "tokenizer.json", Path(out))
            seconds = _cpu_seconds() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"cpu_s": only_the_engine or seconds, "peak_rss_mb": peak}


def measure(options: PrepBenchOptions, kind: Kind) -> dict[str, Any]:
    """Figures of all contestants for one kind of tokenizer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        megabytes = _split(options.text or _harvested(folder), folder)
        _train(folder, kind)
        results: dict[str, list[dict[str, float]]] = {contestant: [] for contestant in CONTESTANTS}
        for _ in range(options.repeats):
            for contestant, runs in results.items():
                code = f"from remask.benchmarks.prep import *; print(json.dumps(contest({contestant!r}, Path({name!r}))))"
                command = [sys.executable, "-c", code]
                ended = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
                if ended.returncode:
                    raise RuntimeError(f"{contestant}: {ended.stderr[-2000:]}")
                runs.append(json.loads(ended.stdout.splitlines()[-1]))
    speeds = {contestant: sorted(megabytes / run["cpu_s"] for run in runs) for contestant, runs in results.items()}
    rows = {c: {"mb_per_cpu_s": statistics.median(s), "lowest": s[0], "highest": s[-1]} for c, s in speeds.items()}
    best = max(rows[peer]["mb_per_cpu_s"] for peer in PEERS)
    return {
        "ours": rows["ours"],
        "raw": rows["raw"],
        "peers": {peer: rows[peer] for peer in PEERS},
        "ratio_best_peer": rows["ours"]["mb_per_cpu_s"] / best,
        "ratio_raw": rows["ours"]["mb_per_cpu_s"] / rows["raw"]["mb_per_cpu_s"],
        "peak_rss_mb": max(run["peak_rss_mb"] for run in results["ours"]),
        "text_mb": megabytes,
    }


def _harvested(folder: Path) -> Path:
    from remask.data_prep.harvest import harvest

    harvest(folder / "harvest.jsonl", ("python", "numpy", "torch", "transformers"), os.cpu_count() or 1, lambda *_: None)
    return folder / "harvest.jsonl"


def _split(text: Path, folder: Path) -> float:
    """warm.jsonl and rest.jsonl with the text field alone; returns the MB of text in the second."""
    documents = list(_documents(text))
    cut = int(len(documents) * WARM_UP_SHARE)
    for name, part in (("warm", documents[:cut]), ("rest", documents[cut:])):
        with (folder / f"{name}.jsonl").open("wb") as out:
            for document in part:
                out.write(orjson.dumps({"text": document}, option=orjson.OPT_APPEND_NEWLINE))
    return sum(len(document.encode()) for document in documents[cut:]) / 1e6


def _train(folder: Path, kind: Kind) -> None:
    from remask.data_prep.tokenizer import train

    texts = (text for number, text in enumerate(_documents(folder / "rest.jsonl")) if number % 4 == 0)
    (folder / "tokenizer.json").write_text(train(texts, kind, 30000, lowercase=False).text, encoding="utf-8")


def main(args: Sequence[str]) -> int:
    options = parse(PrepBenchOptions, args, "bench prep")
    if options.repeats < 1:
        raise UserError(f"remask bench prep: --repeats: {options.repeats} was given, it must be at least 1")
    if options.json and not options.json.parent.is_dir():
        raise UserError(f"remask bench prep: --json: the folder of {options.json} does not exist")
    start = time.monotonic()
    found = {kind: measure(options, kind) for kind in options.kinds}
    for kind, figures in found.items():
        print(f"{kind}: MB of text per CPU-second, median of {options.repeats} (lowest to highest), {figures['text_mb']:.0f} MB of text")
        for name, row in {"ours": figures["ours"], **figures["peers"], "raw engine": figures["raw"]}.items():
            print(f"  {name:<12} {row['mb_per_cpu_s']:7.1f}  ({row['lowest']:.1f} to {row['highest']:.1f})")
        ratios = f"{figures['ratio_best_peer']:.1f} x the best peer, {figures['ratio_raw']:.2f} of the engine alone"
        print(f"  {ratios}, {figures['peak_rss_mb']:.0f} MB peak")
    if options.json:
        record = {"machine": platform.machine(), "cores": os.cpu_count(), "seconds": time.monotonic() - start, "kinds": found}
        options.json.write_text(json.dumps(record, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
