"""The loss over the vocabulary: target rows gathered, multiplied with the table, biased and compared, never with all scores in memory.

Forward, a program takes a block of targets and a stretch of the vocabulary and keeps their running maximum and sum. Backward, the slopes of
one chunk of the vocabulary are made the same way and given to two matrix products; the table's gradient comes chunk by chunk, in the same
order every time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

STRETCH = 2048
"""Words that one program of the forward pass goes through."""
CHUNK = 8192
"""Words whose slopes are alive at a time in the backward pass."""


def target_loss(hidden: Tensor, words: Tensor, bias: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """As `operations.target_loss`."""
    loss: Tensor = _TargetLoss.apply(hidden, None, words, bias, targets, z_loss)
    return loss


def gathered_target_loss(hidden: Tensor, rows: Tensor, words: Tensor, bias: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """The same where the targets are only some of the rows, `hidden[rows]`, which is not made."""
    loss: Tensor = _TargetLoss.apply(hidden, rows, words, bias, targets, z_loss)
    return loss


def tile_for(bytes_a_value: int) -> dict[str, int]:
    """Targets, words and width that a program multiplies at once; less of fp32, which has no tensor cores and needs the registers."""
    if bytes_a_value == 2:
        return {"TARGETS": 64, "WORDS": 128, "INNER": 32, "num_warps": 4}
    return {"TARGETS": 64, "WORDS": 64, "INNER": 16, "num_warps": 8}


def _widens(hidden: Tensor) -> bool:
    """Triton's interpreter (3.9) multiplies bf16 wrongly, bit patterns for numbers, so there it is widened first; a GPU does it right."""
    return bool(triton.knobs.runtime.interpret) and hidden.dtype == torch.bfloat16


