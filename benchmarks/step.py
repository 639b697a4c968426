"""The training step next to Hugging Face's model: forward, backward and AdamW in fp32 on this machine's CPU.

Both have the same config with the recipe's dropout, the same rows and targets and the same fused AdamW. They take turns step by step, so
that a busy machine slows them alike; a ratio is the median over the rounds, with the lowest and highest. Rows are full (512 tokens), or a
mixture of lengths as doc-sentences packs real documents. Fewer layers than the paper's keep it short; --layers 12 is the paper's.

    remask bench step --json step.json

`gemm_fraction` is our FLOP/s, counted without padding, over what torch.mm reaches at the layer's own shapes in the same run.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from remask.launcher.cli import guard
from remask.launcher.config import load
from remask.launcher.errors import UserError
from remask.launcher.options import parse
from remask.model.config import EncoderConfig

FAMILIES = ("roberta", "bert", "albert")
BASE, SMALL = 768, 256
THREADS = (1, 2)
_LENGTH = 512


@dataclass(frozen=True, kw_only=True)
class StepBenchOptions:
    """Measure a training step against Hugging Face's model."""

    data: Path = Path("../shared/data")
    """Folder with en.jsonl.gz; without it the documentation of the installed packages is harvested."""
    repeats: int = 3
    """Rounds; at least 3 for a spread."""
    layers: int = 2
    """Of both models; more give the head less weight, which is where padding costs most."""
    tokens: int = 2048
    """Of a step, at least a row."""
    hidden: tuple[int, ...] = (BASE, SMALL)
    """Widths, multiples of 64."""
    json: Path | None = None
    """Write the figures here."""


