"""What tiny models learn: static against dynamic masks, SOP against NSP, and the four sharing modes, each on the same rows.

Every run is a real `remask train` of one rank with the same batches, AdamW and number of steps; only the named setting differs. Each is
trained with several seeds, and the spread says which differences mean something. The tables stand next to the papers' figures.

    remask bench learning --json learning.json --html learning.html
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.benchmarks.learning_contests import CONTESTS, Contest, tables_of
from remask.benchmarks.prep import english_text
from remask.benchmarks.record import check_target, write_record
from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Source
from remask.data_prep.pack import PackConfig
from remask.launcher.cli import guard
from remask.launcher.errors import UserError
from remask.launcher.options import parse, refuse_target
from remask.launcher.train_tokenizer import train_on
from remask.launcher.training.telling import clock

if TYPE_CHECKING:
    from remask.data_prep.tokenizer import Kind

_LENGTH, _VOCABULARY, _BATCH_ROWS, _SAMPLE_MB = 128, 4096, 8, 4
_HELD_OUT_ROWS = 512
_LEAST_BETWEEN = 50
"""Steps between evaluations, which take as long as some 20 steps."""
_CLEAN = CleanConfig(validation_share=0.2)
_KINDS: "dict[str, Kind]" = {"bert": "wordpiece", "roberta": "bpe", "albert": "unigram"}


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """Train tiny models that differ in one setting, and compare what they learn."""

    data: Path = Path("../shared/data")
    """Folder with en.jsonl.gz; without it the documentation of the installed packages is harvested."""
    text_mb: int = 8
    """Text to learn from and to be held out, spread over the corpus; for the masks a quarter of it, which comes again many times."""
    steps: int = 3000
    """Of each run; some hundreds only show that the loss falls."""
    seeds: int = 2
    """Runs of each setting; their spread says which differences mean something."""
    jobs: int = 2
    """Runs at a time, one core each."""
    quick: bool = False
    """60 steps and one seed, which only show that the loss falls."""
    json: Path | None = None
    """Write the figures and curves here."""
    html: Path | None = None
    """Write the curves here as a page."""


def main(args: Sequence[str]) -> int:
    options = parse(LearningOptions, args, "bench learning")
    for name, least in (("steps", 10), ("text-mb", 1), ("seeds", 1), ("jobs", 1)):
        if (given := getattr(options, name.replace("-", "_"))) < least:
            raise UserError(f"remask bench learning: --{name} {given}: at least {least}")
    check_target("learning", options.json)
    if options.html:
        refuse_target("bench learning", "--html", options.html)
    if options.quick:
        options = replace(options, steps=min(options.steps, 60), seeds=1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        runs, by_length = _train_all(options, Path(folder), began)
    steps = f"{options.steps} steps of {_BATCH_ROWS} rows of up to {_LENGTH} tokens; seeds: {options.seeds}."
    tables = tables_of(runs, by_length, steps)
    print(*tables, sep="\n\n")
    if options.json:
        write_record(options.json, "learning", args, began, tables, {"steps": options.steps, "runs": runs, "by_length": by_length})
    if options.html:
        _write_page(options.html, runs)
    return 0


def _train_all(options: LearningOptions, folder: Path, began: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
    from remask.benchmarks.learning_answers import longer_first, right_answers

    corpus = english_text(options.data, folder)
    shards = {contest.family: _prepare(contest, corpus, options.text_mb, folder / contest.family) for contest in CONTESTS}
    jobs = [(contest, name, seed + 1) for seed in range(options.seeds) for contest in CONTESTS for name in contest.settings]
    ended = []

    def train(job: tuple[Contest, str, int]) -> dict[str, Any]:
        contest, name, seed = job
        run = _train(contest, name, seed, folder / f"{contest.family}-{name}-{seed}", shards[contest.family], options.steps)
        ended.append(job)
        told = f"{len(ended)} of {len(jobs)}: {contest.question}, {name}, seed {seed}: {run['loss']:.3f}"
        print(f"{told} after {clock(time.monotonic() - began)}", file=sys.stderr, flush=True)
        return run

    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(train, jobs))
    asked = [(contest, task) for contest in CONTESTS for task in contest.tasks]
    by_length: dict[str, float] = {
        task: right_answers(longer_first, shards[contest.family], _pack(contest), task)["share"] for contest, task in asked
    }
    return runs, by_length


def _prepare(contest: Contest, corpus: Path, text_mb: int, folder: Path) -> Path:
    from remask.data_prep.prep import PrepConfig, prepare
    from remask.data_prep.workers import local_workers

    folder.mkdir()
    text = _spread(corpus, int(contest.text_share * text_mb * 10**6), folder / "text.jsonl")
    sources = (Source(name="text", paths=(str(text),)),)
    vocabulary = train_on(sources, _CLEAN, _KINDS[contest.family], _VOCABULARY, lowercase=False, sample_mb=_SAMPLE_MB)
    (folder / "tokenizer.json").write_text(vocabulary.text, encoding="utf-8")
    settings = PrepConfig(sources=sources, tokenizer=folder / "tokenizer.json", pack=_pack(contest), clean=_CLEAN)
    with local_workers(2) as workers:
        outcome = prepare(settings, folder / "shards", workers, lambda *_: None)
    if outcome.manifest is None:
        raise RuntimeError(f"the shards failed: {outcome.failures}")
    if not outcome.manifest.validation:
        raise UserError(
            f"remask bench learning: {text.stat().st_size} bytes of text have no document to hold out; give more with --text-mb"
        )
    return folder / "shards"


def _spread(corpus: Path, most_bytes: int, file: Path) -> Path:
    """Documents from all over the corpus, so that all kinds of text are in it."""
    share, due = min(1.0, most_bytes / corpus.stat().st_size), 0.0
    with corpus.open("rb") as lines, file.open("wb") as out:
        for line in lines:
            due += share * len(line)
            if out.tell() + len(line) <= due + len(line) / 2:
                out.write(line)
    return file


def _pack(contest: Contest) -> PackConfig:
    return PackConfig(mode="full-sentences" if contest.family == "roberta" else "segment-pair", sequence_length=_LENGTH)


def _train(contest: Contest, name: str, seed: int, run: Path, shards: Path, steps: int) -> dict[str, Any]:
    from remask.benchmarks.learning_answers import answers_of, right_answers
    from remask.data_prep.manifest import read as read_manifest
    from remask.launcher.model_folder import read_model

    pack = _pack(contest)
    args = [
        "--preset", f"{contest.family}-tiny", "--data", str(shards), "--out", str(run), "--seed", str(seed),
        "--data.pack.mode", pack.mode, "--data.pack.sequence-length", str(_LENGTH), "--data.pack.short-probability", "0.0",
        "--data.batch-rows", str(_BATCH_ROWS), "--data.lanes", str(_BATCH_ROWS), "--model.vocab-size", str(_VOCABULARY),
        "--optimizer.name", "adamw", "--optimizer.lr", "1e-3",
        "--schedule.steps", str(steps), "--schedule.warmup-steps", str(steps // 10), "--schedule.short-fraction", "0",
        "--engine.cpu-threads", "1", "--engine.micro-batch-tokens", str(_BATCH_ROWS * _LENGTH),
        "--metrics.evaluate-every-steps", str(max(_LEAST_BETWEEN, steps // 10)), "--metrics.evaluate-rows", str(_HELD_OUT_ROWS),
        "--metrics.log-every-steps", str(max(1, steps // 100)), "--metrics.tensorboard", "false",
        "--checkpoint.save-every-steps", str(steps), *contest.settings[name],
    ]  # fmt: skip
    ended = subprocess.run([sys.executable, "-m", "remask.launcher.train", *args], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{contest.question}, {name}: {ended.stderr[-2000:]}")
    records = [json.loads(line) for line in (run / "metrics" / "rank-00000.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [(record["step"], record["validation/masked_tokens"]) for record in records if record["kind"] == "evaluation"]
    stored = read_model(run)
    return {
        "question": contest.question,
        "family": contest.family,
        "setting": name,
        "seed": seed,
        "parameters": stored.config.unique_parameters,
        "epochs": steps * _BATCH_ROWS / sum(shard.rows for shard in read_manifest(shards).train),
        "loss": curve[-1][1],
        "curve": curve,
        "training_curve": [(record["step"], record["losses"]) for record in records if record["kind"] == "training"],
        "right": {task: right_answers(answers_of(stored.build()), shards, pack, task) for task in contest.tasks},
    }


def _write_page(file: Path, runs: list[dict[str, Any]]) -> None:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    questions = [contest.question for contest in CONTESTS]
    figure = make_subplots(rows=1, cols=len(questions), subplot_titles=questions)
    for run in runs:
        steps, losses = zip(*run["curve"], strict=True)
        line = go.Scatter(x=steps, y=losses, name=f"{run['family']}, {run['setting']}, seed {run['seed']}")
        figure.add_trace(line, row=1, col=questions.index(run["question"]) + 1)
    figure.update_layout(title="Validation loss of masked tokens over steps")
    figure.write_html(file, include_plotlyjs=True)


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
