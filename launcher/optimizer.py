"""The optimizer's settings, and which of them each weight gets."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from remask.launcher.errors import UserError

if TYPE_CHECKING:
    from torch.nn import Parameter


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
    lr_scales: tuple[tuple[str, float], ...] = ()
    """Factors on the learning rate of weights by name, [[encoder.embeddings.*, 0.1]]; the first pattern that fits counts. Wide models
    want smaller rates in their matrices than in tables, biases and norms (Yang et al. 2022, table 3); empty gives all the same."""

    def __post_init__(self) -> None:
        for name in ("lr", "eps"):
            if not 0 < (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {value} was given, it must be more than 0 and less than 1")
        for pattern, scale in self.lr_scales:
            if not 0 <= scale <= 1000:
                raise ValueError(f"lr_scales: {scale} was given for {pattern}, it must be from 0, which freezes it, to 1000")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas: {list(self.betas)} was given, each must be at least 0 and less than 1")
        if not 0 <= self.weight_decay < 1:
            raise ValueError(f"weight_decay: {self.weight_decay} was given, it must be at least 0 and less than 1")
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise ValueError(f"clip_norm: {self.clip_norm} was given, it must be more than 0, or null for no clipping")


def parameter_groups(parameters: "Iterable[tuple[str, Parameter]]", config: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups as torch's optimizers take them: without decay for biases and norms, and one for each factor on the learning rate."""
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    unused = dict.fromkeys(pattern for pattern, _ in config.lr_scales)
    for name, parameter in parameters:
        pattern, scale = next(((p, s) for p, s in config.lr_scales if fnmatchcase(name, p)), ("", 1.0))
        unused.pop(pattern, None)
        decay = config.weight_decay if parameter.ndim > 1 else 0.0
        group = groups.setdefault((decay, scale), {"params": [], "names": [], "lr": config.lr * scale, "weight_decay": decay})
        group["params"].append(parameter)
        group["names"].append(name)
    if unused:
        raise UserError(f"optimizer.lr_scales: no weight is called {next(iter(unused))!r}, or an earlier pattern takes all that are")
    return list(groups.values())