def config_of(family: str, hidden: int, layers: int) -> EncoderConfig:
    """The family's base model at another width and depth."""
    base = load(f"{family}-base").model
    embedding = None if base.embedding is None else min(base.embedding, hidden)
    return replace(base, hidden=hidden, layers=layers, heads=hidden // 64, ffn=4 * hidden, embedding=embedding)


def mixture_lengths(data: Path, tokens: int) -> list[int]:
    """Lengths of random rows of real documents, packed as doc-sentences, until there are so many tokens."""
    from remask.benchmarks.prep import english_text
    from remask.benchmarks.prep_contestants import documents_of
    from remask.data_prep.blocks import Blocks
    from remask.data_prep.corpus import Source
    from remask.data_prep.pack import PackConfig
    from remask.data_prep.prep import PrepConfig, prepare
    from remask.data_prep.tokenizer import train
    from remask.data_prep.workers import local_workers

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some = [document for number, document in enumerate(documents_of(english_text(data, folder))) if number % 20 == 0]
        (folder / "some.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some), encoding="utf-8")
        (folder / "tokenizer.json").write_text(train(iter(some), "bpe", 30000, lowercase=False).text, encoding="utf-8")
        config = PrepConfig(
            sources=(Source(name="text", paths=(str(folder / "some.jsonl"),)),),
            tokenizer=folder / "tokenizer.json",
            pack=PackConfig(mode="doc-sentences", sequence_length=_LENGTH),
        )
        with local_workers(1) as workers:
            prepare(config, folder / "shards", workers, lambda *_: None)
        rows = np.concatenate([np.diff(arrays["rows"].astype(np.int64)) + 2 for arrays in Blocks(folder / "shards").read_all()])
    shuffled = np.random.default_rng(1).permutation(rows)
    lengths: list[int] = shuffled[: int(np.searchsorted(np.cumsum(shuffled), tokens)) + 1].tolist()
    return lengths


class Contestant:
    """A process that makes a step whenever it is told to."""

    def __init__(self, name: str, job: Path, threads: int) -> None:
        command = [sys.executable, "-m", "remask.benchmarks.step_contestants", name, str(job)]
        self.name, self.log = name, job.with_name(f"{name}.log")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)

    def ask(self, what: str) -> dict[str, float]:
        """`step` or `gemm`."""
        assert self.process.stdin and self.process.stdout  # noqa: S101 (both were asked for)
        with suppress(BrokenPipeError):  # then there is no answer either
            print(what, file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"{self.name} ended: {self.log.read_text()[-2000:]}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def contest(config: EncoderConfig, lengths: list[int], threads: int, repeats: int) -> dict[str, Any]:
    """One row of the table: both make a step in turn, the first one untimed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({"config": asdict(config), "lengths": lengths, "threads": threads}))
        ours, theirs = (stack.enter_context(Contestant(name, job, threads)) for name in ("ours", "theirs"))
        rounds = [(ours.ask("step"), ours.ask("gemm"), theirs.ask("step")) for _ in range(repeats + 1)][1:]
    tokens = sum(lengths)
    mine, gemms, other = ([turn[i] for turn in rounds] for i in range(3))
    ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in zip(mine, other, strict=True)]
    fractions = [own["flops"] / own["seconds"] / gemm["flops_per_s"] for own, gemm in zip(mine, gemms, strict=True)]
    return {
        "threads": threads,
        "rows": len(lengths),
        "tokens": tokens,
        "real_share": tokens / (len(lengths) * max(lengths)),
        "tokens_per_s": tokens / statistics.median(turn["seconds"] for turn in mine),
        "hf_tokens_per_s": tokens / statistics.median(turn["seconds"] for turn in other),
        "ratio": statistics.median(ratios),
        "ratio_lowest": min(ratios),
        "ratio_highest": max(ratios),
        "gemm_fraction": statistics.median(fractions),
        "peak_rss_ratio": mine[-1]["peak_bytes"] / other[-1]["peak_bytes"],
    }


def main(args: Sequence[str]) -> int:
    options = parse(StepBenchOptions, args, "bench step")
    for name, least in {"repeats": 1, "layers": 1, "tokens": _LENGTH}.items():
        if (value := getattr(options, name)) < least:
            raise UserError(f"remask bench step: --{name}: {value} was given, it must be at least {least}")
    if any(hidden < 64 or hidden % 64 for hidden in options.hidden) or not options.hidden:
        raise UserError(f"remask bench step: --hidden: {' '.join(map(str, options.hidden))} was given, widths must be multiples of 64")
    if options.json and not options.json.parent.is_dir():
        raise UserError(f"remask bench step: --json: the folder of {options.json} does not exist")
    start = time.monotonic()
    rows_of = {"full": [_LENGTH] * (options.tokens // _LENGTH), "mixture": mixture_lengths(options.data, options.tokens)}
    print(f"training step, {options.layers} layers, about {options.tokens} tokens, median of {options.repeats} (lowest to highest)")
    print("family   hidden lengths  threads  tokens/s  HF tokens/s  ratio                 gemm  memory")
    rows = []
    for hidden in options.hidden:
        for family in FAMILIES:
            for lengths, of_rows in rows_of.items():
                for threads in THREADS:
                    row = {"family": family, "hidden": hidden, "lengths": lengths}
                    row |= contest(config_of(family, hidden, options.layers), of_rows, threads, options.repeats)
                    rows.append(row)
                    print(_told(row), flush=True)
    if options.json:
        record = {"machine": platform.machine(), "cores": os.cpu_count(), "seconds": time.monotonic() - start, "layers": options.layers}
        options.json.write_text(json.dumps({**record, "rows": rows}, indent=2), encoding="utf-8")
    return 0


def _told(row: dict[str, Any]) -> str:
    return (
        "{family:<8} {hidden:>6} {lengths:<8} {threads:>7} {tokens_per_s:>9.0f} {hf_tokens_per_s:>12.0f}  "
        "{ratio:>5.2f}x ({ratio_lowest:.2f} to {ratio_highest:.2f}) {gemm_fraction:>6.2f} {peak_rss_ratio:>7.2f}"
    ).format(**row)


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
