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
