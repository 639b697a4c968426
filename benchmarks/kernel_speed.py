"""Each fused operation next to plain torch on a real GPU, forward and backward, in bf16 at the papers' widths."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from remask.benchmarks.kernel_launches import WIDTHS
from remask.benchmarks.record import Table
from remask.model.kernels.choose import build_operations, choose_kernels, look_around
from remask.model.operations import REFERENCE
from remask.model.optimizers import Lamb, adamw

_TOKENS, _TARGETS, _VOCABULARY = 16384, 2457, 50265


def _cases(width: int) -> dict[str, tuple[str, list[Tensor], tuple[Any, ...]]]:
    """Operation -> its name in the set, tensors and numbers; the tensors that are floating point get gradients."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device="cuda") * 0.1

    def index(bound: int, size: int) -> Tensor:
        return torch.randint(0, bound, (size,), device="cuda")

    rows = [random(_TOKENS, width), random(_TOKENS, width), random(width), random(width)]
    tables = [random(_VOCABULARY, width), random(512, width), random(2, width)]
    indices = [index(_VOCABULARY, _TOKENS), index(512, _TOKENS), index(2, _TOKENS)]
    scores = [random(_TARGETS, width), random(_VOCABULARY, width), random(_VOCABULARY), index(_VOCABULARY, _TARGETS)]
    return {
        "linear + bias + GELU": ("linear_gelu", [rows[0], random(4 * width, width), random(4 * width)], (False,)),
        "dropout + residual + LayerNorm": ("add_norm", rows, (1e-12, 0.1)),
        "embedding": ("embed", [*tables, *indices, random(width), random(width)], (1e-12, 0.1)),
        "head": ("target_loss", scores, (0.0,)),
    }


def _milliseconds(operation: Callable[..., Any], tensors: list[Tensor], rest: tuple[Any, ...]) -> float:
    """Of both passes, as Triton's own benchmark measures it: after warming up, with the cache emptied, the median."""
    import triton.testing

    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]

    def both_passes() -> None:
        made = operation(*leaves, *rest)
        result = made[1] if isinstance(made, tuple) else made
        result.backward(torch.ones_like(result))

    return float(triton.testing.do_bench(both_passes, grad_to_none=[leaf for leaf in leaves if leaf.requires_grad], return_mode="median"))


def _step_milliseconds(make: Callable[..., torch.optim.Optimizer]) -> float:
    """Of a step over 400 weights of 2^18 values each."""
    import triton.testing

    weights = [torch.randn(2**18, device="cuda", requires_grad=True) for _ in range(400)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    made = make(weights, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
    return float(triton.testing.do_bench(made.step, return_mode="median"))


def measure() -> list[dict[str, Any]]:
    """A row for each width and operation, and one for each optimizer."""
    choices = choose_kernels(look_around())
    fused = build_operations(choices)
    rows = []
    for name, plain_optimizer in (("adamw", adamw), ("lamb", Lamb)):
        ours, plain = _step_milliseconds(choices[name].load()), _step_milliseconds(plain_optimizer)
        rows.append({"operation": f"{name}, 105 million weights", "width": 0, "fused_ms": ours, "torch_ms": plain, "ratio": plain / ours})
    for width in WIDTHS:
        for name, (field, tensors, rest) in _cases(width).items():
            ours, plain = (_milliseconds(getattr(operations, field), tensors, rest) for operations in (fused, REFERENCE))
            rows.append({"operation": name, "width": width, "fused_ms": ours, "torch_ms": plain, "ratio": plain / ours})
    return rows


def speed_table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        title=f"Measured on {torch.cuda.get_device_name()}",
        columns=("operation", "width", "times plain torch's speed"),
        rows=[[row["operation"], str(row["width"]), f"{row['ratio']:.2f}x"] for row in rows],
        note="Forward and backward pass in bf16, of an optimizer a step; medians.",
    )