@triton.jit
def _scores(
    hidden, words, bias, rows, vocabulary, real, width, vocab_size,
    TARGETS: tl.constexpr, WORDS: tl.constexpr, INNER: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Of a block of targets over a block of words, in fp32; -inf behind the vocabulary."""
    scores = tl.zeros((TARGETS, WORDS), dtype=tl.float32)
    for begin in range(0, width, INNER):
        inner = begin + tl.arange(0, INNER)
        left = tl.load(hidden + rows[:, None] * width + inner[None, :], mask=real[:, None] & (inner[None, :] < width), other=0)
        right = tl.load(
            words + vocabulary[None, :] * width + inner[:, None],
            mask=(vocabulary[None, :] < vocab_size) & (inner[:, None] < width),
            other=0,
        )
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        scores = tl.dot(left, right, scores, input_precision="ieee")
    scores += tl.load(bias + vocabulary, mask=vocabulary < vocab_size, other=0).to(tl.float32)[None, :]
    return tl.where(vocabulary[None, :] < vocab_size, scores, float("-inf"))


@triton.jit
def head_forward(
    hidden, rows, words, bias, targets, maxima, sums, asked, count, width, vocab_size, stretches,
    GATHERED: tl.constexpr, STRETCH: tl.constexpr, TARGETS: tl.constexpr, WORDS: tl.constexpr, INNER: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """maxima, sums (count, stretches) of each stretch of the vocabulary, and the score of the target itself (count,)."""
    places = tl.program_id(0) * TARGETS + tl.arange(0, TARGETS)
    real = places < count
    taken = tl.load(rows + places, mask=real, other=0) if GATHERED else places.to(tl.int64)
    target = tl.load(targets + places, mask=real, other=0)
    largest = tl.full((TARGETS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((TARGETS,), dtype=tl.float32)
    found = tl.zeros((TARGETS,), dtype=tl.float32)
    first = tl.program_id(1) * STRETCH
    for begin in range(first, tl.minimum(first + STRETCH, vocab_size), WORDS):
        vocabulary = begin + tl.arange(0, WORDS).to(tl.int64)
        scores = _scores(hidden, words, bias, taken, vocabulary, real, width, vocab_size, TARGETS, WORDS, INNER, WIDEN)
        larger = tl.maximum(largest, tl.max(scores, 1))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(scores - larger[:, None]), 1)
        largest = larger
        is_target = vocabulary[None, :] == target[:, None]
        found += tl.sum(tl.where(is_target, scores, 0.0), 1)
        tl.store(asked + places, found, mask=real & (target >= begin) & (target < begin + WORDS))
    tl.store(maxima + places.to(tl.int64) * stretches + tl.program_id(1), largest, mask=real)
    tl.store(sums + places.to(tl.int64) * stretches + tl.program_id(1), total, mask=real)


@triton.jit
def head_slopes(
    hidden, rows, words, bias, targets, log_z, upstream, slopes, count, width, vocab_size, first, chunk, z_loss,
    GATHERED: tl.constexpr, TARGETS: tl.constexpr, WORDS: tl.constexpr, INNER: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """slopes (count, chunk) of the loss by the scores of the words from `first` on."""
    places = tl.program_id(0) * TARGETS + tl.arange(0, TARGETS)
    real = places < count
    taken = tl.load(rows + places, mask=real, other=0) if GATHERED else places.to(tl.int64)
    columns = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    vocabulary = first + columns.to(tl.int64)
    scores = _scores(hidden, words, bias, taken, vocabulary, real, width, vocab_size, TARGETS, WORDS, INNER, WIDEN)
    normaliser = tl.load(log_z + places, mask=real, other=0)
    slope = tl.exp(scores - normaliser[:, None]) * (1 + 2 * z_loss * normaliser)[:, None]
    slope -= tl.where(vocabulary[None, :] == tl.load(targets + places, mask=real, other=0)[:, None], 1.0, 0.0)
    slope *= tl.load(upstream)  # before it is rounded: a loss scale saves what is small
    where = slopes + places.to(tl.int64)[:, None] * chunk + columns[None, :]
    tl.store(where, slope.to(slopes.dtype.element_ty), mask=real[:, None] & (columns[None, :] < chunk))


class _TargetLoss(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, rows: Tensor | None, words: Tensor, bias: Tensor, targets: Tensor, z_loss: float) -> Tensor:
        count, width, vocab_size = len(targets), hidden.shape[1], len(words)
        tile = tile_for(hidden.element_size())
        stretches = triton.cdiv(vocab_size, STRETCH)
        maxima, sums = (torch.empty(count, stretches, dtype=torch.float32, device=hidden.device) for _ in range(2))
        asked = torch.full((count,), torch.nan, dtype=torch.float32, device=hidden.device)  # where a target is no word
        hidden, words = hidden.contiguous(), words.contiguous()
        if count:
            head_forward[(triton.cdiv(count, tile["TARGETS"]), stretches)](
                hidden, targets if rows is None else rows, words, bias, targets, maxima, sums, asked, count, width, vocab_size, stretches,
                GATHERED=rows is not None, STRETCH=STRETCH, WIDEN=_widens(hidden), **tile,
            )  # fmt: skip
        log_z = torch.logsumexp(maxima + sums.log(), 1)
        ctx.save_for_backward(hidden, rows, words, bias, targets, log_z)
        ctx.z_loss = z_loss
        return (log_z - asked + z_loss * log_z.square()).sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, rows, words, bias, targets, log_z = ctx.saved_tensors
        count, width, vocab_size = len(targets), hidden.shape[1], len(words)
        tile = tile_for(hidden.element_size())
        gathered = hidden if rows is None else hidden[rows]
        upstream = upstream.to(torch.float32)
        of_gathered = torch.zeros(count, width, dtype=torch.float32, device=hidden.device)
        of_words, of_bias = torch.zeros_like(words), torch.zeros_like(bias)
        for first in range(0, vocab_size if count else 0, CHUNK):
            chunk = min(CHUNK, vocab_size - first)
            slopes = torch.empty(count, chunk, dtype=hidden.dtype, device=hidden.device)
            head_slopes[(triton.cdiv(count, tile["TARGETS"]), triton.cdiv(chunk, tile["WORDS"]))](
                hidden, targets if rows is None else rows, words, bias, targets, log_z, upstream, slopes, count, width, vocab_size, first,
                chunk, ctx.z_loss, GATHERED=rows is not None, WIDEN=_widens(hidden), **tile,
            )  # fmt: skip
            of_gathered += slopes @ words[first : first + chunk]
            of_words[first : first + chunk] = slopes.t() @ gathered
            of_bias[first : first + chunk] = slopes.sum(0, dtype=torch.float32)
        of_hidden = of_gathered.to(hidden.dtype)
        if rows is not None:
            of_hidden = torch.zeros_like(hidden).index_add_(0, rows, of_hidden)
        return of_hidden, None, of_words, of_bias, None, None
