"""Words, positions and types gathered, summed, normalised and dropped out in one pass over a row; the sum itself is never stored."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from remask.model.kernels.dropping import draw_seed, dropped_steps, kept
from remask.model.kernels.norm import PROGRAMS, centre, slope_of_sum, warps_for


def embed(
    words: Tensor, positions: Tensor, types: Tensor, ids: Tensor, places: Tensor, kinds: Tensor,
    weight: Tensor, bias: Tensor, eps: float, rate: float,
) -> Tensor:  # fmt: skip
    """As `operations.embed`."""
    hidden: Tensor = _Embed.apply(words, positions, types, ids, places, kinds, weight, bias, eps, rate)
    return hidden


@triton.jit
def _summed(words, positions, types, ids, places, kinds, row, columns, inside, width):
    total = tl.load(words + tl.load(ids + row) * width + columns, mask=inside, other=0).to(tl.float32)
    total += tl.load(positions + tl.load(places + row) * width + columns, mask=inside, other=0).to(tl.float32)
    return total + tl.load(types + tl.load(kinds + row) * width + columns, mask=inside, other=0).to(tl.float32)


@triton.jit(do_not_specialize=["seed"])
def embed_forward(
    words, positions, types, ids, places, kinds, weight, bias, hidden, means, spreads, seed, width, eps, scale,
    DROPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for each token."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    total = _summed(words, positions, types, ids, places, kinds, row, columns, inside, width)
    mean, spread, centred = centre(total, inside, width, eps)
    value = centred * spread * tl.load(weight + columns, mask=inside, other=0).to(tl.float32)
    value += tl.load(bias + columns, mask=inside, other=0).to(tl.float32)
    if DROPPED > 0:
        value = tl.where(kept(seed, row * width + columns, DROPPED), value * scale, 0.0)
    tl.store(hidden + row * width + columns, value.to(hidden.dtype.element_ty), mask=inside)
    tl.store(means + row, mean)
    tl.store(spreads + row, spread)


@triton.jit(do_not_specialize=["seed"])
def embed_backward(
    words, positions, types, ids, places, kinds, weight, means, spreads, upstreams, of_sum, of_weight, of_bias, seed, rows, width, scale,
    DROPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for every so many tokens; the sums are gathered again."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    factor = tl.load(weight + columns, mask=inside, other=0).to(tl.float32)
    weight_slope = tl.zeros((BLOCK,), dtype=tl.float32)
    bias_slope = tl.zeros((BLOCK,), dtype=tl.float32)
    for row_number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.to_tensor(row_number).to(tl.int64)
        spread = tl.load(spreads + row)
        total = _summed(words, positions, types, ids, places, kinds, row, columns, inside, width)
        normal = tl.where(inside, (total - tl.load(means + row)) * spread, 0.0)
        upstream = tl.load(upstreams + row * width + columns, mask=inside, other=0).to(tl.float32)
        if DROPPED > 0:
            upstream = tl.where(kept(seed, row * width + columns, DROPPED), upstream * scale, 0.0)
        weight_slope += upstream * normal
        bias_slope += upstream
        slope = slope_of_sum(upstream, factor, normal, spread, width)
        tl.store(of_sum + row * width + columns, slope.to(of_sum.dtype.element_ty), mask=inside)
    tl.store(of_weight + tl.program_id(0) * width + columns, weight_slope, mask=inside)
    tl.store(of_bias + tl.program_id(0) * width + columns, bias_slope, mask=inside)


class _Embed(Function):
    @staticmethod
    def forward(
        ctx: Any, words: Tensor, positions: Tensor, types: Tensor, ids: Tensor, places: Tensor, kinds: Tensor,
        weight: Tensor, bias: Tensor, eps: float, rate: float,
    ) -> Tensor:  # fmt: skip
        words, positions, types = words.contiguous(), positions.contiguous(), types.contiguous()
        rows, width = len(ids), words.shape[1]
        steps, scale = dropped_steps(rate)
        seed, block = draw_seed(rate), triton.next_power_of_2(width)
        hidden = words.new_empty(rows, width)
        means, spreads = (torch.empty(rows, dtype=torch.float32, device=words.device) for _ in range(2))
        indices = tuple(index.contiguous() for index in (ids, places, kinds))
        if rows:
            embed_forward[(rows,)](
                words, positions, types, *indices, weight, bias, hidden, means, spreads, seed, width, eps, scale,
                DROPPED=steps, BLOCK=block, num_warps=warps_for(block, words.element_size()),
            )  # fmt: skip
        ctx.save_for_backward(words, positions, types, *indices, weight, means, spreads)
        ctx.seed, ctx.steps, ctx.scale, ctx.bias_dtype = seed, steps, scale, bias.dtype
        return hidden

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        *tables, ids, places, kinds, weight, means, spreads = ctx.saved_tensors
        upstream = upstream.contiguous()
        rows, width = upstream.shape
        programs, block = max(1, min(PROGRAMS, rows)), triton.next_power_of_2(width)
        of_sum = torch.empty_like(upstream)
        of_weight, of_bias = (torch.zeros(programs, width, dtype=torch.float32, device=upstream.device) for _ in range(2))
        if rows:
            embed_backward[(programs,)](
                *tables, ids, places, kinds, weight, means, spreads, upstream, of_sum, of_weight, of_bias, ctx.seed, rows,
                width, ctx.scale, DROPPED=ctx.steps, BLOCK=block, num_warps=warps_for(block, upstream.element_size()),
            )  # fmt: skip
        of_tables = [
            torch.ops.aten.embedding_dense_backward(of_sum, index, len(table), -1, False)
            for table, index in zip(tables, (ids, places, kinds), strict=True)
        ]
        return *of_tables, None, None, None, of_weight.sum(0).to(weight.dtype), of_bias.sum(0).to(ctx.bias_dtype), None, None
