"""What a run tells about itself, and how often."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Records of one run."""

    log_every_steps: int = 10
    """Steps between two lines of metrics."""
    evaluate_every_steps: int = 1000
    """Steps between two evaluations on held-out rows with fixed masks; there is always one at the end."""
    evaluate_rows: int = 4096
    """Held-out rows of an evaluation, spread evenly over all; fewer are quicker and noisier."""
    sentences: tuple[str, ...] = ("The [MASK] of a function is returned to its caller.", "This is the first [MASK] of the year.")
    """What is filled in at each evaluation; [MASK] stands for the word to find."""
    layer_movements: bool = False
    """At each evaluation also distance and cosine of every layer's output to its input (ALBERT's figure 1): shared layers are smoother."""
    row_digests: bool = False
    """Also the hash of every row as the model got it, to prove which rows and masks a run has seen; for short runs."""
    tensorboard: bool = True
    """Also write TensorBoard files."""

    def __post_init__(self) -> None:
        for name in ("log_every_steps", "evaluate_every_steps", "evaluate_rows"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be at least 1")
        for sentence in self.sentences:
            if sentence.count("[MASK]") != 1:
                raise ValueError(f"sentences: {sentence!r} was given, it must have [MASK] in one place")
