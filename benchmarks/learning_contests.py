"""What the learning benchmark compares, next to what the papers found, and its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from remask.benchmarks.record import Table

Run = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Runs of one family that differ in one setting."""

    question: str
    family: str
    settings: dict[str, list[str]]
    """Options by name; the first is what the others are compared with."""
    paper: dict[str, str]
    """The paper's figure for each setting, at its size."""
    source: str
    text_share: float = 1.0
    tasks: dict[str, dict[str, str]] = field(default_factory=dict)
    """Sentence tasks that every model answers, whatever it was trained on, with the paper's share of right answers for each setting."""


CONTESTS = (
    Contest(
        question="masks",
        family="roberta",
        settings={"static": ["--masking.refresh", "never"], "dynamic": ["--masking.refresh", "epoch"]},
        paper={"static": "78.3, 84.3, 92.5", "dynamic": "78.7, 84.0, 92.9"},
        source="Liu et al. 2019, table 1 (SQuAD 2.0 F1, MNLI-m, SST-2 of BERT-base)",
        text_share=0.125,  # so that every row comes many times: within the first epoch both are the same
    ),
    Contest(
        question="sentence task",
        family="bert",
        settings={name: ["--data.sentence-task", name] for name in ("nsp", "sop")},
        paper={"nsp": "79.2", "sop": "80.1"},
        source="Lan et al. 2019, table 5 (average of five tasks; right answers)",
        tasks={"nsp": {"nsp": "90.5%", "sop": "78.9%"}, "sop": {"nsp": "52.0%", "sop": "86.5%"}},
    ),
    Contest(
        question="sharing",
        family="albert",
        settings={name: ["--model.sharing", name] for name in ("none", "attention", "ffn", "all")},
        paper={"none": "81.6", "attention": "81.7", "ffn": "80.2", "all": "80.1"},
        source="Lan et al. 2019, table 4 (ALBERT-base with embeddings of 128, average of five tasks)",
    ),
)


def tables_of(runs: Sequence[Run], rows: str) -> list[Table]:
    """`rows` says how much each run has seen."""
    sources = "; ".join(f"{contest.question}: {contest.source}" for contest in CONTESTS)
    settings = Table(
        title="What tiny models learn",
        columns=("question", "setting", "trained parameters", "loss at first", "validation loss", "lowest to highest", "the paper's score"),
        rows=[_setting(contest, name, _of(runs, contest, name)) for contest in CONTESTS for name in contest.settings],
        note=f"{rows} The loss is that of the masked tokens of held-out rows (lower is better), the mean over the seeds; the papers' "
        f"scores are of fine-tuned models (higher is better): {sources}.",
    )
    differences = Table(
        title="Differences, seed by seed",
        columns=("question", "compared", "difference in loss", "lowest to highest", "here", "in the paper"),
        rows=[
            _difference(contest, name, first, runs)
            for contest in CONTESTS
            if not contest.tasks
            for first, *others in [list(contest.settings)]
            for name in others
        ],
        note="Runs of one seed read the same rows in the same order. A model of a million parameters on a few MB of text shows whether the "
        "machinery learns and whether a setting is broken; it does not show which recipe is better at the papers' size.",
    )
    answers = Table(
        title="What a sentence task teaches: right answers on held-out rows",
        columns=("trained on", *(f"{task}, {who}" for task in ("nsp", "sop") for who in ("here", "the paper"))),
        rows=[_answers(contest, name, _of(runs, contest, name)) for contest in CONTESTS if contest.tasks for name in contest.settings],
        note="Guessing is right in half of the rows. Mean over the seeds (lowest to highest); the same rows and masks for both models.",
    )
    return [settings, differences, answers]


def _of(runs: Sequence[Run], contest: Contest, name: str) -> list[Run]:
    return [run for run in runs if (run["question"], run["setting"]) == (contest.question, name)]


def _setting(contest: Contest, name: str, runs: Sequence[Run]) -> list[str]:
    losses = [run["loss"] for run in runs]
    first = mean(run["curve"][0][1] for run in runs)
    shown = [f"{runs[0]['parameters']:,}", f"{first:.3f}", f"{mean(losses):.3f}", f"{min(losses):.3f} to {max(losses):.3f}"]
    return [contest.question, name, *shown, contest.paper[name]]


def _difference(contest: Contest, name: str, first: str, runs: Sequence[Run]) -> list[str]:
    pairs = zip(_of(runs, contest, name), _of(runs, contest, first), strict=True)
    gaps = [own["loss"] - other["loss"] for own, other in pairs]
    paper = f"{contest.paper[name]} against {contest.paper[first]}"
    span = f"{min(gaps):+.3f} to {max(gaps):+.3f}"
    return [contest.question, f"{name} - {first}", f"{mean(gaps):+.3f}", span, verdict(gaps), paper]


def verdict(gaps: Sequence[float]) -> str:
    if len(gaps) < 2:
        return "one seed says nothing"
    return "lower" if max(gaps) < 0 else "higher" if min(gaps) > 0 else "no clear difference"


def _answers(contest: Contest, name: str, runs: Sequence[Run]) -> list[str]:
    cells = []
    for task, published in contest.tasks.items():
        shares = [100 * run["right"][task] for run in runs]
        cells += [f"{mean(shares):.1f}% ({min(shares):.1f} to {max(shares):.1f})", published[name]]
    return [name, *cells]
