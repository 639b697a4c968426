"""LAMB in plain torch, which has none: the reference of the fused one, and the last rung of its ladder.

You et al. 2020, algorithm 2, with the moments' bias undone as in Adam. A weight's update is scaled to the norm of the weight itself.
Norms are of whole weights; whoever holds only parts of them sums the squares over the holders in between.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

SumOverRanks = Callable[[Tensor], Tensor]


class Lamb(Optimizer):
    """As torch's optimizers. `sum_over_ranks` adds up (weights, 2) squared norms where each rank holds a shard of every weight."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        sum_over_ranks: SumOverRanks = lambda norms: norms,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.sum_over_ranks = sum_over_ranks

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 (torch's own signature)
        """One step of every weight that has a gradient."""
        groups = [(group, [weight for weight in group["params"] if weight.grad is not None]) for group in self.param_groups]
        updates = [self._prepare(weight, group) for group, weights in groups for weight in weights]
        norms = self.sum_over_ranks(torch.stack([norm for _, norm in updates])) if updates else torch.empty(0, 2)
        ratios = trust_ratios(norms)
        places = iter(range(len(updates)))
        for group, weights in groups:
            for weight in weights:
                place = next(places)
                weight.sub_(updates[place][0] * (group["lr"] * ratios[place]))

    def _prepare(self, weight: Tensor, group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The update before it is scaled, and the squared norms of weight and update."""
        state = self.state[weight]
        if not state:
            state["step"] = 0
            state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean, square, gradient = state["mean"], state["square"], weight.grad
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        update = mean / (1 - beta1 ** state["step"]) / root + group["weight_decay"] * weight
        return update, torch.stack([weight.square().sum(), update.square().sum()])


def trust_ratios(norms: Tensor) -> Tensor:
    """Squared norms of weights and updates (n, 2) -> norm of the weight over that of its update, or 1 where one of them is 0 (n,)."""
    weights, updates = norms.sqrt().unbind(1)
    return torch.where((weights > 0) & (updates > 0), weights / updates, 1.0)
