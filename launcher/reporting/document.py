"""The whole report of some runs and benchmarks."""

import time
from collections.abc import Sequence
from importlib.metadata import version

from remask.launcher.reporting.curves import communication, curves
from remask.launcher.reporting.measurements import Benchmark, measured
from remask.launcher.reporting.overview import filled, incidents, overview, starts
from remask.launcher.reporting.parts import Report, Section
from remask.launcher.reporting.preview import Seen, masks
from remask.launcher.reporting.runs import Run


def compose(runs: Sequence[Run], benchmarks: Sequence[Benchmark], seen: Seen) -> Report:
    """`seen` keeps what is slow to make between two reports of the same runs."""
    sections: list[Section | None] = []
    if runs:
        sections += [overview(runs), curves(runs), communication(runs)]
    sections += [measured(benchmark) for benchmark in benchmarks]
    if runs:
        sections += [masks(runs, seen), filled(runs), incidents(runs), starts(runs)]
    names = [run.name for run in runs] or [benchmark.name for benchmark in benchmarks]
    made = f"Made by remask {version('remask')} on {time.strftime('%Y-%m-%d at %H:%M:%S %z')}."
    return Report(title=f"remask: {_listed(names)}", made=made, sections=[section for section in sections if section is not None])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
