"""Bias and GELU in one pass over what a matrix product gave, and both gradients in one pass back."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

BLOCK = 1024
ROWS = 32
"""Rows whose share of the bias's gradient one program sums up."""


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """As `operations.linear_gelu`."""
    activated: Tensor = _BiasGelu.apply(functional.linear(x, weight), bias, tanh)
    return activated


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def gelu_forward(x, bias, y, width, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """A program for each row and block of columns."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    value = tl.load(x + row * width + columns, mask=inside, other=0).to(tl.float32) + tl.load(bias + columns, mask=inside, other=0).to(
        tl.float32
    )
    if TANH:
        activated = value * _sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))  # (1 + tanh u) / 2 = sigmoid(2 u)
    else:
        activated = 0.5 * value * (1 + tl.erf(value * 0.7071067811865476))
    tl.store(y + row * width + columns, activated.to(y.dtype.element_ty), mask=inside)


@triton.jit
def gelu_backward(x, bias, upstream, of_x, of_bias, rows, width, TANH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A program for each block of rows and block of columns; of_bias (blocks of rows, width) is summed up outside, always in one order."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    added = tl.load(bias + columns, mask=inside, other=0).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + i
        real = columns < tl.where(row < rows, width, 0)
        value = tl.load(x + row * width + columns, mask=real, other=0).to(tl.float32) + added
        slope = tl.load(upstream + row * width + columns, mask=real, other=0).to(tl.float32)
        if TANH:
            inner = 1.5957691216057308 * (value + 0.044715 * value * value * value)
            gate = _sigmoid(inner)
            slope *= gate + value * gate * (1 - gate) * 1.5957691216057308 * (1 + 0.134145 * value * value)
        else:
            slope *= 0.5 * (1 + tl.erf(value * 0.7071067811865476)) + value * 0.3989422804014327 * tl.exp(-0.5 * value * value)
        tl.store(of_x + row * width + columns, slope.to(of_x.dtype.element_ty), mask=real)
        total += slope
    tl.store(of_bias + tl.program_id(0).to(tl.int64) * width + columns, total, mask=inside)


class _BiasGelu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        x = x.contiguous()
        rows, width = x.shape
        y = torch.empty_like(x)
        if rows:
            gelu_forward[(rows, triton.cdiv(width, BLOCK))](x, bias, y, width, TANH=tanh, BLOCK=BLOCK)
        ctx.save_for_backward(x, bias)
        ctx.tanh = tanh
        return y

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        x, bias = ctx.saved_tensors
        rows, width = x.shape
        of_x = torch.empty_like(x)
        of_bias = torch.zeros(triton.cdiv(rows, ROWS), width, dtype=torch.float32, device=x.device)
        if rows:
            grid = (len(of_bias), triton.cdiv(width, BLOCK))
            gelu_backward[grid](x, bias, upstream.contiguous(), of_x, of_bias, rows, width, TANH=ctx.tanh, ROWS=ROWS, BLOCK=BLOCK)
        return of_x, of_bias.sum(0).to(bias.dtype), None
