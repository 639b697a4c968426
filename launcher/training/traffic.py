"""What training gives to torch.distributed: calls and payload bytes by collective, counted where they are called."""

import inspect
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

# Collective -> the argument that this rank gives: the shard of an all-gather, the whole input of a reduce-scatter.
_PAYLOADS = {
    "all_reduce": "tensor",
    "all_reduce_coalesced": "tensors",
    "reduce": "tensor",
    "broadcast": "tensor",
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_tensor": "input",
    "all_to_all_single": "input",
}


@dataclass(kw_only=True)
class Traffic:
    """Counts since the start. Host-side messages between ranks, a few bytes a step, are not training and are left out."""

    calls: Counter[str] = field(default_factory=Counter)
    payload_bytes: Counter[str] = field(default_factory=Counter)
    last: str = "none yet"
    """The last collective that was called, of any kind."""
    number: int = 0
    """How many were called, of any kind."""
    paused: bool = False

    def note(self, name: str, given: Any) -> None:
        self.last, self.number = name, self.number + 1
        if not self.paused:
            self.calls[name] += 1
            self.payload_bytes[name] += _bytes_of(given)

    @contextmanager
    def aside(self) -> "Iterator[None]":
        """Collectives in the block are noted but not counted as training's."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


def watch_collectives() -> Traffic:
    """Count from now on; before DeepSpeed starts, which keeps some of the functions."""
    import torch.distributed
    from torch.distributed import distributed_c10d

    traffic = Traffic()
    for name, argument in _PAYLOADS.items():
        counted = _counted(getattr(distributed_c10d, name), name, argument, traffic)
        for module in (torch.distributed, distributed_c10d):
            setattr(module, name, counted)
    return traffic


def _counted(call: Callable[..., Any], name: str, argument: str, traffic: Traffic) -> Callable[..., Any]:
    call = getattr(call, "__wrapped_collective__", call)
    place = list(inspect.signature(call).parameters).index(argument)

    @wraps(call)
    def counted(*args: Any, **kwargs: Any) -> Any:
        traffic.note(name, kwargs[argument] if argument in kwargs else args[place])
        return call(*args, **kwargs)

    counted.__wrapped_collective__ = call  # type: ignore[attr-defined]
    return counted


def _bytes_of(given: "Tensor | list[Tensor]") -> int:
    return sum(_bytes_of(one) for one in given) if isinstance(given, (list, tuple)) else given.numel() * given.element_size()
