"""How long the command takes to answer, next to what it would cost to import the libraries that it keeps out.

`remask --help` must feel immediate on a login node with a slow file system. Each round runs all contestants once, in turn, so that a
busy machine slows them alike; the figure is the ratio to Python's own start, with its spread over the rounds.

    remask bench startup --json startup.json
"""

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    if options.json and not options.json.parent.is_dir():
        raise UserError(f"remask bench startup: --json: the folder of {options.json} does not exist")
    rows = summarise(measure(options.repeats))
    print(f"start-up, times Python's own ({platform.processor() or platform.machine()}, {options.repeats} rounds)")
    for name, row in rows.items():
        print(f"{name:<28} {row['ratio']:6.1f}x  ({row['lowest']:.1f} to {row['highest']:.1f})")
    if options.json:
        options.json.write_text(json.dumps({"command": "remask bench startup", "repeats": options.repeats, "rows": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
