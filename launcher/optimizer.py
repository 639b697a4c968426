"""The optimizer's settings."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Biases and norms are never decayed, as in all the papers."""

    name: Literal["adamw", "lamb"] = "adamw"
    """adamw, or lamb for batches of thousands of rows."""
    lr: float = 1e-4
    """Peak learning rate, reached at the end of the warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Memory of the gradient's mean and square; .98 for the second steadies large batches (RoBERTa)."""
    eps: float = 1e-6
    """Added to the root of the second moment; larger damps rare weights."""
    weight_decay: float = 0.01
    """Pull of the weights towards zero, scaled by the learning rate."""
    clip_norm: float | None = 1.0
    """Largest gradient norm over all weights, None for no clipping; always set in DeepSpeed, which clips at 1.0 when not told."""

    def __post_init__(self) -> None:
        for name in ("lr", "eps"):
            if not 0 < (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be more than 0 and less than 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas: {list(self.betas)} was given, each must be at least 0 and less than 1")
        if not 0 <= self.weight_decay < 1:
            raise ValueError(f"weight_decay: {self.weight_decay} was given, it must be at least 0 and less than 1")
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise ValueError(f"clip_norm: {self.clip_norm} was given, it must be more than 0, or null for no clipping")
