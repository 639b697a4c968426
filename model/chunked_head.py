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
        wanted = any(ctx.needs_input_grad)
        table, biases = words.detach(), bias.detach()
        gradients = [torch.zeros_like(tensor) if wanted else tensor.new_empty(0) for tensor in (words, bias)]
        of_hidden = torch.empty_like(hidden) if wanted else hidden.new_empty(0)
        precision = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=torch.float64)
        chunk = max(1, _CHUNK_SCORES // len(words))
        for begin in range(0, len(hidden), chunk):
            rows, asked = hidden.detach()[begin : begin + chunk], targets[begin : begin + chunk, None]
            scores = torch.addmm(biases, rows, table.t()).to(precision)
            log_z = scores.logsumexp(-1, keepdim=True)
            total += (log_z - scores.gather(1, asked) + z_loss * log_z.square()).sum(dtype=torch.float64)
            if wanted:
                slope = scores.sub_(log_z).exp_()
                if z_loss:
                    slope.mul_(1 + 2 * z_loss * log_z)
                slope.scatter_add_(1, asked, torch.full_like(log_z, -1.0))
                slope = slope.to(hidden.dtype)
                torch.mm(slope, table, out=of_hidden[begin : begin + chunk])
                gradients[0].addmm_(slope.t(), rows)
                gradients[1] += slope.sum(0)
        ctx.save_for_backward(of_hidden, *gradients)
        return total.to(precision)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        of_hidden, of_words, of_bias = (gradient * upstream.to(gradient.dtype) for gradient in ctx.saved_tensors)
        return of_hidden, of_words, of_bias, None, None
