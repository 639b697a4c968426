"""`remask logs`: what a run's jobs printed."""

import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from remask.launcher.cluster import commands
from remask.launcher.cluster.folder import Submitted, read, runs_below
from remask.launcher.errors import UserError
from remask.launcher.options import parse

_LOOK_EVERY, _ASK_SLURM_EVERY = 0.5, 10.0


@dataclass(frozen=True, kw_only=True)
class LogsOptions:
    """Print what a run's newest job printed, over all its restarts.

    Examples:
      remask logs run
      remask logs -f run
      remask logs run --job prep
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder that remask submit got as --out."""
    follow: Annotated[bool, tyro.conf.arg(aliases=["-f"])] = False
    """Go on printing until the job is over; Ctrl-C ends only the printing."""
    lines: int = 100
    """How many of the last lines; 0 prints all."""
    job: str | None = None
    """prep, train or export; if not given, the newest that has printed something."""


def main(args: Sequence[str]) -> int:
    """print what a run's jobs printed, -f follows"""
    options = parse(LogsOptions, args, "logs")
    if options.lines < 0:
        raise UserError(f"remask logs: --lines: {options.lines} was given, it must be at least 0")
    runs = runs_below(options.run)
    if len(runs) > 1:
        raise UserError(f"{options.run}: a sweep of {len(runs)} runs; give one of them, such as {runs[0]}")
    job = _choose(runs[0], options)
    file = Path(job.output)
    if options.follow:
        _follow(file, job, options.lines)
    elif not file.exists():
        raise UserError(f"{file}: not there yet, job {job.job} has printed nothing; remask status {runs[0]} shows why")
    else:
        _print_last(file, options.lines)
    return 0


def _choose(run: Path, options: LogsOptions) -> Submitted:
    jobs = [job for job in read(run) if options.job in (None, job.name)]
    if not jobs:
        which = f"{options.job} job" if options.job else "job"
        raise UserError(f"{run}: no {which} was submitted for it; its own log is {run / 'train.log'}")
    return next((job for job in reversed(jobs) if Path(job.output).exists()), jobs[-1])


def _print_last(file: Path, lines: int) -> int:
    """How many bytes there were."""
    with file.open("rb") as stream:
        sys.stdout.buffer.writelines(deque(stream, maxlen=lines or None))
        sys.stdout.buffer.flush()
        return stream.tell()


def _follow(file: Path, job: Submitted, lines: int) -> None:
    position, ask_at, told = None, time.monotonic(), False
    while True:
        over = False
        if time.monotonic() >= ask_at:
            try:
                over = not any(one.state in commands.LIVE for one in commands.states([job.job]).values())
            except UserError as error:  # the controller may be back later
                if not file.exists():
                    raise
                if not told:
                    sys.stderr.write(f"{error}; the job's end will not be noticed before SLURM answers\n")
                told = True
            ask_at = time.monotonic() + _ASK_SLURM_EVERY
        if file.exists():
            if position is None:
                position = _print_last(file, lines)
            with file.open("rb") as stream:
                stream.seek(position)
                sys.stdout.buffer.write(stream.read())
                sys.stdout.buffer.flush()
                position = stream.tell()
        if over:
            return
        time.sleep(_LOOK_EVERY)
