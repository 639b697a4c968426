"""`remask cancel`: ends a run's jobs; the run saves first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from remask.launcher.cluster import commands
from remask.launcher.cluster.folder import read, runs_below
from remask.launcher.options import parse


@dataclass(frozen=True, kw_only=True)
class CancelOptions:
    """End the jobs of a run or of a sweep, waiting and running ones.

    The ranks get SIGTERM: they finish their step and save, if the cluster's KillWait (30 s unless changed) is long enough; the run can
    be submitted again and goes on.

    Example:
      remask cancel run
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder that remask submit got as --out."""


def main(args: Sequence[str]) -> int:
    """end a run's jobs, with a checkpoint where there is time"""
    options = parse(CancelOptions, args, "cancel")
    known = [job.job for run in runs_below(options.run) for job in read(run)]
    live = [one.job for one in commands.states(known).values() if one.state in commands.LIVE]
    if live:
        commands.call(["scancel", *live])
    print(f"cancelled: {', '.join(live)}" if live else f"{options.run}: no job of it is waiting or running")
    return 0
