"""A run's job/ folder: the scripts that were submitted, the jobs' numbers, what they printed.

job/config.yaml       what remask train is given
job/NAME.sbatch       the scripts
job/jobs.json         one entry a submission: name, number, where its output is
job/NUMBER.out        what a job printed, over all its restarts
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from remask.data_prep.files import written_whole
from remask.launcher.errors import UserError
from remask.launcher.training.run_folder import read_starts


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """One job that was submitted for a run."""

    name: str
    """prep, train or export."""
    job: str
    """Its number; a sweep's runs have one each: 12_3."""
    output: str


def job_folder(run: Path) -> Path:
    return run / "job"


def record(run: Path, jobs: list[Submitted]) -> None:
    known = [asdict(job) for job in [*read(run), *jobs]]
    write(job_folder(run) / "jobs.json", json.dumps(known, indent=1) + "\n")


def read(run: Path) -> list[Submitted]:
    """All jobs of a run, the oldest first; none if there is no submission."""
    try:
        return [Submitted(**one) for one in json.loads((job_folder(run) / "jobs.json").read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{job_folder(run) / 'jobs.json'}: cannot be read ({error}); remove it to forget the jobs") from error


def all_jobs(run: Path) -> list[Submitted]:
    """Also those of scripts that were submitted by hand, which the run's starts tell of; where they print to is not known."""
    known = read(run)
    if any("_" in job.job for job in known):  # a start knows its array's task by another number
        return known
    starts = [start.get("slurm_job") for start in read_starts(run) if isinstance(start, dict)]
    by_hand = [job for job in dict.fromkeys(starts) if isinstance(job, str) and job not in {one.job for one in known}]
    return sorted([*known, *(Submitted(name="train", job=job, output="") for job in by_hand)], key=_number)


def _number(job: Submitted) -> int:
    return int(job.job) if job.job.isdecimal() else 0


def runs_below(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs of the sweep in it."""
    if (folder / "job" / "jobs.json").is_file() or (folder / "config.yaml").is_file():
        return [folder]
    runs = sorted(file.parents[1] for file in folder.glob("*/job/jobs.json"))
    if not runs:
        raise UserError(f"{folder}: no run here; give the folder that remask submit or remask train got as --out")
    return runs


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(file) as stream:
        stream.write(text.encode())
