"""Attention without padding against a padded reference, and the GPU libraries' calls against their own signatures."""

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from remask.model import attention
from remask.model.attention import BACKENDS, attend, choose_attention
from remask.model.packing import pack


def padded_reference(queries: Tensor, keys: Tensor, values: Tensor, edges: Tensor) -> Tensor:
    """One big softmax under a mask that lets every token see its own span only."""
    span = torch.searchsorted(edges[1:], torch.arange(len(queries)), right=True)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / queries.shape[-1] ** 0.5
    weights = scores.masked_fill(span[:, None] != span[None, :], -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


@pytest.mark.parametrize("lengths", [[5], [4, 4, 4], [3, 9, 1, 9, 2, 3]])
def test_grouped_attention_equals_the_padded_reference(lengths: list[int]) -> None:
    edges = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    packing = pack(edges)
    found, wanted = ([torch.randn(int(edges[-1]), 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)] for _ in range(2))
    for mine, other in zip(found, wanted, strict=True):
        other.data = mine.data[packing.places]
    mixed = attend(*found, packing, 0.0)[packing.places]
    reference = padded_reference(*wanted, edges)
    torch.testing.assert_close(mixed, reference)
    upstream = torch.randn_like(mixed)
    mixed.backward(upstream)
    reference.backward(upstream)
    for mine, other in zip(found, wanted, strict=True):
        assert mine.grad is not None and other.grad is not None and other.grad.abs().max() > 0.01
        torch.testing.assert_close(mine.grad[packing.places], other.grad)


@pytest.mark.parametrize("backend", ["flash-attn", "torch-varlen"])
def test_gpu_kernels_are_told_where_spans_begin(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU here: the library's function is replaced by the reference, behind the signature that it really has."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, **options: Any) -> Tensor:
        assert options in ({"dropout_p": 0.0}, {})
        assert cu_q.dtype == cu_k.dtype == torch.int32 and torch.equal(cu_q, cu_k)
        assert max_q == max_k == int(cu_q.diff().max())
        return padded_reference(q, k, v, cu_q)

    if backend == "torch-varlen":
        varlen = pytest.importorskip("torch.nn.attention.varlen")
        inspect.signature(varlen.varlen_attn).bind(*range(7))
        monkeypatch.setattr(varlen, "varlen_attn", kernel)
    else:  # flash-attn's function, by its documentation: (q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, …)
        module = ModuleType("flash_attn")
        module.flash_attn_varlen_func = kernel  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "flash_attn", module)
    packing = pack(torch.tensor([0, 7, 10, 17]))
    q, k, v = (torch.randn(17, 2, 8) for _ in range(3))
    torch.testing.assert_close(BACKENDS[backend](q, k, v, packing, 0.0), BACKENDS["sdpa"](q, k, v, packing, 0.0))


def test_the_backend_follows_device_precision_and_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    half = torch.bfloat16
    monkeypatch.setattr(attention, "find_spec", lambda name: None)
    assert choose_attention("cpu", half, 0.0) == "sdpa"
    assert choose_attention("cuda", torch.float32, 0.0) == "sdpa"
    assert choose_attention("cuda", half, 0.0) == "torch-varlen"
    assert choose_attention("cuda", half, 0.1) == "sdpa"
    monkeypatch.setattr(attention, "find_spec", lambda name: object())
    assert choose_attention("cuda", half, 0.1) == "flash-attn"
