"""Packing is cutting: the tokens of a work item lie in one stream, and a packing mode decides where rows begin and, for pairs, split.

Rows are stretches of the stream, so the channels (sentence ends, document ends, word starts) keep their coordinates and nothing is copied.
A row holds text alone; the loader adds the special tokens, for which `PackConfig.row_budget` leaves room.
"""

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.keys import mix, number
from remask.data_prep.pack import PackConfig, Packing

_PAIRS: dict[Packing, int] = {"segment-pair": 1, "sentence-pair": 2}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a stream: row r is tokens `offsets[r]` to `offsets[r + 1]`, and its second part begins `splits[r]` tokens into it."""

    offsets: NDArray[np.int64]
    splits: NDArray[np.uint32]
    """0 where a row has one part: in the modes without pairs, and where a row holds a single sentence."""


def cut(sentences: NDArray[np.int64], documents: NDArray[np.int64], config: PackConfig, first_row: int, last: bool) -> Rows:
    """Rows of a stream whose sentences and documents end at the given positions; every document's end is a sentence's end.

    Unless this is the `last` stretch, the open row at the end is left out: the caller brings its tokens again before what follows.
    `first_row` numbers the rows for their random lengths and splits.
    """
    longest = config.row_budget // 2 if config.mode == "sentence-pair" else config.row_budget
    pieces = _split_long(sentences, longest)
    across, pairs = config.mode == "full-sentences", _PAIRS.get(config.mode, 0)
    key = np.uint64(config.seed)
    offsets, splits = _cut_rows(pieces, documents, config.row_budget, across, pairs, config.short_probability, key, first_row, last)
    return Rows(offsets=offsets, splits=splits)


@numba.njit(cache=True)
def _split_long(sentences, longest):  # type: ignore[no-untyped-def]
    """The same ends, and more of them where a sentence is longer than a row: it is split, never dropped.

    Never with one token left over: it may be the separator, and no row should begin with that.
    """
    count = 0
    begin = 0
    for end in sentences:
        count += max(1, (end - begin + longest - 1) // longest)
        begin = end
    pieces = np.empty(count, dtype=np.int64)
    count = 0
    begin = 0
    for end in sentences:
        while end - begin > longest:
            begin += longest - (end - begin == longest + 1)
            pieces[count] = begin
            count += 1
        pieces[count] = begin = end
        count += 1
    return pieces


@numba.njit(cache=True)
def _cut_rows(pieces, documents, budget, across, pairs, short_probability, seed, first_row, last):  # type: ignore[no-untyped-def]
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    splits = np.zeros(len(pieces), dtype=np.uint32)
    rows = 0
    begin = 0  # the first piece of the open row
    document = 0
    for i in range(len(pieces)):
        length = pieces[i] - offsets[rows]
        before = length - (pieces[i] - pieces[i - 1] if i else length)
        if i > begin and (length > budget or before >= _target(budget, short_probability, seed, first_row + rows)):
            _close(pieces, begin, i, offsets, splits, rows, pairs, seed, first_row)
            rows += 1
            begin = i
        ends_document = document < len(documents) and documents[document] == pieces[i]
        document += ends_document
        if (ends_document and not across) or (pairs == 2 and i + 1 - begin == 2):
            _close(pieces, begin, i + 1, offsets, splits, rows, pairs, seed, first_row)
            rows += 1
            begin = i + 1
    if last and begin < len(pieces):
        _close(pieces, begin, len(pieces), offsets, splits, rows, pairs, seed, first_row)
        rows += 1
    return offsets[: rows + 1], splits[:rows]


@numba.njit(cache=True)
def _close(pieces, begin, end, offsets, splits, row, pairs, seed, first_row):  # type: ignore[no-untyped-def]
    """End the row that holds pieces `begin` to `end`."""
    offsets[row + 1] = pieces[end - 1]
    if pairs and end - begin > 1:
        second = begin + 1 + _hash(seed, first_row + row, 1) % np.uint64(end - begin - 1)
        splits[row] = pieces[second - 1] - offsets[row]


@numba.njit(cache=True)
def _target(budget, short_probability, seed, row):  # type: ignore[no-untyped-def]
    """The length at which a row stops taking sentences: the budget, or for some rows a random shorter one."""
    if np.float64(_hash(seed, row, 2) >> np.uint64(11)) >= short_probability * 2.0**53:
        return budget
    return np.int64(2) + np.int64(_hash(seed, row, 3) % np.uint64(budget - 1))


@numba.njit(cache=True)
def _hash(seed, row, purpose):  # type: ignore[no-untyped-def]
    """64 random bits that depend on nothing else."""
    return number(mix(np.uint64(seed)) + np.uint64(row), purpose)
