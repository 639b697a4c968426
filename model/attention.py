"""Attention over rows that lie end to end: one function, an implementation for each kind of machine. Rows never attend to each other."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from remask.model.packing import Packing


def attend(queries: Tensor, keys: Tensor, values: Tensor, packing: Packing, dropout: float) -> Tensor:
    """(tokens, heads, width) each -> (tokens, heads, width), every token over its own row.

    Rows of one length are contiguous, so each group is a view without a copy; the result is gathered once.
    """
    parts = []
    for group in packing.groups:
        end = group.begin + group.rows * group.length
        shape = (group.rows, group.length, *queries.shape[1:])
        q, k, v = (tensor[group.begin : end].view(shape).transpose(1, 2) for tensor in (queries, keys, values))
        parts.append(scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose(1, 2).reshape(-1, *queries.shape[1:]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
