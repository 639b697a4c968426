"""SLURM's commands: what they are asked and what they answer."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from remask.launcher.errors import UserError

LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING", "STOPPED")
"""States of a job that is not over."""
_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class JobState:
    """A job as squeue shows it."""

    job: str
    """Its number, of an array's task 12_3."""
    state: str
    elapsed: str
    restarts: int
    where: str
    """Its machines, or why it waits."""


def call(command: Sequence[str]) -> str:
    """What it printed; UserError with what it said if it failed."""
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]}: not found; run this on a machine of the SLURM cluster, such as its login node")
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"{command[0]}: no answer within {_SECONDS} s; SLURM's controller may be down, try again later") from None
    if result.returncode:
        raise UserError(f"{command[0]}: {' '.join((result.stderr or result.stdout).split()) or f'exit code {result.returncode}'}")
    return result.stdout if result.stdout.strip() else result.stderr


def submit(command: Sequence[str]) -> str:
    """The number of the job that `sbatch …` has made."""
    return call(command).strip().split(";")[0]


def states(jobs: Sequence[str]) -> list[JobState]:
    """Of those jobs that SLURM still knows; an array's tasks one by one."""
    if not jobs:
        return []
    found = []
    # A number that SLURM has forgotten is an error when it is asked for, so that all of the user's jobs are listed instead.
    told = call(["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%F|%T|%M|%R"])
    for line in told.splitlines():
        job, array, state, elapsed, where = line.split("|", 4)
        if job in jobs or array in jobs:
            found.append(JobState(job=job, state=state, elapsed=elapsed, restarts=_restarts(job), where=where))
    return sorted(found, key=lambda one: [int(part) for part in one.job.split("_") if part.isdecimal()])


def _restarts(job: str) -> int:
    try:
        told = call(["scontrol", "--oneliner", "show", "job", job])
    except UserError:
        return 0
    words = dict(word.split("=", 1) for word in told.split() if "=" in word)
    return int(words.get("Restarts", "0"))
