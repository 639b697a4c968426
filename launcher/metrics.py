"""What a run tells about itself, and how often."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Records of one run."""

    log_every_steps: int = 10
    """Steps between two lines of metrics."""
    evaluate_every_steps: int = 1000
    """Steps between two evaluations on held-out rows with fixed masks."""
    layer_movements: bool = False
    """At each evaluation also distance and cosine of every layer's output to its input (ALBERT's figure 1): shared layers are smoother."""
    tensorboard: bool = True
    """Also write TensorBoard files."""

    def __post_init__(self) -> None:
        for name in ("log_every_steps", "evaluate_every_steps"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be at least 1")
