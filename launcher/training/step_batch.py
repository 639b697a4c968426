"""A rank's part of a global batch as the engine takes it: micro-batches by token budget, and what is counted in them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remask.data_prep.batch import Batch
from remask.model.config import EncoderConfig
from remask.model.flops import count_flops

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """One rank's share of a step."""

    batch: Batch
    pieces: "list[dict[str, Tensor]]"
    """Arguments of the model's forward."""
    empty: "dict[str, Tensor]"
    """A micro-batch without rows, for a rank that has fewer than the others: it computes zeros, and the collectives agree."""
    labelled: int
    """Rows that the sentence task counts."""
    flops: int
    """Of forward and backward pass, over real tokens."""
    digests: dict[int, str] | None


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What all ranks know of a step before they make it."""

    counts: dict[str, int]
    """Targets and labelled rows over all ranks, which the losses are divided by."""
    rows: int
    tokens: int
    pieces: int
    """Micro-batches of the rank that has most."""
    seconds: float
    signal: int
    save: bool


def cut(batch: Batch, most_tokens: int, model: EncoderConfig, *, pin: bool = False, digests: bool = False) -> StepBatch:
    """Runs in the loader's threads."""
    labels = _labels(batch)
    labelled = 0 if labels is None else int((labels >= 0).sum())
    edges = batch.offsets if batch.documents is None else batch.documents
    return StepBatch(
        batch=batch,
        pieces=[arguments_of(piece, pin) for piece in batch.micro_batches(most_tokens=most_tokens)],
        empty=arguments_of(batch.rows(0, 0), pin),
        labelled=labelled,
        flops=count_flops(model, (edges[1:] - edges[:-1]).astype("int64").tolist(), len(batch.targets), labelled).total,
        digests=batch.digests() if digests else None,
    )


def arguments_of(batch: Batch, pin: bool = False) -> "dict[str, Tensor]":
    """A batch by the names of the model's arguments."""
    tensors = batch.tensors(pin)
    names = {"inputs": "ids", "offsets": "offsets", "positions": "positions", "targets": "targets", "segments": "segments"}
    names |= {"swapped": "labels", "stranger": "labels", "documents": "documents"}
    return {argument: tensors[name] for name, argument in names.items() if name in tensors}


def _labels(batch: Batch):  # type: ignore[no-untyped-def]
    return batch.swapped if batch.swapped is not None else batch.stranger
