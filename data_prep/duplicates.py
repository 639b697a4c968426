"""Exact duplicates over the whole corpus, from the hashes of its documents, in memory that does not grow with it."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_MAX_HASHES = 1 << 24


def mark_duplicates(hashes: Sequence[NDArray[np.uint64]]) -> Iterator[NDArray[np.bool_]]:
    """For each item, in order, which of its documents stood in the corpus before.

    The arrays may be mapped from files. They are looked at in as many passes as it takes to hold at most 16 million hashes at once,
    each pass taking the hashes that fall into its range.
    """
    total = sum(map(len, hashes))
    passes = max(1, -(-total // _MAX_HASHES))
    duplicate = [np.zeros(len(array), dtype=np.bool_) for array in hashes]
    step = 2**64 // passes + 1
    for number in range(passes):
        low, high = np.uint64(number * step), np.uint64(min((number + 1) * step, 2**64) - 1)
        inside = [np.flatnonzero((array >= low) & (array <= high)) for array in hashes]
        together = np.concatenate([array[where] for array, where in zip(hashes, inside, strict=True)]) if hashes else np.empty(0, np.uint64)
        again = np.ones(len(together), dtype=np.bool_)
        again[np.unique(together, return_index=True)[1]] = False
        begin = 0
        for marks, where in zip(duplicate, inside, strict=True):
            marks[where] = again[begin : begin + len(where)]
            begin += len(where)
    yield from duplicate
