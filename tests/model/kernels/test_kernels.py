"""Every kernel against its plain torch reference: values and all gradients, in three precisions, over awkward shapes."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from remask.model import operations
from remask.model.kernels import dropping, embedding, gelu, head, norm

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
PRECISIONS = list(TOLERANCE)
Break = Callable[[ModuleType, str, str], ModuleType]


def check(fused: Callable[..., Any], plain: Callable[..., Any], values: list[Tensor], rest: tuple[Any, ...], device: str) -> None:
    """The fused form in the values' own precision against the plain one in fp32: relative to the largest value of each result."""
    dtype = values[0].dtype
    mine = [value.to(device).requires_grad_(value.is_floating_point()) for value in values]
    others = [value.detach().cpu().float().requires_grad_() if value.is_floating_point() else value.cpu() for value in values]
    found, wanted = fused(*mine, *rest), plain(*others, *rest)
    found, wanted = (made if isinstance(made, tuple) else (made,) for made in (found, wanted))
    upstreams = [torch.randn(other.shape) for other in wanted]
    torch.autograd.backward(found, [upstream.to(device, result.dtype) for upstream, result in zip(upstreams, found, strict=True)])
    torch.autograd.backward(wanted, upstreams)
    pairs = list(zip(found, wanted, strict=True))
    pairs += [(value.grad, other.grad) for value, other in zip(mine, others, strict=True) if value.is_floating_point()]
    assert len(pairs) > len(found)
    for number, (result, other) in enumerate(pairs):
        assert result is not None and other is not None and result.shape == other.shape
        scale = float(other.abs().max()) if other.numel() else 0.0
        difference = (result.detach().cpu().float() - other.detach()).abs().max().item() if other.numel() else 0.0
        assert difference <= TOLERANCE[dtype] * max(scale, 1e-3), f"result {number}: {difference:.2g} of {scale:.2g}"


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(sum(sum(shape) for shape in shapes))
    return [torch.randn(shape).to(dtype) for shape in shapes]


SHAPES = [(1, 1), (1, 64), (5, 7), (70, 33), (3, 4096), (2, 8192), (0, 16)]


def gelu_case(rows: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    x, bias = drawn((rows, width), (width,), dtype=dtype)
    return [x, bias]


def bias_gelu(module: Any) -> Callable[..., Tensor]:
    return lambda x, bias, tanh: module._BiasGelu.apply(x, bias, tanh)


def plain_bias_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    return torch.nn.functional.gelu(x + bias, approximate="tanh" if tanh else "none")


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_bias_gelu(rows: int, width: int, dtype: torch.dtype, tanh: bool, device: str) -> None:
    check(bias_gelu(gelu), plain_bias_gelu, gelu_case(rows, width, dtype), (tanh,), device)


def test_linear_gelu_is_the_operation(device: str) -> None:
    check(gelu.linear_gelu, operations.linear_gelu, drawn((9, 5), (12, 5), (12,), dtype=torch.float32), (False,), device)


@pytest.mark.parametrize(("right", "wrong"), [("0.134145", "0.13"), ("total += slope", "total += 0.99 * slope"), ("0.044715", "0.04")])
def test_a_broken_gelu_is_noticed(right: str, wrong: str, broken: Break, device: str) -> None:
    with pytest.raises(AssertionError, match="result"):
        check(bias_gelu(broken(gelu, right, wrong)), plain_bias_gelu, gelu_case(20, 33, torch.float32), (True,), device)


def norm_case(rows: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    return drawn((rows, width), (rows, width), (width,), (width,), dtype=dtype)


@pytest.mark.parametrize("form", ["pre", "post"])
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("rows", "width"), [shape for shape in SHAPES if shape[1] > 1])
def test_add_norm(rows: int, width: int, dtype: torch.dtype, form: str, device: str) -> None:
    """Pre-norm goes on with both results, post-norm with the normalised one only."""
    pick = slice(0, 2) if form == "pre" else slice(1, 2)
    fused, plain = (lambda *args, op=op: op(*args)[pick] for op in (norm.add_norm, operations.add_norm))
    check(fused, plain, norm_case(rows, width, dtype), (1e-5, 0.0), device)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("normal * (tl.sum(slope * normal, 0) / width)", "0 * normal"), ("bias_slope += upstream", "bias_slope += 0.99 * upstream"),
     ("if HAS_TOTAL:", "if not HAS_TOTAL:"), ("/ width + eps)", "/ width + 2 * eps)")],
)  # fmt: skip
def test_a_broken_norm_is_noticed(right: str, wrong: str, broken: Break, device: str) -> None:
    with pytest.raises(AssertionError, match="result"):
        check(broken(norm, right, wrong).add_norm, operations.add_norm, norm_case(20, 33, torch.float32), (1e-2, 0.0), device)


def embed_case(tokens: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    tables = drawn((40, width), (9, width), (2, width), dtype=dtype)
    indices = [torch.randint(0, rows, (tokens,)) for rows in (40, 9, 2)]
    return [*tables, *indices, *drawn((width,), (width,), dtype=dtype)]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (5, 7), (70, 33), (3, 4096), (2, 8192), (0, 16)])
