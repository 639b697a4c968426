"""Everything random is a hash of what it is for: 64-bit keys for rows, and as many numbers as wanted from a key.

The mixer is splitmix64's finaliser, a bijection of 64 bits. So for one seed, refresh and set no two rows have the same key, however many
there are; the n-th number of a key is the mixer at n steps of the golden ratio from it.

Each function is there twice: compiled for the loader, and for whole arrays in NumPy, which the tests compare it with.
"""

import numba
import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ROW = np.uint64(0xD1B54A32D192ED03)


@numba.njit(cache=True, inline="always")
def mix(x):  # type: ignore[no-untyped-def]
    """64 well mixed bits."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@numba.njit(cache=True, inline="always")
def number(key, n):  # type: ignore[no-untyped-def]
    """The n-th number of a key."""
    return mix(key + (np.uint64(n) + np.uint64(1)) * GOLDEN)


@numba.njit(cache=True, inline="always")
def below(bound, bits):  # type: ignore[no-untyped-def]
    """A number from 0 to below the bound (at most 2^32), from the upper half of 64 bits."""
    return np.int64(((bits >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix` of an array."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def numbers(key: np.uint64, n: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`number` for an array of n."""
    with np.errstate(over="ignore"):
        return mixed(np.asarray(key + (n + np.uint64(1)) * GOLDEN, dtype=np.uint64))


def key_of(*parts: int) -> np.uint64:
    """One key from some integers; which part is which matters."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = mixed(key + GOLDEN + np.uint64(part & 0xFFFFFFFFFFFFFFFF))
    return np.uint64(key[0])


def row_keys(key: np.uint64 | NDArray[np.uint64], rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A key for each row: different rows, different keys, because an odd factor and the mixer are bijections."""
    return mixed(rows.astype(np.uint64) * _ROW + key)
