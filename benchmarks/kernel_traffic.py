"""How many bytes each operation must move, fused and as the chain of torch's own kernels, in passes over a tensor of its full size.

A pass is one read or one write of every value, in bf16; a mask of bytes is half a pass, fp32 two. Weights, biases and statistics of rows
are left out: they are as many as a row has, or less. So is what a matrix product reads, which is the same in both. On a GPU that is bound
by memory the ratio is the most that fusing can gain.
"""

from dataclasses import dataclass
from typing import Any

from remask.launcher.tables import format_table

_MASK, _FP32 = 0.5, 2.0


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One operation and pass, with what is read and written in each step."""

    operation: str
    fused: dict[str, float]
    unfused: dict[str, float]

    @property
    def row(self) -> dict[str, Any]:
        fused, unfused = sum(self.fused.values()), sum(self.unfused.values())
        gain = unfused / fused if fused else None
        return {"operation": self.operation, "fused_passes": fused, "unfused_passes": unfused, "most_gain": gain}


CHAINS = (
    Chain(
        operation="bias + GELU, forward",
        fused={"read x": 1, "write y": 1},
        unfused={"bias: read x": 1, "bias: write": 1, "gelu: read": 1, "gelu: write y": 1},
    ),
    Chain(
        operation="bias + GELU, backward",
        fused={"read x": 1, "read dy": 1, "write dx": 1},
        unfused={"gelu: read x": 1, "gelu: read dy": 1, "gelu: write dx": 1, "bias: read dx": 1},
    ),
    Chain(
        operation="dropout + residual + LayerNorm, forward",
        fused={"read x": 1, "read residual": 1, "write sum": 1, "write normed": 1},
        unfused={
            "dropout: read x": 1, "dropout: write": 1, "dropout: write mask": _MASK,
            "sum: read both": 2, "sum: write": 1, "norm: read": 1, "norm: write": 1,
        },
    ),
    Chain(
        operation="dropout + residual + LayerNorm, backward (post-norm)",
        fused={"read sum": 1, "read d normed": 1, "write d residual": 1, "write dx": 1},
        unfused={
            "norm: read sum, d normed": 2, "norm: write": 1, "norm weights: read sum, d normed": 2,
            "dropout: read": 1, "dropout: read mask": _MASK, "dropout: write dx": 1,
        },
    ),
    Chain(
        operation="dropout + residual + LayerNorm, backward (pre-norm)",
        fused={"read sum": 1, "read d normed": 1, "read d sum": 1, "write d residual": 1, "write dx": 1},
        unfused={
            "norm: read sum, d normed": 2, "norm: write": 1, "norm weights: read sum, d normed": 2, "add: read both": 2, "add: write": 1,
            "dropout: read": 1, "dropout: read mask": _MASK, "dropout: write dx": 1,
        },
    ),
    Chain(
        operation="embedding sum + LayerNorm + dropout, forward",
        fused={"gather three": 3, "write": 1},
        unfused={
            "gather three: read": 3, "gather three: write": 3, "two sums: read": 4, "two sums: write": 2,
            "norm: read": 1, "norm: write": 1, "dropout: read": 1, "dropout: write": 1, "dropout: write mask": _MASK,
        },
    ),
    Chain(
        operation="embedding sum + LayerNorm + dropout, backward to the sum",
        fused={"gather three again": 3, "read dy": 1, "write d sum": 1},
        unfused={
            "dropout: read": 1, "dropout: read mask": _MASK, "dropout: write": 1,
            "norm: read sum, dy": 2, "norm: write": 1, "norm weights: read sum, dy": 2,
        },
    ),
    Chain(
        operation="head: scores, bias, cross-entropy, forward (passes over targets x vocabulary)",
        fused={},
        unfused={"product: write": 1, "fp32: read": 1, "fp32: write": _FP32, "log softmax: read": _FP32, "log softmax: write": _FP32},
    ),
    Chain(
        operation="head, backward to the slopes (passes over targets x vocabulary)",
        fused={"write slopes of a chunk": 1, "products: read slopes twice": 2, "bias: read slopes": 1},
        unfused={
            "log softmax: read": _FP32, "log softmax: write": _FP32, "bf16: read": _FP32, "bf16: write": 1,
            "products: read twice": 2, "bias: read": 1,
        },
    ),
    Chain(
        operation="AdamW (passes of fp32 over the weights)",
        fused={"read weight, gradient, mean, square": 4, "write weight, mean, square": 3},
        unfused={
            "decay: read, write": 2, "mean: read two, write": 3, "square: read two, write": 3, "root: read, write": 2,
            "scale and eps: read, write": 4, "divide: read two, write": 3, "weight: read two, write": 3,
        },
    ),
    Chain(
        operation="LAMB (passes of fp32 over the weights)",
        fused={
            "read weight, gradient, mean, square": 4, "write mean, square, update": 3,
            "read weight, update": 2, "write weight": 1,
        },
        unfused={
            "mean: read two, write": 3, "square: read two, write": 3, "root: read, write": 2, "scale and eps: read, write": 4,
            "divide: read two, write": 3, "decay: read two, write": 3, "norms: read two": 2, "scale: read, write": 2,
            "weight: read two, write": 3,
        },
    ),
)  # fmt: skip


def traffic_table() -> str:
    rows = [chain.row for chain in CHAINS]
    gains = [f"{row['most_gain']:.1f}x" if row["most_gain"] else "all" for row in rows]
    cells = [
        [row["operation"], f"{row['fused_passes']:g}", f"{row['unfused_passes']:g}", gain] for row, gain in zip(rows, gains, strict=True)
    ]
    columns = ["operation", "fused passes", "torch's passes", "at most"]
    return format_table(columns, cells, numeric=columns[1:])
