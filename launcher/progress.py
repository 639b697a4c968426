"""Progress with speed and time to go: a bar on a terminal, a log line every few seconds elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from remask.launcher import logs

_SECONDS_BETWEEN_LINES = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a piece of work is, in units of one kind; `also` counts something else on the way, such as tokens."""

    stage: str
    done: float
    total: float
    also: str = ""
    also_done: float = 0


@contextmanager
def progress(unit: str) -> Iterator[Callable[[Progress], None]]:
    """Yields a function that takes reports as often as one likes; each stage has its own clock."""
    clock = _Clock(unit)
    if not sys.stderr.isatty():
        yield clock.log
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    with Bars(TextColumn("{task.description}"), BarColumn(), console=logs.terminal(), transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda report: bars.update(task, completed=report.done, total=report.total, description=clock.describe(report))


class _Clock:
    def __init__(self, unit: str) -> None:
        self.unit, self.stage = unit, ""
        self.start = self.told = 0.0
        self.done_at_start = 0.0

    def log(self, report: Progress) -> None:
        sentence = self.describe(report)
        if time.monotonic() - self.told >= _SECONDS_BETWEEN_LINES:
            self.told = time.monotonic()
            log.info("%s", sentence)

    def describe(self, report: Progress) -> str:
        """What is done, how fast, and how long it takes; speed counts from the stage's first report, for what was there costs no time."""
        now = time.monotonic()
        if report.stage != self.stage:
            self.stage, self.start, self.told, self.done_at_start = report.stage, now, now, report.done
        seconds = now - self.start
        speed = (report.done - self.done_at_start) / seconds if seconds else 0
        parts = [f"{report.stage}: {report.done:,.0f} of {report.total:,.0f} {self.unit}"]
        if speed:
            parts.append(f"{speed:,.1f} {self.unit}/s")
            parts.extend([f"{report.also_done / seconds:,.0f} {report.also}/s"] if report.also_done else [])
            parts.append(f"{(report.total - report.done) / speed:,.0f} s to go")
        return ", ".join(parts)
