"""A batch as training takes it: unpadded rows with their targets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows end to end, masked. Everything in it is a function of the stream positions, whoever made it."""

    stream: NDArray[np.int64]
    """The rows' positions in the run's stream."""
    row_ids: NDArray[np.int64]
    """Numbers of the rows in their set; `sets` tells which one."""
    sets: NDArray[np.int64]
    epochs: NDArray[np.int64]
    inputs: NDArray[np.int32]
    offsets: NDArray[np.int32]
    """Where each row begins in the inputs, and the end: cu_seqlens."""
    segments: NDArray[np.uint8]
    positions: NDArray[np.int32]
    """Of the targets in the inputs."""
    targets: NDArray[np.int32]
    swapped: NDArray[np.int8] | None
    """With SOP: 1 where the parts of a row were swapped, 0 where not, -1 for a row with one part."""
    stranger: NDArray[np.int8] | None
    """With NSP: 1 where the second part is from another document, 0 where it follows, -1 where there is no second part or no stranger."""
    documents: NDArray[np.int32] | None
    """If documents are kept apart: where each document's part of a row begins in the inputs, and the end."""

    def __len__(self) -> int:
        return len(self.stream)

    @property
    def tokens(self) -> int:
        return len(self.inputs)

    @property
    def longest(self) -> int:
        return int(np.diff(self.offsets).max(initial=0))

    def rows(self, first: int, behind: int) -> "Batch":
        """Some of the rows, as a batch of their own."""
        begin, end = int(self.offsets[first]), int(self.offsets[behind])
        low, high = np.searchsorted(self.positions, [begin, end])
        return Batch(
            **self._by_row(slice(first, behind)),
            inputs=self.inputs[begin:end],
            offsets=self.offsets[first : behind + 1] - begin,
            segments=self.segments[begin:end],
            positions=self.positions[low:high] - begin,
            targets=self.targets[low:high],
            documents=None if self.documents is None else _between(self.documents, begin, end),
        )

    def _by_row(self, chosen: Any) -> dict[str, Any]:
        """What has one value a row, for the chosen rows."""
        columns = {name: getattr(self, name) for name in ("stream", "row_ids", "sets", "epochs", "swapped", "stranger")}
        return {name: None if values is None else values[chosen] for name, values in columns.items()}

    def arranged(self, order: NDArray[np.int64]) -> "Batch":
        """The same rows in another order."""
        lengths = np.diff(self.offsets)[order]
        offsets = np.zeros_like(self.offsets)
        np.cumsum(lengths, out=offsets[1:])
        tokens = np.repeat(self.offsets[:-1][order] - offsets[:-1], lengths) + np.arange(self.tokens)
        row_of = np.searchsorted(self.offsets, self.positions, side="right") - 1
        positions = offsets[np.argsort(order)[row_of]] + self.positions - self.offsets[row_of]
        rising = np.argsort(positions)
        begins = np.zeros(self.tokens, dtype=np.bool_)
        if self.documents is not None:
            begins[self.documents[:-1]] = True
        return Batch(
            **self._by_row(order),
            inputs=self.inputs[tokens],
            offsets=offsets,
            segments=self.segments[tokens],
            positions=positions[rising],
            targets=self.targets[rising],
            documents=None if self.documents is None else np.append(np.flatnonzero(begins[tokens]), self.tokens).astype(np.int32),
        )

    def micro_batches(self, *, most_rows: int | None = None, most_tokens: int | None = None) -> "Iterator[Batch]":
        """The batch in pieces of so many rows, or of as many rows as fit into a token budget; a row longer than that comes alone."""
        if (most_rows is None) == (most_tokens is None):
            raise ValueError("give either most_rows or most_tokens")
        if (most := most_rows if most_tokens is None else most_tokens) is not None and most < 1:
            raise ValueError(f"{most} was given, a piece must hold at least 1")
        first = 0
        while first < len(self):
            if most_rows is not None:
                behind = min(first + most_rows, len(self))
            else:
                behind = int(np.searchsorted(self.offsets, self.offsets[first] + most_tokens, side="right")) - 1
                behind = max(behind, first + 1)
            yield self.rows(first, behind)
            first = behind

    def padded(self, pad_id: int, length: int | None = None) -> dict[str, NDArray[Any]]:
        """The form that others take: one row a line, with an attention mask, and labels that are -100 where nothing is asked."""
        if length is not None and length < self.longest:
            raise ValueError(f"length: {length} was given, the longest row has {self.longest} tokens")
        shape = (len(self), length or self.longest)
        labels = np.full(self.tokens, -100, dtype=np.int64)
        labels[self.positions] = self.targets
        lengths = np.diff(self.offsets)
        is_token = np.arange(shape[1]) < lengths[:, None]
        columns = {"input_ids": (self.inputs, pad_id), "token_type_ids": (self.segments, 0), "labels": (labels, -100)}
        found: dict[str, NDArray[Any]] = {"attention_mask": is_token.astype(np.int64)}
        for name, (values, empty) in columns.items():
            found[name] = np.full(shape, empty, dtype=np.int64)
            found[name][is_token] = values
        return found

    def tensors(self, pin: bool = False) -> dict[str, Any]:
        """The arrays as torch tensors that share their memory, or in pinned memory for a fast copy to a GPU."""
        import torch

        names = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in names}
        return {name: tensor.pin_memory() for name, tensor in tensors.items()} if pin else tensors

    def digests(self) -> dict[int, str]:
        """Stream position -> hash of everything about the row there, for comparing who made it."""
        found = {}
        for row in range(len(self)):
            one = self.rows(row, row + 1)
            digest = xxhash.xxh3_64()
            for field in fields(one):
                values = getattr(one, field.name)
                digest.update(b"" if values is None else values.tobytes())
            found[int(self.stream[row])] = digest.hexdigest()
        return found


def _between(edges: NDArray[np.int32], begin: int, end: int) -> NDArray[np.int32]:
    """The edges from one to another, counted from the first."""
    inside: NDArray[np.int32] = edges[np.searchsorted(edges, begin) : np.searchsorted(edges, end, side="right")] - begin
    return inside


def join(batches: Sequence[Batch]) -> Batch:
    """One batch of several, one behind the other."""
    shifts = np.cumsum([0, *(batch.tokens for batch in batches)])
    moved = {
        "offsets": [batch.offsets[:-1] + shift for batch, shift in zip(batches, shifts, strict=False)] + [shifts[-1:]],
        "positions": [batch.positions + shift for batch, shift in zip(batches, shifts, strict=False)],
    }
    if batches[0].documents is not None:
        edges = [batch.documents[:-1] + shift for batch, shift in zip(batches, shifts, strict=False) if batch.documents is not None]
        moved["documents"] = [*edges, shifts[-1:]]
    joined: dict[str, Any] = {}
    for field in fields(Batch):
        values = moved.get(field.name) or [getattr(batch, field.name) for batch in batches]
        joined[field.name] = None if values[0] is None else np.concatenate(values).astype(getattr(batches[0], field.name).dtype)
    return Batch(**joined)
