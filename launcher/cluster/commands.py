"""SLURM's commands: what they are asked and what they answer."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from remask.launcher.errors import UserError

LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "RESIZING", "STOPPED")
"""States of a job that is not over."""
_SECONDS = 60
_FORGOTTEN = "Invalid job id"
"""How squeue says that a job is over for longer than the cluster's MinJobAge; of several jobs it leaves such ones out."""


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


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Of those jobs that SLURM still knows, whoever submitted them; an array's tasks one by one."""
    if not jobs:
        return {}
    numbers = sorted({job.partition("_")[0] for job in jobs})
    try:
        told = call(["squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(numbers)}", "--format=%i|%A|%T|%M|%R"])
    except UserError as error:
        if _FORGOTTEN not in str(error):
            raise
        return {}
    found = {}
    for line in told.splitlines():
        if line.count("|") < 4:  # with nothing to tell, what squeue warned of
            continue
        job, raw, state, elapsed, where = line.split("|", 4)
        for asked in {job, raw} & set(jobs):
            found[asked] = JobState(job=job, state=state, elapsed=elapsed, restarts=_restarts(job), where=where)
    return found


def _restarts(job: str) -> int:
    try:
        told = call(["scontrol", "--oneliner", "show", "job", job])
    except UserError:
        return 0
    words = dict(word.split("=", 1) for word in told.split() if "=" in word)
    return int(words.get("Restarts", "0"))
