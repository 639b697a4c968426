"""Every kernel with the launch configurations that models of the papers' widths use, for compiling ahead of time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import triton

from remask.model.kernels import embedding, gelu, head, masking, norm, optimizers
from remask.model.kernels.dropping import dropped_steps

WIDTHS = (768, 1024, 2048, 4096)
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
PRECISIONS = tuple(_BYTES)
_ROW = 512
"""Longest row that is masked on the device."""
_STEPS, _ = dropped_steps(0.1)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel as it is launched: the types of its arguments by name, and what is known when it is compiled."""

    kernel: Any
    config: str
    types: dict[str, str]
    """`*bf16` for a pointer, which is aligned to 16 bytes, `i32!` for a number that is a multiple of 16, as widths are; others plain."""
    constants: dict[str, Any]
    warps: int = 4

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


def _named(names: str, kind: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


def launches() -> Iterator[Launch]:
    """All of them."""
    for precision, width in product(PRECISIONS, WIDTHS):
        yield from (_in_precision(launch, precision) for launch in (*_of_width(width), *_of_head(width, _BYTES[precision])))
    for precision in PRECISIONS:  # ALBERT's embedding is narrow and has no dropout
        yield from (_in_precision(launch, precision) for launch in _of_embedding(128, dropped=0))
    yield from _of_optimizers()
    yield from _of_masks()


def _in_precision(launch: Launch, precision: str) -> Launch:
    """The same for activations and weights of another type than bf16, which all are written for here."""
    types = {name: kind.replace("bf16", precision) for name, kind in launch.types.items()}
    of_rows = launch.name.startswith(("add_norm", "embed"))
    warps = norm.warps_for(launch.constants["BLOCK"], _BYTES[precision]) if of_rows else launch.warps
    return replace(launch, config=f"{precision}, {launch.config}", types=types, warps=warps)


def _of_width(width: int) -> Iterator[Launch]:
    forward = {**_named("x bias y", "*bf16"), "width": "i32!"}
    backward = {**_named("x bias upstream of_x", "*bf16"), "of_bias": "*fp32", "rows": "i32", "width": "i32!"}
    for tanh in (False, True):
        constants = {"TANH": tanh, "BLOCK": gelu.BLOCK}
        config = f"width {4 * width}, {'tanh' if tanh else 'exact'}"
        yield Launch(kernel=gelu.gelu_forward, config=config, types=forward, constants=constants)
        yield Launch(kernel=gelu.gelu_backward, config=config, types=backward, constants={**constants, "ROWS": gelu.ROWS})
    for dropped in (_STEPS, 0):
        yield from _of_norm(width, dropped)
        yield from _of_embedding(width, dropped)


def _of_head(width: int, bytes_a_value: int) -> Iterator[Launch]:
    tile: dict[str, Any] = {**head.tile_for(bytes_a_value), "WIDEN": False}
    warps = tile.pop("num_warps")
    common = {
        **_named("hidden words bias", "*bf16"),
        **_named("rows targets", "*i64"),
        **_named("count vocab_size", "i32"),
        "width": "i32!",
    }
    forward = {**common, **_named("maxima sums asked", "*fp32"), "stretches": "i32"}
    slopes = {**common, **_named("log_z upstream", "*fp32"), "slopes": "*bf16", **_named("first chunk", "i32!"), "z_loss": "fp32"}
    for gathered in (False, True):
        config = f"width {width}, tile {tile['TARGETS']} x {tile['WORDS']} x {tile['INNER']}{', gathered' if gathered else ''}"
        constants = {**tile, "GATHERED": gathered}
        yield Launch(kernel=head.head_forward, config=config, types=forward, constants={**constants, "STRETCH": head.STRETCH}, warps=warps)
        yield Launch(kernel=head.head_slopes, config=config, types=slopes, constants=constants, warps=warps)


def _row_kernels(width: int, dropped: int) -> tuple[dict[str, str], dict[str, Any], str]:
    """What kernels of one row a program have in common: scalars, constants, and how the configuration is called."""
    block = triton.next_power_of_2(width)
    scalars = {"seed": "i64" if dropped else "i32", "width": "i32!", "scale": "fp32"}
    told = f"width {width}{'' if dropped else ', no dropout'}"
    return scalars, {"DROPPED": dropped, "BLOCK": block}, told


def _of_norm(width: int, dropped: int) -> Iterator[Launch]:
    scalars, kept, told = _row_kernels(width, dropped)
    statistics = _named("means spreads", "*fp32")
    types = {**_named("x residual weight bias total normed", "*bf16"), **statistics, **scalars, "eps": "fp32"}
    yield Launch(kernel=norm.add_norm_forward, config=told, types=types, constants=kept)
    for form in ("post", "pre"):
        types = {
            **_named("total weight of_normed of_total of_x of_residual", "*bf16"),
            **statistics,
            **_named("of_weight of_bias", "*fp32"),
        }
        constants = {**kept, "HAS_TOTAL": form == "pre"}
        config = f"{told}, {form}-norm"
        yield Launch(kernel=norm.add_norm_backward, config=config, types={**types, **scalars, "rows": "i32"}, constants=constants)


def _of_embedding(width: int, dropped: int) -> Iterator[Launch]:
    scalars, kept, told = _row_kernels(width, dropped)
    tables = {**_named("words positions types weight", "*bf16"), **_named("ids places kinds", "*i64"), **_named("means spreads", "*fp32")}
    types = {**tables, **_named("bias hidden", "*bf16"), **scalars, "eps": "fp32"}
    yield Launch(kernel=embedding.embed_forward, config=told, types=types, constants=kept)
    types = {**tables, **_named("upstreams of_sum", "*bf16"), **_named("of_weight of_bias", "*fp32"), **scalars, "rows": "i32"}
    yield Launch(kernel=embedding.embed_backward, config=told, types=types, constants=kept)


def _of_optimizers() -> Iterator[Launch]:
    tables = {**_named("addresses sizes blocks", "*i64"), "decays": "*fp32"}
    rates = _named("old1 new1 old2 new2 eps mean_scale square_scale", "fp32")
    block = {"BLOCK": optimizers.BLOCK}
    config = f"blocks of {optimizers.BLOCK}"
    yield Launch(kernel=optimizers.adamw_blocks, config=config, types={**tables, "lr": "fp32", **rates}, constants=block)
    yield Launch(kernel=optimizers.lamb_blocks, config=config, types={**tables, "norms": "*fp32", **rates}, constants=block)
    yield Launch(
        kernel=optimizers.sum_norms, config="a tensor", types={"first_blocks": "*i64", "norms": "*fp32", "totals": "*fp32"}, constants={}
    )
    types = {**_named("addresses sizes blocks", "*i64"), "ratios": "*fp32", "lr": "fp32"}
    yield Launch(kernel=optimizers.apply_updates, config=config, types=types, constants=block)


def _of_masks() -> Iterator[Launch]:
    types = {
        **_named("ids inputs offsets", "*i32"), "marks": "*u8", "taken": "*u8", "keys": "*i64", "rates": "*fp64", "ordinary": "*i64",
        **_named("ordinary_count mask_id", "i32"), **_named("mask_below random_below", "i64"),
    }  # fmt: skip
    block = {"BLOCK": _ROW}
    yield Launch(kernel=masking.mask_token_rows, config=f"rows of {_ROW}", types=types, constants=block, warps=masking.WARPS)
    spans = {**types, "runs": "*i64", "lengths": "i32"}
    yield Launch(kernel=masking.mask_span_rows, config=f"rows of {_ROW}", types=spans, constants=block, warps=masking.WARPS)
