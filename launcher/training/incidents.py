"""A step that went wrong, written down with the rows that it was made of, in words."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.data_prep.batch import Batch
from remask.data_prep.files import written_whole
from remask.data_prep.tokenizer import Vocabulary
from remask.launcher.training.peers import Peers
from remask.launcher.training.records import json_number
from remask.launcher.training.state import RunState
from remask.launcher.training.step_batch import StepBatch, arguments_of

if TYPE_CHECKING:
    from remask.launcher.training.engine import Engine

_ROWS = 8
_LONGEST_PIECE = 64
"""Rows of a micro-batch that are looked at one by one."""


def find_guilty_rows(engine: "Engine", peers: Peers, batch: StepBatch, means: list[float], most_tokens: int) -> list[dict[str, Any]]:
    """The rows with the worst losses over all ranks, those that are not finite first; `means` are the losses of this rank's micro-batches.

    Only rows of each rank's worst micro-batch are looked at, one by one, with the weights as they are. Called by every rank.
    """
    pieces = list(batch.batch.micro_batches(most_tokens=most_tokens))
    worst = max(range(len(pieces)), key=lambda i: _badness(means[i]), default=None)
    rows = [] if worst is None else [pieces[worst].rows(i, i + 1) for i in range(min(len(pieces[worst]), _LONGEST_PIECE))]
    most = int(max(numbers[0] for numbers in peers.gather([len(rows)])))
    found = []
    with engine.evaluating():
        for number in range(most):
            row = rows[number] if number < len(rows) else None
            losses = engine.losses(batch.empty if row is None else arguments_of(row))
            if row is not None:
                found.append({"loss": sum(float(part.sum) / max(part.counted, 1) for part in losses.values()), **_describe(row)})
    everyone = [row for rows in peers.collect(sorted(found, key=lambda row: -_badness(row["loss"]))[:_ROWS]) for row in rows]
    return sorted(everyone, key=lambda row: -_badness(row["loss"]))[:_ROWS]


def _describe(row: Batch) -> dict[str, Any]:
    """A batch of one row in plain values."""
    targets = dict(zip(row.positions.tolist(), row.targets.tolist(), strict=True))
    places = {"position": row.stream, "row": row.row_ids, "set": row.sets, "epoch": row.epochs}
    return {**{name: int(values[0]) for name, values in places.items()}, "ids": row.inputs.tolist(), "targets": targets}


def write_incident(
    run: Path, why: str, policy: str, state: RunState, facts: dict[str, Any], rows: list[dict[str, Any]], vocabulary: Vocabulary
) -> Path:
    """On rank 0."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(vocabulary.text)
    told = []
    for row in rows:
        before = list(row["ids"])
        for place, target in row["targets"].items():
            before[place] = target
        texts = {name: tokenizer.decode(ids, skip_special_tokens=False) for name, ids in (("text", before), ("masked", row["ids"]))}
        told.append({"loss": json_number(row["loss"]), **{name: row[name] for name in ("position", "row", "set", "epoch")}, **texts})
    # After a rollback the same step may fail again, on other rows.
    file = run / "incidents" / f"step-{state.step:08d}-row-{state.position}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    facts = {name: json_number(fact) for name, fact in facts.items()}
    record = {"why": why, "policy": policy, "step": state.step, "position": state.position, **facts, "rows": told}
    with written_whole(file) as stream:
        stream.write((json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return file


def _badness(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
