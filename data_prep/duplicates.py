"""Duplicates over the whole corpus, from keys of each document, in memory that does not grow with it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MAX_HASHES = 1 << 24

# What a mark means; 0 is no duplicate.
DUPLICATES = {1: "duplicate", 2: "near-duplicate"}


def mark_duplicates(keys: Sequence[NDArray[np.uint64]]) -> list[NDArray[np.uint8]]:
    """For each item, in order, which of its documents stood in the corpus before.

    An item has a row a document: its hash, then any number of keys of which one that came before makes it a near duplicate.
    """
    marks = [np.zeros(len(item), dtype=np.uint8) for item in keys]
    width = max((item.shape[1] for item in keys), default=0)
    for column in reversed(range(width)):  # the hash last: an exact duplicate is called that
        for mark, again in zip(marks, _stood_before([item[:, column] for item in keys]), strict=True):
            mark[again] = 1 if column == 0 else 2
    return marks


def _stood_before(keys: Sequence[NDArray[np.uint64]]) -> list[NDArray[np.bool_]]:
    """Whether each key occurred before, in as many passes as it takes to hold at most 16 million keys at once.

    Each pass takes the keys that fall into its range; the arrays may be mapped from files.
    """
    passes = max(1, -(-sum(map(len, keys)) // _MAX_HASHES))
    step = 2**64 // passes + 1
    before = [np.zeros(len(array), dtype=np.bool_) for array in keys]
    for number in range(passes):
        low, high = np.uint64(number * step), np.uint64(min((number + 1) * step, 2**64) - 1)
        inside = [np.flatnonzero((array >= low) & (array <= high)) for array in keys]
        together = np.concatenate([array[where] for array, where in zip(keys, inside, strict=True)])
        again = np.ones(len(together), dtype=np.bool_)
        again[np.unique(together, return_index=True)[1]] = False
        begin = 0
        for marks, where in zip(before, inside, strict=True):
            marks[where] = again[begin : begin + len(where)]
            begin += len(where)
    return before
