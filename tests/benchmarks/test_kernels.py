"""Compilation ahead of time: every kernel for every architecture, its figures read from the cubin, none spilled."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from remask.benchmarks.kernel_traffic import CHAINS
from remask.benchmarks.kernels import ARCHITECTURES, parse_usage

pytestmark = pytest.mark.kernels
KERNELS = {
    "gelu_forward", "gelu_backward", "add_norm_forward", "add_norm_backward", "embed_forward", "embed_backward",
    "head_forward", "head_slopes", "adamw_blocks", "lamb_blocks", "sum_norms", "apply_updates", "mask_token_rows", "mask_span_rows",
}  # fmt: skip


def compiling(*command: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where kernels are compiled and not interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, timeout=280, check=False)


def test_every_kernel_compiles_for_every_architecture_without_a_spill(tmp_path: Path) -> None:
    ended = compiling("-m", "remask.benchmarks.kernels", "--json", str(tmp_path / "kernels.json"))
    assert ended.returncode == 0, ended.stderr[-2000:]
    rows = json.loads((tmp_path / "kernels.json").read_text())["kernels"]
    assert {(row["name"], row["arch"]) for row in rows} == {(name, f"sm_{number}") for name in KERNELS for number in ARCHITECTURES}
    assert all(0 < row["registers"] <= 255 and row["shared_bytes"] >= 0 and row["spill_bytes"] == 0 for row in rows)
    for precision, width in product(("bf16", "fp16", "fp32"), (768, 1024, 2048, 4096)):
        for told in (
            f"{precision}, width {width}, tile",
            f"{precision}, width {4 * width}, exact",
            f"{precision}, width {width}, no dropout",
        ):
            assert any(told in row["config"] for row in rows), told


def test_a_spill_is_read_from_the_cubin() -> None:
    """LayerNorm's backward pass of 4096 values in one warp cannot keep them in registers."""
    code = (
        "from dataclasses import replace; from remask.benchmarks.kernels import compile_launch;"
        "from remask.benchmarks.kernel_launches import launches;"
        "launch = next(launch for launch in launches() if launch.name == 'add_norm_backward');"
        "print(compile_launch(replace(launch, warps=1, constants={**launch.constants, 'BLOCK': 4096}), 80)['spill_bytes'])"
    )
    ended = compiling("-c", code)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) > 100


def test_a_figure_that_is_missing_is_an_error() -> None:
    assert parse_usage("Function f:\n REG:40 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:64") == {"REG": 40, "STACK": 8, "LOCAL": 0}
    with pytest.raises(RuntimeError, match="does not tell STACK"):
        parse_usage("Function f:\n REG:40 SHARED:0 LOCAL:0")


def test_fusing_never_moves_more() -> None:
    rows = [chain.row for chain in CHAINS]
    assert len(rows) > 8 and all(0 <= row["fused_passes"] <= row["unfused_passes"] for row in rows)
    assert all(row["fused_bytes"] <= row["unfused_bytes"] for row in rows) and rows[0]["fused_bytes"] == 2 * 16384 * 4096 * 2
