"""The loss over the vocabulary without all scores at once, for a CPU: rows of targets in chunks, gradients in the same pass.

Scores of 10,000 targets over 50,265 words are 2 GB, and torch keeps them twice. Here one chunk of them is alive at a time; it becomes its
own gradient in place, and only the gradients of what goes in are kept for the backward pass.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_CHUNK_SCORES = 1 << 24
"""Scores alive at a time: 64 MB in fp32."""


def chunked_target_loss(hidden: Tensor, words: Tensor, bias: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """As `operations.target_loss`."""
    loss: Tensor = _ChunkedTargetLoss.apply(hidden, words, bias, targets, z_loss)  # type: ignore[no-untyped-call]
    return loss


class _ChunkedTargetLoss(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, words: Tensor, bias: Tensor, targets: Tensor, z_loss: float) -> Tensor:
        precision = torch.promote_types(hidden.dtype, torch.float32)
        types = (hidden.dtype, words.dtype, bias.dtype)
        hidden, words, bias = (tensor.detach().to(precision) for tensor in (hidden, words, bias))
        total = torch.zeros((), dtype=torch.float64)
        wanted = any(ctx.needs_input_grad)
        of_hidden, of_words, of_bias = (torch.empty_like(tensor) if wanted else tensor for tensor in (hidden, words, bias))
        size = max(1, _CHUNK_SCORES // len(words))
        for begin in range(0, max(len(hidden), 1), size):
            rows, asked = hidden[begin : begin + size], targets[begin : begin + size, None]
            scores = torch.addmm(bias, rows, words.t())
            log_z = scores.logsumexp(-1, keepdim=True)
            total += (log_z - scores.gather(1, asked) + z_loss * log_z.square()).sum(dtype=torch.float64)
            if wanted:
                slopes = scores.sub_(log_z).exp_().mul_(1 + 2 * z_loss * log_z)
                slopes.scatter_add_(1, asked, torch.full_like(log_z, -1.0))
                torch.mm(slopes, words, out=of_hidden[begin : begin + size])
                kept = float(begin > 0)  # at first what lies there does not count
                torch.addmm(of_words, slopes.t(), rows, beta=kept, out=of_words)
                torch.add(slopes.sum(0), of_bias, out=of_bias) if begin else torch.sum(slopes, 0, out=of_bias)
        ctx.gradients = (of_hidden, of_words, of_bias)
        ctx.types = types
        return total.to(precision)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        if ctx.gradients is None:
            raise RuntimeError("the chunked loss can be gone back through once: its gradients are scaled where they lie")
        of_hidden, of_words, of_bias = (gradient.mul_(upstream).to(dtype) for gradient, dtype in zip(ctx.gradients, ctx.types, strict=True))
        ctx.gradients = None
        return of_hidden, of_words, of_bias, None, None
