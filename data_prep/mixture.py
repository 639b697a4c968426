"""Several shard sets in one stream, still a function of the position."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remask.data_prep.keys import key_of, numbers

_WHEEL = 1000
_STARTS = 6  # what the key is for


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Several sets in one stream: which set stands at a stream position, and at which position of that set's own stream.

    Each lane goes round a wheel of 1,000 places on which every set has its share, evenly spread, from a start of its own. So the shares
    hold in every stretch of the stream, a lane of the mixture reads the same lane of each set, and nothing is counted by walking.
    """

    weights: tuple[float, ...]
    lanes: int
    seed: int

    def __post_init__(self) -> None:
        if not self.weights or min(self.weights) <= 0:
            raise ValueError(f"weights: {self.weights} was given, each must be more than 0")
        if min(self._shares) < 1:
            raise ValueError(f"weights: {self.weights} was given, each must be at least a thousandth of their sum")

    @property
    def _shares(self) -> NDArray[np.int64]:
        """Places of each set on the wheel."""
        ideal = np.array(self.weights) / sum(self.weights) * _WHEEL
        shares = np.floor(ideal).astype(np.int64)
        shares[np.argsort(shares - ideal, kind="stable")[: _WHEEL - shares.sum()]] += 1
        return shares

    def locate(self, stream: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each stream position the set, and the position in the set's own stream."""
        if len(self.weights) == 1:
            return np.zeros_like(stream), stream
        wheel, before = self._wheel()
        depth, lane = np.divmod(stream, self.lanes)
        offsets = (numbers(key_of(self.seed, _STARTS), lane.astype(np.uint64)) % np.uint64(_WHEEL)).astype(np.int64)
        turns, at = np.divmod(depth + offsets, _WHEEL)
        sets = wheel[at]
        counted = turns * self._shares[sets] + before[sets, at] - before[sets, offsets]
        return sets, counted * self.lanes + lane

    def _wheel(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The set of each place, and for each set and place how many of its places come before."""
        shares = self._shares
        sets = np.repeat(np.arange(len(shares)), shares)
        moments = np.concatenate([(np.arange(share) + 0.5) / share for share in shares])
        wheel = sets[np.argsort(moments, kind="stable")]
        is_of: NDArray[Any] = wheel[None, :] == np.arange(len(shares))[:, None]
        return wheel, np.cumsum(is_of, axis=1) - is_of
