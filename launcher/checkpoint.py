"""When the state of a run is saved, and how much of it is kept."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints of one run."""

    save_every_steps: int = 1000
    """Steps between two saves; a killed run repeats at most this many."""
    keep_last: int = 3
    """Newest checkpoints kept on disk; older ones are removed once a newer one is whole."""

    def __post_init__(self) -> None:
        for name in ("save_every_steps", "keep_last"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be at least 1")
