"""The order of rows: computed from (seed, epoch, position), never stored and never replayed.

An epoch's N rows lie in a line: the blocks in a keyed permutation, and the rows permuted by a key inside windows of a few blocks. The line
is cut into L stretches, of which the first N mod L are one row longer than the others, and each lane takes one of them, by a key, too:
else the lanes of one batch would lie side by side in the line. Position p of an epoch is row p div L of lane p mod L, so every row comes
exactly once an epoch. The run's stream goes on over the epochs: stream position g is position g mod N of epoch g div N, and a batch may
hold the end of one epoch and the beginning of the next.

With W ranks, rank r takes the stream positions with g mod W = r. W divides L, so these lie in 1/W of the lanes, read front to back.
"""

from dataclasses import dataclass, field

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.keys import key_of, mix

_BLOCKS, _ROWS, _LANES = 1, 2, 3  # what a key is for


@dataclass(frozen=True, kw_only=True)
class Line:
    """An epoch's line, as far as it is not arithmetic: the blocks in their order, and where each window begins."""

    blocks: NDArray[np.int64]
    window_starts: NDArray[np.int64]
    """First row of each window in the line, and the end."""
    key: np.uint64
    lane_key: np.uint64


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of one set's rows."""

    block_rows: NDArray[np.int64]
    """Rows of each block of the set."""
    lanes: int
    window_blocks: int
    seed: int
    _lines: dict[int, Line] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rows(self) -> int:
        return int(self.block_rows.sum())

    def locate(self, stream: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For each stream position its epoch, and the block and the row in it that stand there."""
        epochs, positions = np.divmod(stream, self.rows)
        blocks, rows = np.empty_like(stream), np.empty_like(stream)
        for epoch in range(int(epochs.min()), int(epochs.max()) + 1) if len(epochs) else ():
            here = epochs == epoch
            line = self._line(epoch)
            places = _in_line(positions[here], self.rows, self.lanes, line.lane_key)
            blocks[here], rows[here] = _locate(places, line.blocks, line.window_starts, self.block_rows, self.window_blocks, line.key)
        return epochs, blocks, rows

    def _line(self, epoch: int) -> Line:
        """The epoch's line; the last two are kept, because batches run over the end of an epoch."""
        line = self._lines.get(epoch)
        if line is None:
            key = key_of(self.seed, epoch, _BLOCKS)
            blocks = _permuted(len(self.block_rows), key)
            ends = np.cumsum(self.block_rows[blocks])
            last_blocks = np.arange(self.window_blocks - 1, len(ends) + self.window_blocks - 1, self.window_blocks).clip(max=len(ends) - 1)
            starts = np.concatenate(([0], ends[last_blocks]))
            line = Line(blocks=blocks, window_starts=starts, key=key_of(self.seed, epoch, _ROWS), lane_key=key_of(self.seed, epoch, _LANES))
            for old in sorted(self._lines, key=lambda kept: abs(kept - epoch))[1:]:
                self._lines.pop(old, None)
            self._lines[epoch] = line
        return line


@numba.njit(cache=True, nogil=True)
def permute(i, size, key):  # type: ignore[no-untyped-def]
    """Where `i` goes in a keyed permutation of `size` places: a Feistel network of four rounds over the next power of four, walked until
    it stays inside."""
    half = 1
    while np.int64(1) << (2 * half) < size:
        half += 1
    mask = (np.uint64(1) << np.uint64(half)) - np.uint64(1)
    x = np.uint64(i)
    while True:
        left, right = x >> np.uint64(half), x & mask
        for _ in range(4):
            key = key + np.uint64(0x9E3779B97F4A7C15)
            left, right = right, left ^ (mix(right ^ key) & mask)
        key = key - np.uint64(4) * np.uint64(0x9E3779B97F4A7C15)
        x = (left << np.uint64(half)) | right
        if x < np.uint64(size):
            return np.int64(x)


@numba.njit(cache=True, nogil=True)
def _permuted(size, key):  # type: ignore[no-untyped-def]
    places = np.empty(size, dtype=np.int64)
    for i in range(size):
        places[i] = permute(i, size, key)
    return places


@numba.njit(cache=True, nogil=True)
def _locate(places, blocks, window_starts, block_rows, window_blocks, key):  # type: ignore[no-untyped-def]
    """(block, row in it) at each place of a line."""
    found = np.empty((2, len(places)), dtype=np.int64)
    for i in range(len(places)):
        window = np.searchsorted(window_starts, places[i], side="right") - 1
        start = window_starts[window]
        row = permute(places[i] - start, window_starts[window + 1] - start, mix(key + np.uint64(window)))
        at = window * window_blocks
        while row >= block_rows[blocks[at]]:
            row -= block_rows[blocks[at]]
            at += 1
        found[0, i], found[1, i] = blocks[at], row
    return found


@numba.njit(cache=True, nogil=True)
def _in_line(positions, rows, lanes, key):  # type: ignore[no-untyped-def]
    """The place in the line of each position of an epoch. The longer stretches and the others are permuted among themselves."""
    shortest, longer = rows // lanes, rows % lanes
    places = np.empty(len(positions), dtype=np.int64)
    for i in range(len(positions)):
        depth, lane = positions[i] // lanes, positions[i] % lanes
        if lane < longer:
            places[i] = permute(lane, longer, key) * (shortest + 1) + depth
        else:
            places[i] = longer * (shortest + 1) + permute(lane - longer, lanes - longer, key) * shortest + depth
    return places
