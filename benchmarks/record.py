"""What a benchmark leaves: its tables as people read them, its figures, and what they were measured on."""

import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remask.launcher.options import refuse_target
from remask.launcher.tables import format_table
from remask.launcher.training.run_folder import package_versions


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as they are shown; reports show them without knowing the benchmark."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    """What the figures are and are not, in a sentence or two."""

    def __str__(self) -> str:
        text = format_table(self.columns, self.rows, numeric=self.columns[1:])
        return "\n".join(part for part in (self.title, text, self.note) if part)


def check_target(verb: str, file: Path | None) -> None:
    """UserError, before anything is measured, if the record cannot be written there."""
    if file:
        refuse_target(f"bench {verb}", "--json", file)


def write_record(file: Path, verb: str, args: Sequence[str], began: float, tables: Sequence[Table], figures: dict[str, Any]) -> None:
    """One JSON; `began` is what time.monotonic() told at the start. Figures stand at the top, beside `benchmark`, `tables` and the rest."""
    record = {
        "benchmark": verb,
        "command": shlex.join(["remask", "bench", verb, *args]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": time.monotonic() - began,
        "commit": describe_commit(),
        "versions": package_versions(),
        "hardware": describe_hardware(),
        **figures,
        "tables": [asdict(table) for table in tables],
    }
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def describe_commit() -> str:
    """Of the checkout that this code lies in; an installed copy has none, and a machine may have no git."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return "unknown"
    return told.stdout.strip() or "unknown"


def describe_hardware() -> dict[str, Any]:
    import psutil
    import torch

    return {
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
    }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
