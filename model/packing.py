"""Rows of a micro-batch for an encoder without padding: sorted by length, so that rows of one length lie side by side."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows of one length: tokens `begin` to `begin + rows * length` of the sorted batch."""

    begin: int
    rows: int
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
    """(rows,) int64: where each row of the batch begins inside."""
    groups: tuple[Group, ...]


def pack(offsets: Tensor) -> Packing:
    """The layout for rows that begin at `offsets[:-1]` and end at `offsets[1:]`, (rows + 1,) of any integer type."""
    offsets = offsets.to(torch.int64)
    lengths = offsets.diff()
    by_length = torch.argsort(lengths, stable=True)
    sorted_lengths = lengths[by_length]
    ends = sorted_lengths.cumsum(0)
    begins = ends - sorted_lengths
    size = int(offsets[-1])
    positions = torch.arange(size) - torch.repeat_interleave(begins, sorted_lengths)
    order = torch.repeat_interleave(offsets[:-1][by_length], sorted_lengths) + positions
    places = torch.empty_like(order)
    places[order] = torch.arange(size)
    groups = []
    begin = 0
    for length, rows in zip(*(values.tolist() for values in torch.unique_consecutive(sorted_lengths, return_counts=True)), strict=True):
        groups.append(Group(begin=begin, rows=rows, length=length))
        begin += rows * length
    first = torch.empty_like(begins)
    first[by_length] = begins
    return Packing(order=order, places=places, positions=positions, first_tokens=first, groups=tuple(groups))
