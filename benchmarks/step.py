"""The training step next to Hugging Face's model: forward, backward and AdamW in fp32 on this machine's CPU.

Both have the same config with the recipe's dropout, the same rows and targets and the same fused AdamW. They take turns step by step, so
that a busy machine slows them alike; a ratio is the median over the rounds, with the lowest and highest. Rows are full (512 tokens), or a
mixture of lengths as doc-sentences packs real documents. Fewer layers than the paper's keep it short; --layers 12 is the paper's.

    remask bench step --json step.json

`gemm_fraction` is our FLOP/s, counted without padding, over what torch.mm reaches at the layer's own shapes in the same run.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from remask.benchmarks.record import Table, check_target, write_record
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
    quick: bool = False
    """Width 256, one thread and 1024 tokens only, at most 2 rounds."""
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
    check_target("step", options.json)
    if options.quick:
        options = replace(options, hidden=(SMALL,), repeats=min(options.repeats, 2), tokens=min(options.tokens, 1024))
    began = time.monotonic()
    rows_of = {"full": [_LENGTH] * (options.tokens // _LENGTH), "mixture": mixture_lengths(options.data, options.tokens)}
    sweep = product(options.hidden, FAMILIES, rows_of.items(), THREADS[:1] if options.quick else THREADS)
    rows = []
    for hidden, family, (lengths, of_rows), threads in sweep:
        found = contest(config_of(family, hidden, options.layers), of_rows, threads, options.repeats)
        rows.append({"family": family, "hidden": hidden, "lengths": lengths, **found})
        print(f"{family}, width {hidden}, {lengths} rows, {threads} threads: {found['ratio']:.2f}x", file=sys.stderr, flush=True)
    table = _table(rows, options)
    print(table)
    if options.json:
        write_record(options.json, "step", args, began, [table], {"layers": options.layers, "rows": rows})
    return 0


def _table(rows: list[dict[str, Any]], options: StepBenchOptions) -> Table:
    return Table(
        title="Training step on CPU next to Hugging Face's model",
        columns=("family", "width", "rows", "threads", "tokens/s", "HF tokens/s", "ours is faster by", "gemm", "memory"),
        rows=[
            [
                row["family"], str(row["hidden"]), row["lengths"], str(row["threads"]), f"{row['tokens_per_s']:,.0f}",
                f"{row['hf_tokens_per_s']:,.0f}", f"{row['ratio']:.2f}x ({row['ratio_lowest']:.2f} to {row['ratio_highest']:.2f})",
                f"{row['gemm_fraction']:.2f}", f"{row['peak_rss_ratio']:.2f}",
            ]
            for row in rows
        ],
        note=f"{options.layers} layers, about {options.tokens} tokens, fp32, fused AdamW, the recipe's dropout; median of "
        f"{options.repeats} rounds in turn. gemm: our FLOP/s without padding over torch.mm's at the layer's shapes; memory: our peak over "
        "theirs. Fewer layers than the papers' give the head more weight, where scoring only the targets gains most.",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
