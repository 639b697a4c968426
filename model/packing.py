"""Rows of a micro-batch for an encoder without padding: their spans sorted by length, so that spans of one length lie side by side.

A span is what tokens attend to: a whole row, or where documents are kept apart, a document's part of a row.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Group:
    """Spans of one length: tokens `begin` to `begin + spans * length` of the sorted batch."""

    begin: int
    spans: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How the tokens of a micro-batch are laid out inside the encoder."""

    order: Tensor
    """(tokens,) int64: which token of the batch stands at each place inside."""
    places: Tensor
    """(tokens,) int64: where each token of the batch stands inside."""
    positions: Tensor
    """(tokens,) int64: place of each token inside in its own row, from 0."""
    first_tokens: Tensor
    """(rows,) int64: where the first token of each row of the batch stands inside."""
    span_offsets: Tensor
    """(spans + 1,) int32: where each span begins inside, and the end: cu_seqlens."""
    groups: tuple[Group, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest span."""
        return self.groups[-1].length if self.groups else 0

    def to(self, device: torch.device) -> "Packing":
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "groups"}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


def pack(offsets: Tensor, documents: Tensor | None = None) -> Packing:
    """The layout for rows that begin at `offsets[:-1]` and end at `offsets[1:]`, (rows + 1,) of any integer type.

    `documents`, in the same form, cuts the rows further: tokens then attend to their own document only.
    """
    offsets = offsets.cpu().to(torch.int64)
    edges = offsets if documents is None else torch.unique(torch.cat([offsets, documents.cpu().to(torch.int64)]))
    if offsets[0] != 0 or (offsets.diff() <= 0).any():
        raise ValueError(f"offsets: {offsets.tolist()[:8]}… was given, they must begin with 0 and rise: a row has at least one token")
    lengths = edges.diff()
    by_length = torch.argsort(lengths, stable=True)
    sorted_lengths = lengths[by_length]
    span_offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sorted_lengths.cumsum(0)])
    size = int(offsets[-1])
    order = torch.arange(size) + torch.repeat_interleave(edges[:-1][by_length] - span_offsets[:-1], sorted_lengths)
    places = torch.empty_like(order)
    places[order] = torch.arange(size)
    row_begins = torch.repeat_interleave(offsets[:-1], offsets.diff())
    groups = []
    begin = 0
    for length, spans in zip(*(values.tolist() for values in torch.unique_consecutive(sorted_lengths, return_counts=True)), strict=True):
        groups.append(Group(begin=begin, spans=spans, length=length))
        begin += spans * length
    return Packing(
        order=order,
        places=places,
        positions=order - row_begins[order],
        first_tokens=places[offsets[:-1]],
        span_offsets=span_offsets.to(torch.int32),
        groups=tuple(groups),
    )
