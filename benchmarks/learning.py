"""What tiny models learn: static against dynamic masks, SOP against NSP, and the four sharing modes, each pair on the same rows.

Every run is a real `remask train` of one rank on the same corpus, with the same seed, batches, AdamW and number of steps; only the named
setting differs. The table stands next to the direction that the papers report. A model of a million parameters on a few MB of text shows
whether the machinery learns and whether a setting is broken; it cannot show which recipe is better at the papers' size, and differences
below the spread of a few seeds (about 0.02 in the loss here) mean nothing.

    remask bench learning --steps 2000 --json learning.json --html learning.html
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

from remask.benchmarks.prep import english_text, first_documents
from remask.benchmarks.record import Table, check_target, write_record
from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Source
from remask.launcher.cli import guard
from remask.launcher.errors import UserError
from remask.launcher.options import parse
from remask.launcher.train_tokenizer import train_on

if TYPE_CHECKING:
    from remask.data_prep.pack import PackConfig
    from remask.data_prep.tokenizer import Kind

_LENGTH, _VOCABULARY, _BATCH_ROWS, _SAMPLE_MB = 64, 4096, 32, 4
_LEAST_BETWEEN = 50
"""Steps between evaluations, which take as long as some 30 steps."""
_KINDS: "dict[str, Kind]" = {"bert": "wordpiece", "roberta": "bpe", "albert": "unigram"}


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """Train tiny models that differ in one setting, and compare what they learn."""

    data: Path = Path("../shared/data")
    """Folder with en.jsonl.gz; without it the documentation of the installed packages is harvested."""
    text_mb: int = 4
    """Text to learn from, the first of it; few enough that the masks come again: 2000 steps are some epochs of 4 MB."""
    steps: int = 2000
    """Of each run; some hundreds only show that the loss falls."""
    jobs: int = 2
    """Runs at a time, one core each."""
    quick: bool = False
    """60 steps, which only show that the loss falls."""
    json: Path | None = None
    """Write the figures and curves here."""
    html: Path | None = None
    """Write the curves here as a page."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Runs of one family that differ in one setting."""

    question: str
    family: str
    settings: dict[str, list[str]]
    direction: str
    """What the paper found, at its size."""


CONTESTS = (
    Contest(
        question="masks",
        family="roberta",
        settings={"static": ["--masking.refresh", "never"], "dynamic": ["--masking.refresh", "epoch"]},
        direction="Liu et al. 2019, table 1: dynamic about equal or slightly better",
    ),
    Contest(
        question="sentence task",
        family="bert",
        settings={"nsp": ["--data.sentence-task", "nsp"], "sop": ["--data.sentence-task", "sop"]},
        direction="Lan et al. 2019, table 5: NSP is solved by topic and teaches no order (52% on SOP); SOP is the harder task",
    ),
    Contest(
        question="sharing",
        family="albert",
        settings={name: ["--model.sharing", name] for name in ("none", "attention", "ffn", "all")},
        direction="Lan et al. 2019, table 4: not shared best, attention shared close to it, FFN shared and all shared behind",
    ),
)


def main(args: Sequence[str]) -> int:
    options = parse(LearningOptions, args, "bench learning")
    if options.steps < 10 or options.jobs < 1:
        raise UserError(f"remask bench learning: --steps {options.steps} --jobs {options.jobs}: at least 10 steps and 1 job")
    check_target("learning", options.json)
    if options.quick:
        options = replace(options, steps=min(options.steps, 60))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        runs = _train_all(options, Path(folder))
    table = Table(
        title="What tiny models learn",
        columns=("question", "setting", "trained parameters", "loss at first", "validation loss", "sentence loss"),
        rows=[_row(run) for run in runs],
        note=f"{options.steps} steps of {_BATCH_ROWS} rows of {_LENGTH} tokens. Differences below about 0.02 mean nothing, and so does any "
        "difference after some hundreds of steps: those only show that the loss falls, and within the first epoch static and dynamic masks "
        "are the same. What the papers found, at their size: "
        + "; ".join(f"{contest.question}: {contest.direction}" for contest in CONTESTS),
    )
    print(table)
    if options.json:
        write_record(options.json, "learning", args, began, [table], {"steps": options.steps, "runs": runs})
    if options.html:
        _write_page(options.html, runs)
    return 0


def _row(run: dict[str, Any]) -> list[str]:
    losses = [run["curve"][0][1], *(run["losses"].get(name) for name in ("masked_tokens", "sentence"))]
    return [run["question"], run["setting"], f"{run['parameters']:,}", *map(_shown, losses)]