def test_embed(tokens: int, width: int, dtype: torch.dtype, device: str) -> None:
    check(embedding.embed, operations.embed, embed_case(tokens, width, dtype), (1e-5, 0.0), device)


@pytest.mark.parametrize(
    ("right", "wrong"), [("weight_slope += upstream * normal", "weight_slope += upstream"), ("tl.load(kinds + row)", "0")]
)
def test_a_broken_embedding_is_noticed(right: str, wrong: str, broken: Break, device: str) -> None:
    with pytest.raises(AssertionError, match="result"):
        check(broken(embedding, right, wrong).embed, operations.embed, embed_case(20, 33, torch.float32), (1e-5, 0.0), device)


def head_case(targets: int, width: int, words: int, dtype: torch.dtype) -> list[Tensor]:
    hidden, table, bias = drawn((targets, width), (words, width), (words,), dtype=dtype)
    return [hidden * width**-0.5, table, bias, torch.randint(0, words, (targets,))]


@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("targets", "width", "words"), [(1, 8, 5), (65, 33, 300), (7, 64, 2500), (2, 4096, 70), (2, 8192, 70), (0, 8, 50)])
def test_target_loss(targets: int, width: int, words: int, dtype: torch.dtype, z_loss: float, device: str) -> None:
    check(head.target_loss, operations.target_loss, head_case(targets, width, words, dtype), (z_loss,), device)


@pytest.mark.parametrize("share", [0.0, 0.15, 1.0])
def test_target_loss_of_gathered_rows(share: float, device: str) -> None:
    """No targets, some, and all of the rows."""
    hidden, words, bias, _ = head_case(60, 20, 130, torch.float32)
    rows = torch.randperm(60)[: int(share * 60)].sort().values
    targets = torch.randint(0, 130, (len(rows),))

    def plain(hidden: Tensor, rows: Tensor, words: Tensor, bias: Tensor, targets: Tensor, z_loss: float) -> Tensor:
        return operations.target_loss(hidden[rows], words, bias, targets, z_loss)

    check(head.gathered_target_loss, plain, [hidden, rows, words, bias, targets], (0.0,), device)


def test_slopes_come_chunk_by_chunk(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "CHUNK", 256)
    check(head.target_loss, operations.target_loss, head_case(9, 16, 700, torch.float32), (0.0,), device)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("total * tl.exp(largest - larger)", "total"), ("(1 + 2 * z_loss * normaliser)", "(1 + z_loss * normaliser)"),
     ("slopes.t() @ gathered", "slopes.t() @ (0.99 * gathered)"), (", scores, float(\"-inf\"))", ", scores, 0.0)")],
)  # fmt: skip
def test_a_broken_head_is_noticed(right: str, wrong: str, broken: Break, device: str) -> None:
    with pytest.raises(AssertionError, match="result"):
        check(broken(head, right, wrong).target_loss, operations.target_loss, head_case(20, 16, 300, torch.float32), (0.01,), device)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_has_its_rate_and_one_mask_for_both_passes(rate: float, device: str) -> None:
    torch.manual_seed(3)
    x, residual = torch.ones(200, 100, device=device, requires_grad=True), torch.zeros(200, 100, device=device)
    weight, bias = torch.ones(100, device=device), torch.zeros(100, device=device)
    total, _ = norm.add_norm(x, residual, weight, bias, 1e-5, rate)
    share = (total == 0).double().mean().item()
    assert abs(share - rate) < 5 * (rate * (1 - rate) / x.numel()) ** 0.5
    torch.testing.assert_close(total[total != 0], torch.full_like(total[total != 0], 1 / (1 - rate)))
    total.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, total.detach())
    again, _ = norm.add_norm(x, residual, weight, bias, 1e-5, rate)
    assert ((again == 0) != (total == 0)).double().mean() > rate * (1 - rate), "the mask repeats"
    torch.manual_seed(3)
    same, _ = norm.add_norm(x, residual, weight, bias, 1e-5, rate)
    assert torch.equal(same, total)


def test_embedding_drops_out_with_one_mask_for_both_passes(device: str) -> None:
    tables = [value.to(device).requires_grad_() for value in embed_case(50, 64, torch.float32)[:3]]
    indices = [torch.randint(0, len(table), (50,), device=device) for table in tables]
    bias = torch.zeros(64, device=device, requires_grad=True)
    hidden = embedding.embed(*tables, *indices, torch.ones(64, device=device), bias, 1e-5, 0.3)
    hidden.sum().backward()
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad * 0.7, (hidden != 0).sum(0).float())


RATE = 0.3


