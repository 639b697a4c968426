"""The optimizers in torch's own multi-tensor forms: AdamW, and LAMB, which torch has not; the last rung of their ladders.

LAMB is You et al. 2020, algorithm 2, with the moments' bias undone as in Adam. A weight's update is scaled to the norm of the weight
itself. Norms are of whole weights; whoever holds only parts of them sums the squares over the holders in between.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

SumOverRanks = Callable[[Tensor], Tensor]


def adamw(params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> Optimizer:
    """torch's, in its fused form."""
    return torch.optim.AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


class Lamb(Optimizer):
    """As torch's optimizers. `sum_over_ranks` adds up (weights, 2) squared norms where each rank holds a shard of every weight."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        sum_over_ranks: SumOverRanks | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.sum_over_ranks = sum_over_ranks

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 (torch's own signature)
        """One step of every weight that has a gradient."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._step_group(weights, group)

    def _step_group(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        means, squares, steps = self._advance(weights)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_div(squares, [1 - beta2**step for step in steps])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, [1 - beta1**step for step in steps])
        torch._foreach_div_(updates, roots)
        torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        norms = torch.stack([torch.stack(torch._foreach_norm(some)) for some in (weights, updates)], 1).square()
        ratios = trust_ratios(norms if self.sum_over_ranks is None else self.sum_over_ranks(norms))
        torch._foreach_mul_(updates, list((ratios * group["lr"]).unbind()))
        torch._foreach_sub_(weights, updates)

    def _advance(self, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[int]]:
        """Moments of the weights, under the names that torch's Adam gives them, and which step each makes."""
        for weight in weights:
            state = self.state[weight]
            if not state:
                state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
            state["step"] += 1
        states = [self.state[weight] for weight in weights]
        return [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states], [int(state["step"]) for state in states]


def trust_ratios(norms: Tensor) -> Tensor:
    """Squared norms of weights and updates (n, 2) -> norm of the weight over that of its update, or 1 where one of them is 0 (n,)."""
    weights, updates = norms.sqrt().unbind(1)
    return torch.where((weights > 0) & (updates > 0), weights / updates, 1.0)
