"""How long to train, and the learning rate's way."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Linear warm-up to the peak, then down by `shape`."""

    steps: int = 1_000_000
    """Optimizer steps in all."""
    warmup_steps: int = 10_000
    """Steps until the peak learning rate; too few of them is the usual cause of early divergence."""
    shape: Literal["linear", "polynomial", "cosine", "warmup-stable-decay"] = "linear"
    """The way down after the warm-up."""
    short_fraction: float = 0.0
    """Share of the steps, at the start, trained on rows of `short_length` tokens: most of the learning at a fraction of the time."""
    short_length: int = 128
    """Row length of that first phase."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps: {self.steps} was given, it must be at least 1")
        if not 0 <= self.warmup_steps <= self.steps:
            raise ValueError(f"warmup_steps: {self.warmup_steps} was given, it must be from 0 to steps ({self.steps})")
        if not 0 <= self.short_fraction < 1:
            raise ValueError(f"short_fraction: {self.short_fraction} was given, it must be at least 0 and less than 1")
        if self.short_length < 8:
            raise ValueError(f"short_length: {self.short_length} was given, it must be at least 8")
