"""The fused kernels without a GPU: compiled ahead of time for three architectures, with what each takes of a GPU, and what each must move.

    remask bench kernels --json kernels.json

Registers and the stack (where ptxas spills to) are read from the compiled cubin by cuobjdump; a number that is not there, or a spill, is an
error. Bytes are computed: an upper bound of the gain on a GPU that is bound by memory, not a measurement. With a GPU the same command also
measures each kernel next to plain torch.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.benchmarks.record import Table, check_target, write_record
from remask.launcher.cli import guard
from remask.launcher.errors import UserError
from remask.launcher.options import parse

if TYPE_CHECKING:
    from remask.benchmarks.kernel_launches import Launch

ARCHITECTURES = (80, 90, 100)


@dataclass(frozen=True, kw_only=True)
class KernelBenchOptions:
    """Compile the fused kernels for GPUs that need not be there, and tell what they take and move; with a GPU, measure them."""

    architectures: tuple[int, ...] = ARCHITECTURES
    """Compute capabilities: 80 A100, 90 H100 and H200, 100 B200."""
    workers: int = os.cpu_count() or 1
    """Processes that compile."""
    quick: bool = False
    """bf16 only."""
    json: Path | None = None
    """Write the figures here."""


def compile_launch(launch: "Launch", architecture: int) -> dict[str, Any]:
    """One kernel for one architecture: what its cubin says. RuntimeError if it does not say it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    if wrong := set(names) ^ {*launch.types, *launch.constants}:
        raise RuntimeError(f"{launch.name}: {sorted(wrong)} stand in its launch or its signature only")
    types = {name: "constexpr" if name in launch.constants else launch.types[name].rstrip("!") for name in names}
    aligned = [name for name in names if launch.types.get(name, "").startswith("*") or launch.types.get(name, "").endswith("!")]
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(launch.kernel, types, constexprs=launch.constants, attrs=hints)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": launch.warps})
    usage = _read_usage(compiled.asm["cubin"])
    return {
        "name": launch.name,
        "arch": f"sm_{architecture}",
        "config": f"{launch.config}, {launch.warps} warps",
        "registers": usage["REG"],
        "shared_bytes": int(compiled.metadata.shared),
        "spill_bytes": usage["STACK"] + usage["LOCAL"],
    }


def _read_usage(cubin: bytes) -> dict[str, int]:
    """REG, STACK and LOCAL of the one kernel in a cubin."""
    import triton

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        tool = triton.knobs.nvidia.cuobjdump.path
        told = subprocess.run([tool, "--dump-resource-usage", str(file)], capture_output=True, text=True, check=True, timeout=60).stdout
    return parse_usage(told)


def parse_usage(told: str) -> dict[str, int]:
    """The figures that cuobjdump tells; RuntimeError if one is missing."""
    found = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", told)}
    if missing := {"REG", "STACK", "LOCAL"} - set(found):
        raise RuntimeError(f"cuobjdump does not tell {', '.join(sorted(missing))}: {told!r}")
    return found


def _compile_number(number: int, architecture: int) -> dict[str, Any]:
    """By number: kernels themselves cannot be handed to another process."""
    from remask.benchmarks.kernel_launches import launches

    return compile_launch(list(launches())[number], architecture)


def compile_all(architectures: Sequence[int], workers: int, quick: bool = False) -> list[dict[str, Any]]:
    from remask.benchmarks.kernel_launches import launches

    numbers = [number for number, launch in enumerate(launches()) if not quick or not launch.config.startswith(("fp16", "fp32"))]
    jobs = [(number, architecture) for number in numbers for architecture in architectures]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_compile_number, *zip(*jobs, strict=True)))


def usage_tables(rows: list[dict[str, Any]]) -> tuple[Table, Table]:
    """The configuration of each kernel that takes most registers, and all of them; figures of the architectures one behind the other."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["name"], row["config"]), []).append(row)
    figures = ("registers", "shared_bytes", "spill_bytes")
    cells = {key: [*key, *(" / ".join(str(row[figure]) for row in one) for figure in figures)] for key, one in found.items()}
    worst: dict[str, tuple[str, str]] = {}
    for key, one in found.items():
        most = max(row["registers"] for row in one)
        if key[0] not in worst or most > max(row["registers"] for row in found[worst[key[0]]]):
            worst[key[0]] = key
    architectures = " / ".join(dict.fromkeys(row["arch"] for row in rows))
    spilled = sum(row["spill_bytes"] > 0 for row in rows)
    columns = ("kernel", "launch", "registers", "shared bytes", "spilled bytes")
    note = f"Of {len(rows)} compilations for {architectures}, read from the cubin; {spilled or 'none'} spilled. Not a measurement of speed."
    return (
        Table(
            title="Fused kernels, the launch of each with most registers",
            columns=columns,
            rows=[cells[key] for key in worst.values()],
            note=note,
        ),
        Table(title="Fused kernels, every launch", columns=columns, rows=list(cells.values())),
    )


def main(args: Sequence[str]) -> int:
    options = parse(KernelBenchOptions, args, "bench kernels")
    if wrong := [number for number in options.architectures if number not in ARCHITECTURES] or not options.architectures:
        raise UserError(
            f"remask bench kernels: --architectures: {wrong} was given, it must be some of {', '.join(map(str, ARCHITECTURES))}"
        )
    check_target("kernels", options.json)
    if os.environ.pop("TRITON_INTERPRET", None):
        print("TRITON_INTERPRET is ignored: what is interpreted is not compiled")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9's own default, about which it warns when it is not said
    import torch

    from remask.benchmarks.kernel_traffic import CHAINS, traffic_table

    began = time.monotonic()
    rows = compile_all(options.architectures, options.workers, options.quick)
    worst, every = usage_tables(rows)
    if not options.quick:
        print(f"{every}\n")
    tables = [worst, traffic_table()]
    figures: dict[str, Any] = {"kernels": rows, "traffic": [chain.row for chain in CHAINS]}
    if torch.cuda.is_available():
        from remask.benchmarks.kernel_speed import measure, speed_table

        measured = measure()
        figures |= {"gpu": torch.cuda.get_device_name(), "speed": measured}
        tables.append(speed_table(measured))
    for table in tables:
        print(f"{table}\n")
    if not torch.cuda.is_available():
        print("no GPU here: nothing was measured")
    if options.json:
        write_record(options.json, "kernels", args, began, tables, figures)
    if spilled := [row for row in rows if row["spill_bytes"]]:
        print(f"error: {len(spilled)} kernels spill registers, the first is {spilled[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
