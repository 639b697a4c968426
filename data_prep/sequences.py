"""Sequences of tokens in a hash table with open addressing, for code that is compiled."""

import numba
import numpy as np
from numpy.typing import NDArray


def make_slots(tokens: NDArray[np.uint32], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Entry e is `tokens[offsets[e]:offsets[e + 1]]`, and stands where its hash says or behind; -1 marks a free slot."""
    entries = len(offsets) - 1
    slots: NDArray[np.int64] = _fill(tokens, offsets, 1 << max(4, (2 * entries).bit_length()))
    return slots


@numba.njit(cache=True, nogil=True)
def add_token(hashed, token):  # type: ignore[no-untyped-def]
    """The hash of a sequence with one token more; that of the empty one is 0."""
    hashed = (hashed ^ np.uint64(token)) * np.uint64(0x9E3779B97F4A7C15)
    return hashed ^ (hashed >> np.uint64(29))


@numba.njit(cache=True, nogil=True)
def _fill(tokens, offsets, size):  # type: ignore[no-untyped-def]
    slots = np.full(size, -1, dtype=np.int64)
    for entry in range(len(offsets) - 1):
        hashed = np.uint64(0)
        for i in range(offsets[entry], offsets[entry + 1]):
            hashed = add_token(hashed, tokens[i])
        slot = np.int64(hashed & np.uint64(size - 1))
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot] = entry
    return slots


@numba.njit(cache=True, nogil=True)
def entry_of(ids, begin, end, hashed, tokens, offsets, slots):  # type: ignore[no-untyped-def]
    """The entry whose tokens are ids[begin:end], which have this hash; -1 for none."""
    slot = np.int64(hashed & np.uint64(len(slots) - 1))
    while slots[slot] >= 0:
        first = offsets[slots[slot]]
        same = offsets[slots[slot] + 1] - first == end - begin
        for i in range(end - begin):
            same = same and tokens[first + i] == ids[begin + i]
        if same:
            return slots[slot]
        slot = (slot + 1) & (len(slots) - 1)
    return -1