def check_dropout_of_add_norm(module: Any, device: str) -> None:
    """All results and gradients with the mask that the same seed gives to ones."""
    values = norm_case(40, 33, torch.float32)

    def masked(op: Any, *args: Tensor) -> Any:
        torch.manual_seed(8)
        return op(*args, 1e-3, RATE)

    ones, zeros = torch.ones(40, 33, device=device), torch.zeros(40, 33, device=device)
    kept = masked(module.add_norm, ones, zeros, values[2].to(device), values[3].to(device))[0].cpu() != 0
    assert 0.6 < kept.double().mean() < 0.8 and not torch.equal(kept[0], kept[1])

    def plain(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return operations.add_norm(x * kept / (1 - RATE), residual, weight, bias, 1e-3, 0.0)

    check(lambda *args: masked(module.add_norm, *args), plain, values, (), device)


def check_dropout_of_embedding(module: Any, device: str) -> None:
    values = embed_case(40, 33, torch.float32)

    def masked(*args: Tensor) -> Any:
        torch.manual_seed(8)
        return module.embed(*args, 1e-3, RATE)

    flat = [*(value.to(device) for value in values[:6]), torch.zeros(33, device=device), torch.ones(33, device=device)]
    kept = masked(*flat).cpu() != 0
    assert 0.6 < kept.double().mean() < 0.8 and not torch.equal(kept[0], kept[1]), "result of the rows: one mask"

    def plain(*args: Tensor) -> Tensor:
        return operations.embed(*args, 1e-3, 0.0) * kept / (1 - RATE)  # type: ignore[arg-type]

    check(masked, plain, values, (), device)


def test_dropout_has_the_gradients_of_its_mask(device: str) -> None:
    check_dropout_of_add_norm(norm, device)
    check_dropout_of_embedding(embedding, device)


@pytest.mark.parametrize(
    ("module", "right", "wrong"),
    [
        (
            norm,
            "tl.store(of_residual + places, slope.to",
            "tl.store(of_residual + places, tl.where(kept(seed, places, DROPPED), slope, 0.0).to",
        ),
        (norm, "slope * scale, 0.0)", "slope, 0.0)"),
        (embedding, "upstream = tl.where(kept", "ignored = tl.where(kept"),
        (embedding, "kept(seed, row * width + columns, DROPPED)", "kept(seed, columns, DROPPED)"),
    ],
)
def test_broken_dropout_is_noticed(module: Any, right: str, wrong: str, broken: Break, device: str) -> None:
    with pytest.raises(AssertionError, match=r"result|one mask"):
        (check_dropout_of_add_norm if module is norm else check_dropout_of_embedding)(broken(module, right, wrong), device)


def test_transposed_tensors_give_the_same(device: str) -> None:
    """Of inputs and of the gradients that come back: no kernel may take strides for granted."""
    x, residual, weight, bias = (value.to(device) for value in norm_case(24, 24, torch.float32))
    tables = [value.to(device) for value in embed_case(24, 24, torch.float32)]
    cases: list[tuple[Callable[..., Any], list[Tensor], tuple[Any, ...]]] = [
        (bias_gelu(gelu), [x, bias], (False,)),
        (lambda *args: norm.add_norm(*args)[1], [x, residual, weight, bias], (1e-5, RATE)),
        (embedding.embed, tables, (1e-5, RATE)),
    ]
    upstream = torch.randn(24, 24, device=device)
    for operation, values, rest in cases:
        results = []
        for turn in (lambda tensor: tensor, lambda tensor: tensor.t().contiguous().t()):
            leaves = [value.clone().requires_grad_(value.is_floating_point()) for value in values]
            torch.manual_seed(5)
            made = operation(*(turn(leaf) if leaf.ndim == 2 else leaf for leaf in leaves), *rest)
            made.backward(turn(upstream))
            results.append([made.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
        assert len(results[0]) > 2
        for straight, turned in zip(*results, strict=True):
            torch.testing.assert_close(straight, turned)


@triton.jit
def _draw(out, seed, first, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    places = first + tl.arange(0, SIZE).to(tl.int64)
    tl.store(out + tl.arange(0, SIZE), dropping.kept(seed, places, 1 << 31).to(tl.int8))


def test_places_have_64_bits(device: str) -> None:
    """Masks 2^32 places apart are as different as any others, and so are those of two seeds that differ in their upper half."""

    def draw(seed: int, first: int) -> Tensor:
        out = torch.empty(1024, dtype=torch.int8, device=device)
        _draw[(1,)](out, seed, first, SIZE=1024)
        return out

    masks = [draw(5, 2**33), draw(5, 2**33 + 2**32), draw(5, 0), draw(5 + 2**40, 0)]
    assert torch.equal(masks[0], draw(5, 2**33))
    for i, one in enumerate(masks):
        assert 400 < int(one.sum()) < 624
        assert all(400 < int((one != other).sum()) < 624 for other in masks[i + 1 :])


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 80), width=st.integers(8, 300), tanh=st.booleans())
def test_random_shapes(rows: int, width: int, tanh: bool, device: str) -> None:
    check(bias_gelu(gelu), plain_bias_gelu, gelu_case(rows, width, torch.float32), (tanh,), device)
    check(norm.add_norm, operations.add_norm, norm_case(rows, width, torch.float32), (1e-3, 0.0), device)
    check(embedding.embed, operations.embed, embed_case(rows, width, torch.float32), (1e-3, 0.0), device)
    check(head.target_loss, operations.target_loss, head_case(rows, width, 2 * width, torch.float32), (0.0,), device)
