"""Where a run stands: all that a checkpoint must remember beside weights and moments.

There is no random state among it: order and masks are functions of the stream position, dropout of (seed, step, rank).
"""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(kw_only=True)
class SinceLastLine:
    """Sums over the steps since the last line of metrics."""

    steps: int = 0
    position: int = 0
    """Where the first of them began."""
    rows: int = 0
    labelled: int = 0
    """Rows that the sentence task had a question about."""
    losses: dict[str, float] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    """Steps in those sums, by part: not the ones that the guard refused, and of the sentence task only those that had a question."""


@dataclass(kw_only=True)
class RunState:
    """After `step` steps."""

    step: int = 0
    short: bool = False
    """Whether the next batch is of the first phase, of short rows."""
    position: int = 0
    """Where the next batch begins in the phase's stream of rows."""
    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Spent training, over all restarts, by the clock of rank 0."""
    done_when_warm: float | None = None
    """Share of the budget that was used up when the warm-up ended."""
    evaluated_step: int | None = None
    """Of the last evaluation."""
    optimizer_steps: int = 0
    """Steps that changed weights."""
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    """Of the last good steps, which the guard compares with."""
    loss_scaler: dict[str, Any] = field(default_factory=dict)
    """With fp16."""

    since_last_line: SinceLastLine = field(default_factory=SinceLastLine)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "RunState":
        return cls(**{**told, "since_last_line": SinceLastLine(**told["since_last_line"])})
