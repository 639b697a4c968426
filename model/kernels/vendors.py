"""Operations by NVIDIA's own packages, where ours cannot be had."""

from torch import Tensor

from remask.model.dropout import dropout


def add_norm_by_apex(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, rate: float) -> tuple[Tensor, Tensor]:
    """As `operations.add_norm`, with Apex's LayerNorm."""
    from apex.normalization.fused_layer_norm import fused_layer_norm_affine

    total = residual + dropout(x, rate)
    normed: Tensor = fused_layer_norm_affine(total, weight, bias, weight.shape, eps)
    return total, normed
