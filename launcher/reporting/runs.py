"""A run as its folder tells it. Whatever is missing or damaged becomes a note; only a folder that holds no run is refused."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from remask.data_prep.errors import InputError
from remask.launcher import strict_yaml
from remask.launcher.config import RunConfig, load
from remask.launcher.errors import UserError
from remask.launcher.training.run_folder import read_end, read_starts

Record = dict[str, Any]

_SIGNS = ("metrics", "environment.json", "job/jobs.json")
"""What is in a run's folder from its first minute on, and in no other."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Of one folder that remask train or remask submit has made."""

    folder: Path
    name: str
    config: dict[str, Any]
    """The resolved config as plain values; empty before the first start."""
    training: list[Record]
    """By step."""
    evaluations: list[Record]
    starts: list[dict[str, Any]]
    end: dict[str, Any] | None
    incidents: list[dict[str, Any]]
    seconds: float
    """Spent so far over all starts, with evaluations and saves, without the time between two starts."""
    notes: list[str]
    """What could not be read."""

    @cached_property
    def parsed_config(self) -> RunConfig | None:
        """None where this version cannot read it."""
        try:
            return load(str(self.folder / "config.yaml"))
        except InputError:
            return None

    @property
    def parts(self) -> list[str]:
        """Names of the loss's parts."""
        return list(dict.fromkeys(name for record in self.training for name in mapping(record, "losses")))

    @property
    def ranks(self) -> int | None:
        """None if nobody says, or if the starts had different numbers: records do not tell which start they are of."""
        found = {start.get("ranks") for start in self.starts}
        (only,) = found if len(found) == 1 else (None,)
        return only if isinstance(only, int) and only > 0 else None

    @property
    def collectives(self) -> list[str]:
        return sorted({name for record in self.training for name in mapping(record, "bytes_per_step")})

    @property
    def speed(self) -> tuple[float, float, float]:
        """Tokens a second: the median over all records, and the range that the middle 80% lie in."""
        found = sorted(speed for record in self.training if math.isfinite(speed := number(record, "tokens_per_s")))
        if not found:
            return math.nan, math.nan, math.nan
        tenth = len(found) // 10
        return median(found), found[tenth], found[-1 - tenth]


def find_runs(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs right below it, as a sweep or a demo has them."""
    if _is_run(folder):
        return [folder]
    try:
        below = sorted(inner for inner in folder.iterdir() if _is_run(inner))
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}); give a run's folder or a benchmark's JSON") from error
    if not below:
        raise UserError(f"{folder}: no run here; give the folder that remask train or remask submit got as --out, or a benchmark's JSON")
    return below


def _is_run(folder: Path) -> bool:
    return any((folder / sign).exists() for sign in _SIGNS)


def name_runs(folders: Sequence[Path]) -> list[str]:
    """The folders' own names; where two have the same, their paths as they were given."""
    names = [folder.name or folder.resolve().name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]


def read_run(folder: Path, name: str) -> Run:
    notes: list[str] = []
    records = _read_records(folder / "metrics" / "rank-00000.jsonl", notes)
    training = [record for record in records if record["kind"] == "training"]
    if not training:
        notes.append("no step has been told yet")
    starts = [start for start in read_starts(folder) if isinstance(start, dict)]
    if len({start.get("ranks") for start in starts}) > 1:
        notes.append("its starts had different numbers of ranks, so figures for one GPU are left out")
    end = read_end(folder)
    return Run(
        folder=folder,
        name=name,
        config=_read_config(folder / "config.yaml", notes),
        training=training,
        evaluations=[record for record in records if record["kind"] == "evaluation"],
        starts=starts,
        end=end if isinstance(end, dict) else None,
        incidents=_read_incidents(folder / "incidents", notes),
        seconds=_read_seconds(folder / "checkpoints", training),
        notes=notes,
    )


def _read_records(file: Path, notes: list[str]) -> list[Record]:
    """Whole records of training and evaluation, each step once."""
    found: dict[tuple[str, int], Record] = {}
    damaged = 0
    try:
        with file.open("rb") as lines:
            for line in lines:
                record = _parse(line)
                if record is None:
                    damaged += 1
                elif record["kind"] in ("training", "evaluation"):
                    found[record["kind"], record["step"]] = record
    except FileNotFoundError:
        pass
    except OSError as error:
        notes.append(f"{file.name} cannot be read ({error.strerror})")
    if damaged:
        notes.append(f"{damaged} {'line' if damaged == 1 else 'lines'} of {file.name} not whole, left out")
    return sorted(found.values(), key=lambda record: int(record["step"]))


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(record, dict) and isinstance(record.get("kind"), str) and type(record.get("step")) is int
    return record if whole else None


def _read_config(file: Path, notes: list[str]) -> dict[str, Any]:
    try:
        config = strict_yaml.read(file.read_bytes())
    except FileNotFoundError:
        notes.append("no config.yaml yet: it was not started")
        return {}
    except (OSError, ValueError) as error:
        notes.append(f"config.yaml cannot be read ({error})")
        return {}
    return config if isinstance(config, dict) else {}


def _read_incidents(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            incident = json.loads(file.read_bytes())
        except (OSError, ValueError):
            incident = None
        if isinstance(incident, dict):
            found.append(incident)
        else:
            notes.append(f"incidents/{file.name} is damaged, left out")
    return found


def _read_seconds(checkpoints: Path, training: list[Record]) -> float:
    """What the newest checkpoint says, and the time of the steps since; nobody else counts evaluations and saves."""
    saved, step = 0.0, -1
    for file in sorted(checkpoints.glob("step-*/state.json"), reverse=True):
        try:
            state = json.loads(file.read_bytes())["state"]
            saved, step = float(state["seconds"]), int(state["step"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        break
    later = (number(record, "seconds") for record in training if record["step"] > step)
    return saved + sum(seconds for seconds in later if math.isfinite(seconds))


def number(record: Record, name: str) -> float:
    """A figure of a record; nan if it is not there. JSON has no way to write nan and inf, so they stand there as text."""
    value = record.get(name)
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def mapping(record: Record, name: str) -> dict[str, Any]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}
