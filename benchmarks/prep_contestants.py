"""Who takes part in the benchmark of the offline stage; each runs in a process of its own.

    python -m remask.benchmarks.prep_contestants NAME FOLDER TIMED

FOLDER holds tokenizer.json, phrases.txt, warm.jsonl and the timed file. The last line printed is JSON: CPU-seconds and peak memory.
"""

import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

_LEAST_SECONDS = 0.3

Contestant = Callable[[Path, Path, Path], float | None]
"""(JSONL file, tokenizer.json, empty folder for the output); CPU-seconds if not all that passed count."""


def ours(text: Path, tokenizer: Path, out: Path, chinese_words: bool = False) -> None:
    from remask.data_prep.corpus import Source
    from remask.data_prep.marks import MarkConfig
    from remask.data_prep.prep import PrepConfig, prepare
    from remask.data_prep.workers import Workers

    sources = (Source(name="text", paths=(str(text),)),)
    phrases = tuple((text.parent / "phrases.txt").read_text(encoding="utf-8").splitlines())
    config = PrepConfig(sources=sources, tokenizer=tokenizer, marks=MarkConfig(chinese_words=chinese_words, phrases=phrases))
    outcome = prepare(config, out, Workers(lambda: ThreadPoolExecutor(1), 1), lambda *_: None)
    if outcome.manifest is None:
        raise RuntimeError(str(outcome.failures))


def ours_chinese(text: Path, tokenizer: Path, out: Path) -> None:
    ours(text, tokenizer, out, chinese_words=True)


def raw(text: Path, tokenizer: Path, _: Path) -> float:
    """The engine alone, on texts in memory; as often as it takes, for the clock of CPU-seconds has ticks of 10 ms."""
    from remask.data_prep.engines import FAST, load_engine

    tokenizer_json = tokenizer.read_text(encoding="utf-8")
    documents = [document.encode() for document in documents_of(text)]
    encode = load_engine(FAST[json.loads(tokenizer_json)["model"]["type"]][0], tokenizer_json).encode
    start, passes = cpu_seconds(), 0
    while cpu_seconds() - start < _LEAST_SECONDS:
        for first in range(0, len(documents), 256):
            encode(documents[first : first + 256])
        passes += 1
    return (cpu_seconds() - start) / passes


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
        for number, document in enumerate(documents_of(text)):
            ids = encode.encode(document, add_special_tokens=False).ids
            writer.write({"__key__": f"{number:08d}", "ids.npy": np.array(ids, dtype=np.uint16)})


CONTESTANTS: dict[str, Contestant] = {
    "ours": ours,
    "ours_chinese": ours_chinese,
    "raw": raw,
    "hf_datasets": hf_datasets,
    "datatrove": datatrove,
    "webdataset": webdataset_per_document,
}


def documents_of(text: Path) -> Iterator[str]:
    with text.open("rb") as lines:
        for line in lines:
            yield orjson.loads(line)["text"]


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def contest(name: str, folder: Path, timed: str) -> dict[str, float]:
    """Warm up, then work on the timed file. CPU-seconds of this process and its children, and peak memory."""
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    seconds = 0.0
    for file in ("warm.jsonl", timed):
        with tempfile.TemporaryDirectory(dir=folder) as out:
            start = cpu_seconds()
            counted = CONTESTANTS[name](folder / file, folder / "tokenizer.json", Path(out))
            seconds = cpu_seconds() - start if counted is None else counted
    return {"cpu_s": seconds, "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


if __name__ == "__main__":
    print(json.dumps(contest(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))
