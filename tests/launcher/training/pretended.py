"""Ranks that are not there, for what can be seen on one machine only if they are pretended."""

from collections.abc import Callable, Sequence
from typing import Any

from remask.launcher.ranks import Place
from remask.launcher.training.peers import Peers
from remask.launcher.training.traffic import Traffic


class PretendedPeers(Peers):
    """Rank 0 of several; the others say what `change` makes of its own words, by their rank."""

    def __init__(self, world: int, change: Callable[[Any, int], Any] = lambda value, rank: value) -> None:
        self.place, self._change = Place(rank=0, world_size=world), change
        self._traffic, self._group = Traffic(), None

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        return [[self._change(number, rank) if rank else number for number in numbers] for rank in range(self.place.world_size)]

    def collect(self, value: Any) -> list[Any]:
        return [self._change(value, rank) if rank else value for rank in range(self.place.world_size)]
