"""How long to train, and the learning rate's way."""

import math
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
    """The way down after the warm-up. warmup-stable-decay stays at the peak first, so that a run can be prolonged before its end."""
    power: float = 2.0
    """Of polynomial: how steeply it falls at first."""
    decay_fraction: float = 0.1
    """Of warmup-stable-decay: the share of the steps, at the end, in which the rate falls."""
    final_fraction: float = 0.0
    """Share of the peak that is left at the end."""
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
        if not 0 < self.power <= 100:
            raise ValueError(f"power: {self.power} was given, it must be more than 0 and at most 100")
        for name in ("decay_fraction", "final_fraction"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ValueError(f"{name}: {share} was given, it must be from 0 to 1")

    def rate_at(self, step: int) -> float:
        """Share of the peak learning rate at a step, counted from 0; no step has a rate of 0, so none is made for nothing."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        left = max(0.0, (self.steps - step) / max(1, self.steps - self.warmup_steps))  # of the way down, 1 at the peak
        match self.shape:
            case "linear":
                share = left
            case "polynomial":
                share = left**self.power
            case "cosine":
                share = (1 - math.cos(math.pi * left)) / 2
            case "warmup-stable-decay":
                share = min(1.0, (self.steps - step) / max(1.0, self.decay_fraction * self.steps))
        return self.final_fraction + (1 - self.final_fraction) * max(0.0, share)
