"""Messages between the ranks' hosts: small, over gloo also where training uses NCCL, so that no GPU waits for them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from remask.launcher.ranks import Place
from remask.launcher.training.traffic import Traffic


class Peers:
    """All ranks of a run; every method must be called by each of them."""

    def __init__(self, place: Place, traffic: Traffic) -> None:
        import torch.distributed

        self.place, self._traffic = place, traffic
        self._group = torch.distributed.new_group(backend="gloo") if place.world_size > 1 else None

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Everyone's numbers, by rank; exact for integers below 2^53."""
        import torch

        mine = torch.tensor(numbers, dtype=torch.float64)
        if self._group is None:
            return [mine.tolist()]
        everyone = torch.empty(self.place.world_size, len(mine), dtype=torch.float64)
        with self._traffic.aside():
            torch.distributed.all_gather(list(everyone.unbind()), mine, group=self._group)
        gathered: list[list[float]] = everyone.tolist()
        return gathered

    def tell(self, value: Any) -> Any:
        """Rank 0's value, to everyone."""
        import torch.distributed

        if self._group is None:
            return value
        holder = [value]
        with self._traffic.aside():
            torch.distributed.broadcast_object_list(holder, src=0, group=self._group)
        return holder[0]

    def collect(self, value: Any) -> list[Any]:
        """Everyone's values, by rank."""
        import torch.distributed

        if self._group is None:
            return [value]
        everyone: list[Any] = [None] * self.place.world_size
        with self._traffic.aside():
            torch.distributed.all_gather_object(everyone, value, group=self._group)
        return everyone

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Collectives in the block are not training's."""
        with self._traffic.aside():
            yield