def _train_all(options: LearningOptions, folder: Path) -> list[dict[str, Any]]:
    corpus = first_documents(english_text(options.data, folder), options.text_mb * 10**6, folder / "first.jsonl")
    shards = {contest.family: _prepare(contest.family, corpus, folder / contest.family) for contest in CONTESTS}
    jobs = [(contest, name) for contest in CONTESTS for name in contest.settings]

    def train(job: tuple[Contest, str]) -> dict[str, Any]:
        contest, name = job
        return _train(contest, name, folder / f"{contest.question}-{name}", shards[contest.family], options.steps)

    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(train, jobs))


def _prepare(family: str, corpus: Path, folder: Path) -> Path:
    from remask.data_prep.prep import PrepConfig, prepare
    from remask.data_prep.workers import local_workers

    folder.mkdir()
    sources = (Source(name="text", paths=(str(corpus),)),)
    vocabulary = train_on(sources, CleanConfig(), _KINDS[family], _VOCABULARY, lowercase=False, sample_mb=_SAMPLE_MB)
    (folder / "tokenizer.json").write_text(vocabulary.text, encoding="utf-8")
    settings = PrepConfig(sources=sources, tokenizer=folder / "tokenizer.json", pack=_pack(family))
    with local_workers(2) as workers:
        outcome = prepare(settings, folder / "shards", workers, lambda *_: None)
    if outcome.manifest is None:
        raise RuntimeError(f"the shards failed: {outcome.failures}")
    return folder / "shards"


def _pack(family: str) -> "PackConfig":
    from remask.data_prep.pack import PackConfig

    return PackConfig(mode="full-sentences" if family == "roberta" else "segment-pair", sequence_length=_LENGTH)


def _train(contest: Contest, name: str, run: Path, shards: Path, steps: int) -> dict[str, Any]:
    pack = _pack(contest.family)
    args = [
        "--preset", f"{contest.family}-tiny", "--data", str(shards), "--out", str(run),
        "--data.pack.mode", pack.mode, "--data.pack.sequence-length", str(_LENGTH), "--data.pack.short-probability", "0.0",
        "--data.batch-rows", str(_BATCH_ROWS), "--model.vocab-size", str(_VOCABULARY),
        "--optimizer.name", "adamw", "--optimizer.lr", "1e-3",
        "--schedule.steps", str(steps), "--schedule.warmup-steps", str(steps // 10), "--schedule.short-fraction", "0",
        "--engine.cpu-threads", "1", "--engine.micro-batch-tokens", str(_BATCH_ROWS * _LENGTH),
        "--metrics.evaluate-every-steps", str(max(_LEAST_BETWEEN, steps // 10)), "--metrics.evaluate-rows", str(min(1024, 4 * steps)),
        "--metrics.log-every-steps", str(max(1, steps // 100)), "--metrics.tensorboard", "false",
        "--checkpoint.save-every-steps", str(steps), *contest.settings[name],
    ]  # fmt: skip
    ended = subprocess.run([sys.executable, "-m", "remask.launcher.train", *args], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{contest.question}, {name}: {ended.stderr[-2000:]}")
    records = [json.loads(line) for line in (run / "metrics" / "rank-00000.jsonl").read_text(encoding="utf-8").splitlines()]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    about = json.loads((run / "checkpoints" / f"step-{steps:08d}" / "model.json").read_text(encoding="utf-8"))
    return {
        "question": contest.question,
        "family": contest.family,
        "setting": name,
        "parameters": _count(about["model"]),
        "losses": {part: evaluations[-1].get(f"validation/{part}") for part in ("masked_tokens", "sentence")},
        "curve": [(record["step"], record["validation/masked_tokens"]) for record in evaluations],
        "sentence_curve": [(record["step"], record.get("validation/sentence")) for record in evaluations],
        "training_curve": [(record["step"], record["losses"]) for record in records if record["kind"] == "training"],
    }


def _count(model: dict[str, Any]) -> int:
    from remask.launcher.decode import decode
    from remask.model.config import EncoderConfig

    return decode(EncoderConfig, model, lambda _: "model.json").unique_parameters


def _shown(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"


def _write_page(file: Path, runs: list[dict[str, Any]]) -> None:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    questions = [contest.question for contest in CONTESTS]
    figure = make_subplots(rows=1, cols=len(questions), subplot_titles=questions)
    for run in runs:
        steps, losses = zip(*run["curve"], strict=True)
        line = go.Scatter(x=steps, y=losses, name=f"{run['family']}, {run['setting']}")
        figure.add_trace(line, row=1, col=questions.index(run["question"]) + 1)
    figure.update_layout(title="Validation loss of masked tokens over steps")
    figure.write_html(file, include_plotlyjs=True)


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
