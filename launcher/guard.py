"""What is done about a step whose loss or gradient is not finite or far out."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

_FEWEST_STEPS = 20  # before that there is nothing to compare with


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """A step that is not finite would end the training; one that is far out may."""

    policy: Literal["skip", "rollback", "stop"] = "skip"
    """skip leaves weights as they are and goes on with the next rows; rollback goes back to the last checkpoint and on with the next rows;
    stop ends the run. In each case the incident is written down with its rows."""
    spike_factor: float | None = 20.0
    """A step is far out if its gradient norm is so many times the median of the last steps, or its loss lies so many times further above
    their median than they usually do; None: only what is not finite counts."""
    window_steps: int = 100
    """How many last steps it is compared with."""
    most_in_a_row: int = 10
    """Incidents without a good step in between, before the run is ended."""

    def __post_init__(self) -> None:
        for name in ("window_steps", "most_in_a_row"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be at least 1")
        if self.spike_factor is not None and not self.spike_factor > 1:
            raise ValueError(f"spike_factor: {self.spike_factor} was given, it must be more than 1, or null")


class Guard:
    """Remembers the last good steps; its memory goes into checkpoints, so that a resumed run decides as the whole one."""

    def __init__(self, config: GuardConfig, losses: list[float], norms: list[float]) -> None:
        self.config = config
        self.losses, self.norms = deque(losses, maxlen=config.window_steps), deque(norms, maxlen=config.window_steps)

    def judge(self, loss: float, norm: float) -> str:
        """What is wrong with a step, or nothing."""
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if not -float("inf") < value < float("inf"):
                return f"the {name} is not finite"
        factor = self.config.spike_factor
        if factor is None or len(self.norms) < min(_FEWEST_STEPS, self.config.window_steps):
            return ""
        if norm > factor * (usual := median(self.norms)):
            return f"the gradient norm {norm:.3g} is more than {factor:g} times the usual {usual:.3g}"
        middle = median(self.losses)
        spread = max(median(abs(seen - middle) for seen in self.losses), 0.01 * abs(middle))
        if loss - middle > factor * spread:
            return f"the loss {loss:.4g} is more than {factor:g} times further out than the last ones, {middle:.4g} ± {spread:.2g}"
        return ""

    def remember(self, loss: float, norm: float) -> None:
        self.losses.append(loss)
        self.norms.append(norm)


def loss_to_judge(losses: Mapping[str, float]) -> float:
    """Of a step's parts what is compared with other steps: not every one has a question for the sentence task, but all have masked tokens.

    The sum where a part is not finite.
    """
    total = sum(losses.values())
    return losses.get("masked_tokens", total) if math.isfinite(total) else total
