"""Every benchmark, one after the other, each in a process of its own; their JSON files in a folder and their tables in BENCHMARKS.md.

    remask bench all --quick

One that fails is told, and the others still run; its section of BENCHMARKS.md stays as it was. With --quick all of them end within a
quarter of an hour on 2 cores.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remask.benchmarks.page import updated
from remask.benchmarks.record import Table, write_record
from remask.data_prep.files import written_whole
from remask.launcher.bench import BENCHMARKS
from remask.launcher.cli import guard
from remask.launcher.decode import nearest
from remask.launcher.errors import UserError
from remask.launcher.options import parse, refuse_target
from remask.launcher.training.telling import clock

NAMES = tuple(name for name in BENCHMARKS if name != "all")


@dataclass(frozen=True, kw_only=True)
class AllOptions:
    """Run every benchmark and write their tables into BENCHMARKS.md."""

    only: tuple[str, ...] = NAMES
    """Which ones, by name."""
    out: Path = Path("benchmark-records")
    """Folder for their JSON files and what they print."""
    page: Path = Path("BENCHMARKS.md")
    """Where the tables go; what stands there outside of the markers is kept."""
    quick: bool = False
    """The small version of each."""


def run(name: str, out: Path, quick: bool) -> tuple[int, dict[str, Any]]:
    """Exit code and record of a benchmark; what it says goes into a log file beside the JSON."""
    file = out / f"{name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", f"remask.benchmarks.{name}", *(["--quick"] if quick else []), "--json", str(file)]
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    return code, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def main(args: Sequence[str]) -> int:
    options = parse(AllOptions, args, "bench all")
    if wrong := [name for name in options.only if name not in NAMES]:
        raise UserError(f"remask bench all: --only: {wrong[0]!r} is no benchmark; {nearest(wrong[0], list(NAMES))}")
    refuse_target("bench all", "--page", options.page)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"remask bench all: --out: {options.out} cannot be made ({error.strerror}); give a folder") from error
    began, rows, failed = time.monotonic(), [], 0
    for number, name in enumerate(options.only, start=1):
        print(f"{number} of {len(options.only)}: {name} …", end=" ", flush=True)
        start = time.monotonic()
        code, record = run(name, options.out, options.quick)
        took = clock(time.monotonic() - start)
        print(took if not code else f"failed after {took} with exit code {code}: {_last_words(options.out / f'{name}.log')}", flush=True)
        failed += code != 0
        rows.append([name, took, "ok" if not code else f"exit code {code}"])
        if record:
            _write(options.page, name, record)
    summary = Table(title=f"{len(rows)} benchmarks in {clock(time.monotonic() - began)}", columns=("benchmark", "time", "end"), rows=rows)
    print(f"\n{summary}\nthe tables are in {options.page}, the figures and what each one said in {options.out}")
    if options.only == NAMES:
        write_record(options.out / "all.json", "all", args, began, [summary], {})
        _write(options.page, "all", json.loads((options.out / "all.json").read_text(encoding="utf-8")))
    return 1 if failed else 0


def _write(page: Path, name: str, record: dict[str, Any]) -> None:
    """At once, so that what was measured is there whatever becomes of the next one."""
    text = updated(page.read_text(encoding="utf-8") if page.exists() else "", {name: record})
    with written_whole(page) as stream:
        stream.write(text.encode())


def _last_words(log: Path) -> str:
    return (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"])[-1]


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
