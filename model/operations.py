"""What stands around the matrix products: a function for each operation, here in plain torch, in `kernels/` fused for GPUs.

A set of them is chosen once, when the model is built, from outside (`kernels/choose.py`); the model calls what it was given.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from remask.model.dropout import dropout


@dataclass(frozen=True, kw_only=True)
class Operations:
    """One implementation of each operation. Rates are 0 outside training."""

    linear_gelu: Callable[[Tensor, Tensor, Tensor, bool], Tensor]
    """x (n, inputs), weight (outputs, inputs), bias (outputs,), by the tanh formula? -> (n, outputs)."""
    add_norm: Callable[[Tensor, Tensor, Tensor, Tensor, float, float], tuple[Tensor, Tensor]]
    """x and residual (n, width), weight and bias (width,), eps, rate -> residual + dropout(x), and that normalised."""
    embed: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float, float], Tensor]
    """Tables of words, positions, types; (n,) ids, positions, types; weight, bias, eps, rate -> dropout(norm(sum)) (n, width)."""
    target_loss: Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
    """hidden (n, width), words (vocabulary, width), bias (vocabulary,), targets (n,), z-loss -> the sum over the targets."""


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh" if tanh else "none")


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, rate: float) -> tuple[Tensor, Tensor]:
    total = residual + dropout(x, rate)
    return total, functional.layer_norm(total, weight.shape, weight, bias, eps)


def embed(
    words: Tensor, positions: Tensor, types: Tensor, ids: Tensor, places: Tensor, kinds: Tensor,
    weight: Tensor, bias: Tensor, eps: float, rate: float,
) -> Tensor:  # fmt: skip
    summed = functional.embedding(ids, words) + functional.embedding(places, positions) + functional.embedding(kinds, types)
    return dropout(functional.layer_norm(summed, weight.shape, weight, bias, eps), rate)


def target_loss(hidden: Tensor, words: Tensor, bias: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    scores = _padded_scores(hidden, words, bias)[:, : len(words)]
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    loss = functional.cross_entropy(scores, targets, reduction="sum")
    return loss + z_loss * torch.logsumexp(scores, -1).square().sum() if z_loss else loss


def _padded_scores(hidden: Tensor, words: Tensor, bias: Tensor) -> Tensor:
    """Over the vocabulary and zero words behind it up to a multiple of 64, without which a GPU's matrix product is slower."""
    missing = -len(words) % 64
    return functional.linear(hidden, functional.pad(words, (0, 0, 0, missing)), functional.pad(bias, (0, missing)))


REFERENCE = Operations(linear_gelu=linear_gelu, add_norm=add_norm, embed=embed, target_loss=target_loss)
