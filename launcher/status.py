"""`remask status`: how a run or a sweep goes, from its folder and squeue; nothing runs in the background for it."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from remask.launcher.cluster import commands
from remask.launcher.cluster.folder import all_jobs, runs_below
from remask.launcher.errors import UserError
from remask.launcher.options import parse
from remask.launcher.training.run_folder import read_end, read_starts
from remask.launcher.training.telling import clock

_GONE = "gone from the queue"  # SLURM forgets a job some minutes after its end (MinJobAge), and with it how it ended
_TAIL_BYTES = 1 << 20  # the last training record lies within; rows' digests may stand behind it


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """Show how a run goes: its jobs and restarts, step, loss, speed and the time it still needs.

    Reads the run's folder and asks squeue, so it works wherever both are seen, such as on a login node.

    Examples:
      remask status run
      remask status sweep --json
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder that remask submit or remask train got as --out; of a sweep, all its runs are shown."""
    json: bool = False
    """As JSON, one object a run."""


def main(args: Sequence[str]) -> int:
    """show a run's jobs, step, loss, speed and time to go"""
    options = parse(StatusOptions, args, "status")
    found = [status_of(run) for run in runs_below(options.run)]
    print(json.dumps(found, indent=1) if options.json else "\n\n".join(map(_text, found)))
    return 0


def status_of(run: Path) -> dict[str, Any]:
    """Plain values: `jobs`, `starts`, `training` (the last record), `told_s_ago`, `end`."""
    jobs = all_jobs(run)
    try:
        states, problem = commands.states([job.job for job in jobs]), ""
    except UserError as error:
        states, problem = {}, str(error)
    known = {job: asdict(state) for job, state in states.items()}
    gone = {"state": "unknown" if problem else _GONE, "elapsed": "", "restarts": 0, "where": ""}
    end = read_end(run)
    record, told = last_record(run)
    return {
        "run": str(run),
        "jobs": [{"name": job.name, "output": job.output, **gone, **known.get(job.job, {}), "job": job.job} for job in jobs],
        "problem": problem,
        "starts": len(read_starts(run)),
        "training": record,
        "told_s_ago": told,
        "end": end if isinstance(end, dict) and {"end", "step", "why"} <= set(end) else None,
    }


def last_record(run: Path) -> tuple[dict[str, Any] | None, float | None]:
    """What rank 0 told last of its training, and how many seconds ago."""
    file = run / "metrics" / "rank-00000.jsonl"
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            lines = stream.read().splitlines()
        age = time.time() - file.stat().st_mtime
    except OSError:
        return None, None
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:  # cut at the window's begin, or not yet written to its end
            continue
        if isinstance(record, dict) and record.get("kind") == "training" and isinstance(record.get("step"), int):
            return record, age
    return None, None


def _text(found: dict[str, Any]) -> str:
    lines = [f"run: {found['run']}"]
    if found["problem"]:
        lines.append(f"SLURM: {found['problem']}")
    rows = [("job", "what", "state", "elapsed", "restarts", "where")] if found["jobs"] else []
    rows += [(*(str(job[name]) for name in ("job", "name", "state", "elapsed", "restarts", "where")),) for job in found["jobs"]]  # type: ignore[misc]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    record, end = found["training"], found["end"]
    if record is None:
        lines.append("no step yet")
    else:
        lines.append(f"{_progress(record)}, {found['starts']} starts, told {clock(found['told_s_ago'])} ago")
    live = [job for job in found["jobs"] if job["state"] in (*commands.LIVE, "unknown")]
    if end:
        lines.append(f"{end['end']} at step {end['step']:,} ({end['why']})")
    elif found["jobs"] and found["starts"] and not live:
        lines.append(f"not finished, and no job of it is waiting or running; remask logs {shlex.quote(found['run'])} shows why")
    elif record is not None and isinstance(left := record.get("seconds_left"), (int, float)):
        lines.append(f"{clock(left)} to go")
    return "\n".join(lines)


def _progress(record: dict[str, Any]) -> str:
    """What the record tells; one of another version may lack some of it."""
    parts = {"done": " ({:.1%})", "loss": ": loss {}", "tokens_per_s": ", {:,.0f} tokens/s"}
    told = {name: record[name] for name in parts if isinstance(record.get(name), (int, float))}
    return f"step {record['step']:,}" + "".join(parts[name].format(value) for name, value in told.items())
