"""How long the command takes to answer, next to what it would cost to import the libraries that it keeps out.

`remask --help` must feel immediate on a login node with a slow file system. Each round runs all contestants once, in turn, so that a
busy machine slows them alike; the figure is the ratio to Python's own start, with its spread over the rounds.

    remask bench startup --json startup.json
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remask.benchmarks.record import Table, check_target, write_record
from remask.launcher.cli import guard
from remask.launcher.errors import UserError
from remask.launcher.options import parse

CONTESTANTS = {
    "python": "pass",
    "remask_help": "from remask.launcher.cli import main; main(['--help'])",
    "remask_presets": "from remask.launcher.cli import main; main(['presets'])",
    "import_torch": "import torch",
    "import_transformers_trainer": "from transformers import Trainer",
    "import_deepspeed": "import deepspeed",
}


@dataclass(frozen=True, kw_only=True)
class StartupOptions:
    """Time the start of the command against its heavy libraries' imports."""

    repeats: int = 5
    """Rounds; at least 3 for a spread."""
    quick: bool = False
    """At most 2 rounds."""
    json: Path | None = None
    """Write the figures here."""


def measure(repeats: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round, after one round that only warms the file cache."""
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for round_number in range(repeats + 1):
        for name, code in CONTESTANTS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
            if round_number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def summarise(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median, lowest and highest ratio to Python's own start in the same round."""
    rows = {}
    for name, times in seconds.items():
        ratios = [own / python for own, python in zip(times, seconds["python"], strict=True)]
        rows[name] = {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return rows


def main(args: Sequence[str]) -> int:
    options = parse(StartupOptions, args, "bench startup")
    if options.repeats < 1:
        raise UserError(f"remask bench startup: --repeats: {options.repeats} was given, it must be at least 1")
    check_target("startup", options.json)
    began, repeats = time.monotonic(), min(options.repeats, 2) if options.quick else options.repeats
    rows = summarise(measure(repeats))
    table = Table(
        title="Start of the command",
        columns=("what", "times Python's own start", "lowest to highest"),
        rows=[[name, f"{row['ratio']:.1f}x", f"{row['lowest']:.1f} to {row['highest']:.1f}"] for name, row in rows.items()],
        note=f"Seconds from start to end over those of an empty Python program in the same round; median of {repeats} rounds.",
    )
    print(table)
    if options.json:
        write_record(options.json, "startup", args, began, [table], {"repeats": repeats, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
