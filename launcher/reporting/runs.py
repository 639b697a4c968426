"""A run as its folder tells it. Whatever is missing or damaged becomes a note; only a folder that holds no run is refused."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from remask.data_prep.errors import InputError
from remask.launcher import strict_yaml
from remask.launcher.config import RunConfig, load
from remask.launcher.errors import UserError
from remask.launcher.reporting.values import Record, mapping, number, parse_json

T = TypeVar("T")

_SIGNS = ("metrics", "environment.json", "job/jobs.json")
"""What is in a run's folder from its first minute on, and in no other."""
_STEPS_END = 10**15  # which floats still tell apart


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
        first = self.starts[0].get("ranks") if self.starts else None
        known = type(first) is int and first > 0 and all(start.get("ranks") == first for start in self.starts)
        return first if known else None

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
    starts = [start for start in _read_json(folder, "environment.json", list, notes) or [] if isinstance(start, dict)]
    if any(start.get("ranks") != starts[0].get("ranks") for start in starts):
        notes.append("its starts had different numbers of ranks, so figures for one GPU are left out")
    return Run(
        folder=folder,
        name=name,
        config=_read_config(folder / "config.yaml", notes),
        training=training,
        evaluations=[record for record in records if record["kind"] == "evaluation"],
        starts=starts,
        end=_read_json(folder, "end.json", dict, notes),
        incidents=_read_incidents(folder, notes),
        seconds=_read_seconds(folder, training, notes),
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
        record = parse_json(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    return record if type(record.get("step")) is int and 0 <= record["step"] < _STEPS_END else None


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
    found = [_read_json(folder, f"incidents/{file.name}", dict, notes) for file in sorted(folder.glob("incidents/*.json"))]
    return [incident for incident in found if incident is not None]


def _read_seconds(folder: Path, training: list[Record], notes: list[str]) -> float:
    """What the newest checkpoint says, and the time of the steps since; nobody else counts evaluations and saves."""
    saved, step = 0.0, -1.0
    for file in sorted(folder.glob("checkpoints/step-*/state.json"), reverse=True):
        name = str(file.relative_to(folder))
        record = _read_json(folder, name, dict, notes)
        if record is None:
            continue
        found = number(mapping(record, "state"), "seconds"), number(mapping(record, "state"), "step")
        if all(map(math.isfinite, found)):
            saved, step = found
            break
        notes.append(f"{name} tells no wall time, left out")
    later = (number(record, "seconds") for record in training if record["step"] > step)
    return saved + sum(seconds for seconds in later if math.isfinite(seconds))


def _read_json(folder: Path, name: str, kind: type[T], notes: list[str]) -> T | None:
    """None if it is not there, and with a note if it is not what it should be."""
    try:
        value = parse_json((folder / name).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        value = None
    if isinstance(value, kind):
        return value
    notes.append(f"{name} is damaged, left out")
    return None
