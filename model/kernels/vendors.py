"""NVIDIA's own packages, where ours cannot be had: as our operations and optimizers, with the settings that make them the same.

Optimizers take lr, betas, eps and weight_decay by name, as ours do.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from remask.model.dropout import dropout
from remask.model.optimizers import SumOverRanks


def add_norm_by_apex(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, rate: float) -> tuple[Tensor, Tensor]:
    """As `operations.add_norm`, with Apex's LayerNorm."""
    from apex.normalization.fused_layer_norm import fused_layer_norm_affine

    total = residual + dropout(x, rate)
    normed: Tensor = fused_layer_norm_affine(total, weight, bias, weight.shape, eps)
    return total, normed


def adamw_by_transformer_engine(params: Iterable[Any], **options: Any) -> Optimizer:
    """As torch.optim.AdamW."""
    from transformer_engine.pytorch.optimizers import FusedAdam

    made: Optimizer = FusedAdam(params, **options, adam_w_mode=True, bias_correction=True)
    return made


def adamw_by_apex(params: Iterable[Any], **options: Any) -> Optimizer:
    """As torch.optim.AdamW."""
    from apex.optimizers import FusedAdam

    made: Optimizer = FusedAdam(params, **options, adam_w_mode=True, bias_correction=True)
    return made


def lamb_by_apex(params: Iterable[Any], sum_over_ranks: SumOverRanks | None = None, **options: Any) -> Optimizer:
    """As our Lamb: by default Apex clips the gradient at 1 on its own and scales only weights that are decayed."""
    from apex.optimizers import FusedLAMB

    if sum_over_ranks is not None:
        raise ValueError("kernels: Apex's LAMB takes a shard for the whole weight; pin triton or torch where weights are sharded")
    made: Optimizer = FusedLAMB(params, **options, use_nvlamb=True, max_grad_norm=float("inf"), bias_correction=True)
    return made
