"""How many bytes each operation must move, fused and as the chain of torch's own kernels, in passes over a tensor of its full size.

A pass is one read or one write of every value, in bf16; a mask of bytes is half a pass, fp32 two. Weights, biases and statistics of rows
are left out: they are as many as a row has, or less. So is what matrix products read. On a GPU that is bound by memory the ratio is the
most that fusing can gain. Masks are made where the rows are, so nothing is moved for them that was not moved before.
"""

from dataclasses import dataclass
from typing import Any

from remask.benchmarks.record import Table

_MASK, _FP32 = 0.5, 2.0


_TOKENS, _WIDTH, _FFN, _TARGETS, _VOCABULARY, _WEIGHTS = 16384, 1024, 4096, 2457, 50265, 355_359_744
"""Of the bytes in the table: 32 rows of 512 with 15% masked, RoBERTa-large."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One operation and pass, with what is read and written in each step."""

    operation: str
    values: int = _TOKENS * _WIDTH
    """In one pass."""
    bytes_a_value: int = 2
    fused: dict[str, float]
    unfused: dict[str, float]

    @property
    def row(self) -> dict[str, Any]:
        fused, unfused = sum(self.fused.values()), sum(self.unfused.values())
        size = self.values * self.bytes_a_value
        return {
            "operation": self.operation,
            "fused_passes": fused,
            "unfused_passes": unfused,
            "fused_bytes": round(fused * size),
            "unfused_bytes": round(unfused * size),
            "most_gain": unfused / fused if fused else None,
        }


CHAINS = (
    Chain(
        operation="bias + GELU, forward (torch adds the bias inside the product)",
        values=_TOKENS * _FFN,
        fused={"read x": 1, "write y": 1},
        unfused={"gelu: read": 1, "gelu: write y": 1},
    ),
    Chain(
        operation="bias + GELU, backward",
        values=_TOKENS * _FFN,
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
        operation="head: scores, bias, cross-entropy, forward",
        values=_TARGETS * _VOCABULARY,
        fused={},
        unfused={"product: write": 1, "fp32: read": 1, "fp32: write": _FP32, "log softmax: read": _FP32, "log softmax: write": _FP32},
    ),
    Chain(
        operation="head, backward (ours makes the scores again: half as much arithmetic on top)",
        values=_TARGETS * _VOCABULARY,
        fused={"write slopes of a chunk": 1, "products: read slopes twice": 2, "bias: read slopes": 1},
        unfused={
            "loss: write": _FP32, "log softmax: read both": 2 * _FP32, "log softmax: write": _FP32, "bf16: read": _FP32, "bf16: write": 1,
            "products: read twice": 2, "bias: read": 1,
        },
    ),
    Chain(
        operation="AdamW (torch's fused form moves as little)",
        values=_WEIGHTS,
        bytes_a_value=4,
        fused={"read weight, gradient, mean, square": 4, "write weight, mean, square": 3},
        unfused={"read weight, gradient, mean, square": 4, "write weight, mean, square": 3},
    ),
    Chain(
        operation="LAMB (next to torch's foreach functions)",
        values=_WEIGHTS,
        bytes_a_value=4,
        fused={
            "read weight, gradient, mean, square": 4, "write mean, square, update": 3,
            "read weight, update": 2, "write weight": 1,
        },
        unfused={
            "mean: read two, write": 3, "square: scale, then add": 5, "root: divide, root, eps": 6, "update: divide": 2,
            "update: divide by the root": 3, "decay: read two, write": 3, "norms: read two": 2, "scale: read, write": 2,
            "weight: read two, write": 3,
        },
    ),
)  # fmt: skip


def traffic_table() -> Table:
    cells = []
    for row in (chain.row for chain in CHAINS):
        gain = f"{row['most_gain']:.1f}x" if row["most_gain"] else "all"
        passes, size = ([f"{row[f'{form}_passes']:g}", f"{row[f'{form}_bytes'] / 1e6:,.0f}"] for form in ("fused", "unfused"))
        cells.append([row["operation"], *passes, *size, gain])
    return Table(
        title="What each operation must move",
        columns=("operation", "fused passes", "MB", "torch's passes", "torch's MB", "at most"),
        rows=cells,
        note="Passes over its tensors and bytes for 32 rows of 512 in RoBERTa-large, next to torch's own chain of kernels. Computed, not "
        "measured: the most that fusing can gain on a GPU that is bound by memory.",
    )
