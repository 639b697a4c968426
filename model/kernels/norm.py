"""Dropout, residual sum and LayerNorm in one pass over a row, for post-norm (the sum is not used again) and pre-norm (it is)."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from remask.model.kernels.dropping import draw_seed, dropped_steps, kept

PROGRAMS = 128
"""Of the backward pass; each sums the gradients of weight and bias over every 128th row."""


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, rate: float) -> tuple[Tensor, Tensor]:
    """As `operations.add_norm`."""
    total, normed = _AddNorm.apply(x, residual, weight, bias, eps, rate)
    return total, normed


def warps_for(block: int, bytes_a_value: int) -> int:
    """More for wider rows: with too few, LayerNorm's backward pass spills registers."""
    if block <= 2048:
        return 4 if block <= 1024 else 8
    return 8 if block == 4096 and bytes_a_value == 2 else 16


@triton.jit
def centre(total, inside, width, eps):
    """Of a row: its mean, 1 / its standard deviation, and its values less their mean."""
    mean = tl.sum(total, 0) / width
    centred = tl.where(inside, total - mean, 0.0)
    return mean, 1 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps), centred


@triton.jit
def slope_of_sum(upstream, factor, normal, spread, width):
    """Gradient of LayerNorm by its input: `normal` are the values before weight and bias."""
    slope = upstream * factor
    return (slope - tl.sum(slope, 0) / width - normal * (tl.sum(slope * normal, 0) / width)) * spread


@triton.jit(do_not_specialize=["seed"])
def add_norm_forward(
    x, residual, weight, bias, total, normed, means, spreads, seed, width, eps, scale, DROPPED: tl.constexpr, BLOCK: tl.constexpr
):
    """A program for each row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    places = row * width + columns
    added = tl.load(x + places, mask=inside, other=0).to(tl.float32)
    if DROPPED > 0:
        added = tl.where(kept(seed, places, DROPPED), added * scale, 0.0)
    summed = tl.load(residual + places, mask=inside, other=0).to(tl.float32) + added
    tl.store(total + places, summed.to(total.dtype.element_ty), mask=inside)
    summed = summed.to(total.dtype.element_ty).to(tl.float32)  # the backward pass reads it as it was stored
    mean, spread, centred = centre(summed, inside, width, eps)
    scaled = centred * spread * tl.load(weight + columns, mask=inside, other=0).to(tl.float32)
    value = scaled + tl.load(bias + columns, mask=inside, other=0).to(tl.float32)
    tl.store(normed + places, value.to(normed.dtype.element_ty), mask=inside)
    tl.store(means + row, mean)
    tl.store(spreads + row, spread)


@triton.jit(do_not_specialize=["seed"])
def add_norm_backward(
    total, weight, means, spreads, of_normed, of_total, of_x, of_residual, of_weight, of_bias, seed, rows, width, scale,
    DROPPED: tl.constexpr, HAS_TOTAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for every so many rows."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    factor = tl.load(weight + columns, mask=inside, other=0).to(tl.float32)
    weight_slope = tl.zeros((BLOCK,), dtype=tl.float32)
    bias_slope = tl.zeros((BLOCK,), dtype=tl.float32)
    for row_number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.to_tensor(row_number).to(tl.int64)
        places = row * width + columns
        spread = tl.load(spreads + row)
        summed = tl.load(total + places, mask=inside, other=0).to(tl.float32)
        upstream = tl.load(of_normed + places, mask=inside, other=0).to(tl.float32)
        normal = tl.where(inside, (summed - tl.load(means + row)) * spread, 0.0)
        weight_slope += upstream * normal
        bias_slope += upstream
        slope = slope_of_sum(upstream, factor, normal, spread, width)
        if HAS_TOTAL:
            slope += tl.load(of_total + places, mask=inside, other=0).to(tl.float32)
        tl.store(of_residual + places, slope.to(of_residual.dtype.element_ty), mask=inside)
        if DROPPED > 0:
            slope = tl.where(kept(seed, places, DROPPED), slope * scale, 0.0)
            tl.store(of_x + places, slope.to(of_x.dtype.element_ty), mask=inside)
    tl.store(of_weight + tl.program_id(0) * width + columns, weight_slope, mask=inside)
    tl.store(of_bias + tl.program_id(0) * width + columns, bias_slope, mask=inside)


class _AddNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, rate: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        if x.dtype != residual.dtype:
            raise TypeError(f"x and residual must be of one type, {x.dtype} and {residual.dtype} were given")
        x, residual = x.contiguous(), residual.contiguous()
        rows, width = x.shape
        steps, scale = dropped_steps(rate)
        seed, block = draw_seed(rate), triton.next_power_of_2(width)
        total, normed = torch.empty_like(residual), torch.empty_like(x)
        means, spreads = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
        if rows:
            add_norm_forward[(rows,)](
                x, residual, weight, bias, total, normed, means, spreads, seed, width, eps, scale,
                DROPPED=steps, BLOCK=block, num_warps=warps_for(block, x.element_size()),
            )  # fmt: skip
        ctx.save_for_backward(total, weight, means, spreads)
        ctx.seed, ctx.steps, ctx.scale, ctx.bias_dtype = seed, steps, scale, bias.dtype
        return total, normed

    @staticmethod
    def backward(ctx: Any, of_total: Tensor | None, of_normed: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight, means, spreads = ctx.saved_tensors
        rows, width = total.shape
        of_normed = torch.zeros_like(total) if of_normed is None else of_normed.contiguous()
        programs, block = max(1, min(PROGRAMS, rows)), triton.next_power_of_2(width)
        of_residual = torch.empty_like(total)
        of_x = torch.empty_like(of_normed) if ctx.steps else of_residual
        of_weight, of_bias = (torch.zeros(programs, width, dtype=torch.float32, device=total.device) for _ in range(2))
        if rows:
            add_norm_backward[(programs,)](
                total, weight, means, spreads, of_normed, total if of_total is None else of_total.contiguous(), of_x,
                of_residual, of_weight, of_bias, ctx.seed, rows, width, ctx.scale,
                DROPPED=ctx.steps, HAS_TOTAL=of_total is not None, BLOCK=block, num_warps=warps_for(block, total.element_size()),
            )  # fmt: skip
        return of_x, of_residual, of_weight.sum(0).to(weight.dtype), of_bias.sum(0).to(ctx.bias_dtype), None, None
