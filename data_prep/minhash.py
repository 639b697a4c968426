"""Near duplicates by MinHash: documents that share most of their five-word runs fall into the same bucket of one band at least.

A document's signature is the smallest hash of its runs under 128 hash functions. It is cut into `bands` of `rows` values; two documents
with similarity s agree in a whole band with probability 1 - (1 - s^rows)^bands, a steep curve around (1 / bands)^(1 / rows).
"""

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.keys import mix

FUNCTIONS = 128
_RUN_WORDS = 5


def bands_for(similarity: float) -> tuple[int, int]:
    """(bands, rows) of 128 hash functions whose curve is steepest nearest to the wanted similarity."""
    shapes = [(FUNCTIONS // rows, rows) for rows in (1, 2, 4, 8, 16, 32, 64)]
    return min(shapes, key=lambda shape: abs((1 / shape[0]) ** (1 / shape[1]) - similarity))


def band_keys(text: bytes, similarity: float) -> NDArray[np.uint64]:
    """One key a band; equal keys in the same band make two documents near duplicates."""
    bands, rows = bands_for(similarity)
    keys: NDArray[np.uint64] = _band_keys(np.frombuffer(text.lower(), dtype=np.uint8), bands, rows)
    return keys


@numba.njit(cache=True)
def _band_keys(text, bands, rows):  # type: ignore[no-untyped-def]
    signature = np.full(FUNCTIONS, np.uint64(0xFFFFFFFFFFFFFFFF), dtype=np.uint64)
    recent = np.zeros(_RUN_WORDS, dtype=np.uint64)
    words = 0
    word = np.uint64(0)
    whole = np.uint64(1)
    for i in range(len(text) + 1):
        byte = text[i] if i < len(text) else np.uint8(32)
        in_word = byte >= 128 or 48 <= byte <= 57 or 97 <= byte <= 122
        if word and (not in_word or byte >= 0xE3):  # each ideograph counts as a word
            recent[words % _RUN_WORDS] = word
            words += 1
            word = np.uint64(0)
            if words >= _RUN_WORDS:
                _lower(signature, recent, words)
        whole = mix(whole ^ np.uint64(byte))
        if in_word:
            word = mix(word ^ np.uint64(byte))
    if words == 0:  # punctuation alone: near to nothing but itself
        recent[0] = whole
    if words < _RUN_WORDS:
        _lower(signature, recent, words)
    keys = np.empty(bands, dtype=np.uint64)
    for band in range(bands):
        key = np.uint64(band + 1)
        for row in range(rows):
            key = mix(key ^ signature[band * rows + row])
        keys[band] = key
    return keys


@numba.njit(cache=True)
def _lower(signature, recent, words):  # type: ignore[no-untyped-def]
    """Take the run of the last words into the signature."""
    run = np.uint64(0)
    for k in range(_RUN_WORDS):
        run = mix(run ^ recent[(words + k) % _RUN_WORDS])
    value = run
    for function in range(len(signature)):
        value = value * np.uint64(0xD1342543DE82EF95) + np.uint64(0x9E3779B97F4A7C15) + np.uint64(2 * function)
        hashed = value ^ (value >> np.uint64(32))
        if hashed < signature[function]:
            signature[function] = hashed
