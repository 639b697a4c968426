"""When the state of a run is saved, and how much of it is kept."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints of one run."""

    save_every_steps: int = 1000
    """Steps between two saves; a killed run repeats at most this many."""
    save_every_minutes: float | None = 30.0
    """Minutes between two saves, None to go by steps only."""
    keep_last: int = 3
    """Newest checkpoints kept on disk; older ones are removed once a newer one is whole."""
    keep_every_steps: int | None = None
    """Checkpoints at multiples of so many steps are kept for ever, None for none."""

    def __post_init__(self) -> None:
        for name in ("save_every_steps", "keep_last"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be at least 1")
        for name in ("save_every_minutes", "keep_every_steps"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name}: {value} was given, it must be more than 0, or null")
