"""Attention over spans that lie end to end: one function, one implementation for each kind of machine. Spans never attend to each other."""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from remask.model.dropout import attend_with_dropout
from remask.model.packing import Packing

Attend = Callable[[Tensor, Tensor, Tensor, Packing, float], Tensor]


@torch.compiler.disable  # type: ignore[untyped-decorator]  # each mixture of lengths would be compiled anew
def attend(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing, dropout: float) -> Tensor:
    """(tokens, heads, width) each -> (tokens, heads, width), every token over its own span."""
    return BACKENDS[choose_attention(queries.device.type, queries.dtype, dropout)](queries, keys, values, packing, dropout)


def choose_attention(device: str, dtype: torch.dtype, dropout: float) -> str:
    """The fastest that can do it: flash kernels know half precision only, and torch's own has no dropout."""
    if device != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return "sdpa"
    if find_spec("flash_attn") is not None:
        return "flash-attn"
    return "torch-varlen" if dropout == 0 else "sdpa"


def attend_in_groups(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing, dropout: float) -> Tensor:
    """Spans of one length are contiguous, so each group is a view without a copy; the result is gathered once."""
    parts = []
    for group in packing.groups:
        end = group.begin + group.spans * group.length
        shape = (group.spans, group.length, *queries.shape[1:])
        q, k, v = (tensor[group.begin : end].view(shape).transpose(1, 2) for tensor in (queries, keys, values))
        if dropout and queries.device.type == "cpu":
            mixed = attend_with_dropout(q, k, v, dropout)
        else:
            mixed = scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        parts.append(mixed.transpose(1, 2).reshape(-1, *queries.shape[1:]))
    if not parts:
        return values
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_by_flash(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing, dropout: float) -> Tensor:
    from flash_attn import flash_attn_varlen_func

    offsets, longest = packing.span_offsets, packing.longest
    mixed: Tensor = flash_attn_varlen_func(queries, keys, values, offsets, offsets, longest, longest, dropout_p=dropout)
    return mixed


def attend_by_torch_varlen(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing, dropout: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    assert dropout == 0, "torch's kernel has no dropout"  # noqa: S101
    offsets, longest = packing.span_offsets, packing.longest
    mixed = varlen_attn(queries, keys, values, offsets, offsets, longest, longest)
    assert isinstance(mixed, Tensor)  # noqa: S101 (a pair only where more was asked for)
    return mixed


BACKENDS: dict[str, Attend] = {"sdpa": attend_in_groups, "flash-attn": attend_by_flash, "torch-varlen": attend_by_torch_varlen}
