"""How long to train, and the learning rate's way."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Linear warm-up to the peak, then down by `shape`."""

    steps: int = 1_000_000
    """Steps in all; with `tokens` or `hours` the run ends at whichever is reached first, and the rate follows it."""
    tokens: int | None = None
    """Real tokens to train on in all."""
    hours: float | None = None
    """Hours to train in all, counted over restarts."""
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
    short_batch_rows: int | None = None
    """Rows of a batch in that phase, None: data.batch_rows."""
    first_batch_rows: int | None = None
    """Batch-size warm-up: rows of the first batch, None: none."""
    batch_warmup_steps: int = 0
    """Steps in which the batch grows to its full size, linearly; small batches learn more from a token at first."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps: {self.steps} was given, it must be at least 1")
        if not 0 <= self.warmup_steps <= self.steps:
            raise ValueError(f"warmup_steps: {self.warmup_steps} was given, it must be from 0 to steps ({self.steps})")
        if not 0 <= self.short_fraction < 1:
            raise ValueError(f"short_fraction: {self.short_fraction} was given, it must be at least 0 and less than 1")
        if self.short_length < 8:
            raise ValueError(f"short_length: {self.short_length} was given, it must be at least 8")
        for name in ("tokens", "hours", "short_batch_rows", "first_batch_rows"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name}: {value} was given, it must be more than 0, or null")
        if self.batch_warmup_steps < 0 or (self.first_batch_rows is None) != (self.batch_warmup_steps == 0):
            raise ValueError(f"batch_warmup_steps: {self.batch_warmup_steps} was given; give it together with first_batch_rows, or neither")
        if not 0 < self.power <= 100:
            raise ValueError(f"power: {self.power} was given, it must be more than 0 and at most 100")
        for name in ("decay_fraction", "final_fraction"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ValueError(f"{name}: {share} was given, it must be from 0 to 1")

    def done_at(self, step: int, tokens: int, seconds: float) -> float:
        """Share of the budget that is used up after so many steps, tokens and seconds: of the one that is nearest to its end."""
        shares = [step / self.steps]
        shares += [tokens / self.tokens] if self.tokens else []
        shares += [seconds / (3600 * self.hours)] if self.hours else []
        return max(shares)

    def rate_at(self, step: int, done: float | None = None, done_when_warm: float | None = None) -> float:
        """Share of the peak learning rate at a step, counted from 0; no step has a rate of 0, so none is made for nothing.

        `done` is the share of the budget that is used up, now and when the warm-up ended; by default of the steps.
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = step / self.steps if done is None else done
        warm = self.warmup_steps / self.steps if done_when_warm is None else done_when_warm
        left = (1 - done) / (1 - warm) if warm < 1 else 0.0  # of the way down, 1 at the peak
        match self.shape:
            case "linear":
                share = left
            case "polynomial":
                share = max(0.0, left) ** self.power
            case "cosine":
                share = (1 - math.cos(math.pi * min(1.0, max(0.0, left)))) / 2
            case "warmup-stable-decay":
                share = min(1.0, (1 - done) / max(1 / self.steps, self.decay_fraction))
        return self.final_fraction + (1 - self.final_fraction) * min(1.0, max(0.0, share))

    def is_short(self, done: float) -> bool:
        """Whether the first phase, of short rows, goes on."""
        return done < self.short_fraction

    def rows_at(self, step: int, short: bool, batch_rows: int) -> int:
        """Rows of the global batch at a step."""
        full = self.short_batch_rows or batch_rows if short else batch_rows
        if self.first_batch_rows is None or step >= self.batch_warmup_steps:
            return full
        return round(self.first_batch_rows + (full - self.first_batch_rows) * step / self.batch_warmup_steps)
