"""What the learning benchmark compares, next to what the papers found, and its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from remask.benchmarks.record import Table

if TYPE_CHECKING:
    from remask.data_prep.rows import SentenceTask

Run = Mapping[str, Any]
_STUDENT = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t by number of seeds, for 5% of false alarms on both sides."""


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
    tasks: "dict[SentenceTask, dict[str, str]]" = field(default_factory=dict)
    """Sentence tasks that every model answers, whatever it was trained on, with the paper's share of right answers for each setting."""


CONTESTS = (
    Contest(
        question="masks",
        family="roberta",
        settings={"static": ["--masking.refresh", "never"], "dynamic": ["--masking.refresh", "epoch"]},
        paper={"static": "78.3, 84.3, 92.5", "dynamic": "78.7, 84.0, 92.9"},
        source="Liu et al. 2019, table 1 (SQuAD 2.0 F1, MNLI-m, SST-2 of BERT-base)",
        text_share=0.25,  # so that every row comes many times: within the first epoch both are the same
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


def tables_of(runs: Sequence[Run], by_length: Mapping[str, float], steps: str) -> list[Table]:
    """`by_length` is what the rule "the longer part stands first" gets right of each sentence task; `steps` says how long the runs were."""
    return [_settings_table(runs, steps), _differences_table(runs), _answers_table(runs, by_length)]


def _settings_table(runs: Sequence[Run], steps: str) -> Table:
    sources = "; ".join(f"{contest.question}: {contest.source}" for contest in CONTESTS)
    figures = ("trained parameters", "epochs", "loss at first", "validation loss", "lowest to highest")
    return Table(
        title="What tiny models learn",
        columns=("question", "setting", *figures, "the paper's score"),
        rows=[_setting(contest, name, _of(runs, contest, name)) for contest in CONTESTS for name in contest.settings],
        note=f"{steps} The loss is that of the masked tokens of held-out rows (lower is better), the mean over the seeds; nsp and sop are "
        f"measured on their own rows, the others on the same. The papers' scores are of fine-tuned models (higher is better): {sources}.",
    )


def _differences_table(runs: Sequence[Run]) -> Table:
    compared = [(contest, name) for contest in CONTESTS if not contest.tasks for name in list(contest.settings)[1:]]
    return Table(
        title="Differences, seed by seed",
        columns=("question", "compared", "difference in loss", "lowest to highest", "here", "in the paper"),
        rows=[_difference(contest, name, runs) for contest, name in compared],
        note="Runs of one seed read the same rows in the same order; a difference is called one where Student's t says so at 5%. A model "
        "of a million parameters on a few MB of text shows whether the machinery learns and whether a setting is broken; it does not show "
        "which recipe is better at the papers' size.",
    )


def _answers_table(runs: Sequence[Run], by_length: Mapping[str, float]) -> Table:
    asked = {task: answers["asked"] for run in runs for task, answers in run["right"].items()}
    return Table(
        title="What a sentence task teaches: right answers about held-out rows",
        columns=("trained on", *(f"{task}, {who}" for task in by_length for who in ("here", "the paper"))),
        rows=[
            *(_answers(contest, name, _of(runs, contest, name)) for contest in CONTESTS if contest.tasks for name in contest.settings),
            ["nothing: the longer part first", *(cell for share in by_length.values() for cell in (f"{100 * share:.1f}%", ""))],
        ],
        note="The mean of the shares for both labels, so guessing gets 50%; over the seeds, lowest to highest. Rows, the same for all: "
        + ", ".join(f"{rows} of {task}" for task, rows in asked.items())
        + "; a point or two is chance. A row begins with the sentence that did not fit into the one before, often a long one, so lengths "
        "tell something about the order.",
    )


def _of(runs: Sequence[Run], contest: Contest, name: str) -> list[Run]:
    return [run for run in runs if (run["question"], run["setting"]) == (contest.question, name)]


def _setting(contest: Contest, name: str, runs: Sequence[Run]) -> list[str]:
    losses, first = [run["loss"] for run in runs], mean(run["curve"][0][1] for run in runs)
    seen = [f"{runs[0]['parameters']:,}", f"{runs[0]['epochs']:.1f}", f"{first:.3f}"]
    return [contest.question, name, *seen, f"{mean(losses):.3f}", f"{min(losses):.3f} to {max(losses):.3f}", contest.paper[name]]


def _difference(contest: Contest, name: str, runs: Sequence[Run]) -> list[str]:
    """From the contest's first setting."""
    first = next(iter(contest.settings))
    pairs = zip(_of(runs, contest, name), _of(runs, contest, first), strict=True)
    gaps = [own["loss"] - other["loss"] for own, other in pairs]
    paper = f"{contest.paper[name]} against {contest.paper[first]}"
    span = f"{min(gaps):+.3f} to {max(gaps):+.3f}"
    return [contest.question, f"{name} - {first}", f"{mean(gaps):+.3f}", span, verdict(gaps), paper]


def verdict(gaps: Sequence[float]) -> str:
    if len(gaps) < 2:
        return "one seed says nothing"
    if abs(mean(gaps)) <= _STUDENT.get(len(gaps), 2.2) * stdev(gaps) / sqrt(len(gaps)):
        return "no clear difference"
    return "lower" if mean(gaps) < 0 else "higher"


def _answers(contest: Contest, name: str, runs: Sequence[Run]) -> list[str]:
    cells = []
    for task, published in contest.tasks.items():
        shares = [100 * run["right"][task]["share"] for run in runs]
        cells += [f"{mean(shares):.1f}% ({min(shares):.1f} to {max(shares):.1f})", published[name]]
    return [name, *cells]
