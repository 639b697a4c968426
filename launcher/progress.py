"""Progress with a time to go: a bar on a terminal, a log line every few seconds elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]

_SECONDS_BETWEEN_LINES = 5.0

log = logging.getLogger(__name__)


@contextmanager
def progress(label: str, unit: str) -> Iterator[Report]:
    """Yields a function that takes (done, total) as often as one likes."""
    if sys.stderr.isatty():
        with _bar(label, unit) as report:
            yield report
    else:
        yield _lines(label, unit)


@contextmanager
def _bar(label: str, unit: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _lines(label: str, unit: str) -> Report:
    start = last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES and done:
            last = now
            to_go = (now - start) * (total - done) / done
            log.info("%s: %d of %d %s, %.0f s to go", label, done, total, unit, to_go)

    return report
