"""Starts the ranks of a real run, as a launcher would, and reads what it left."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conftest import REMASK

from remask.launcher.distributed import free_port


class Rank(subprocess.Popen[bytes]):
    """A process with its output in a file: a pipe that nobody reads would stop it."""

    def __init__(self, command: Sequence[object], environment: dict[str, str], before: Callable[[], None] | None = None) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        super().__init__(
            [str(part) for part in command],
            env={**os.environ, **environment},
            stdout=self.output,
            stderr=subprocess.STDOUT,
            preexec_fn=before,
        )

    def said(self) -> str:
        self.output.seek(0)
        return self.output.read().decode()


def start(world: int, *args: str, before: Callable[[], None] | None = None) -> list[Rank]:
    """The ranks of `remask train`."""
    return start_command(world, [REMASK, "train", *args], before)


def start_command(world: int, command: Sequence[object], before: Callable[[], None] | None = None) -> list[Rank]:
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [Rank(command, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, before) for rank in range(world)]


def wait(processes: list[Rank], seconds: float = 200) -> tuple[list[int], str]:
    """Exit codes and all that was said; nothing is left running."""
    end = time.monotonic() + seconds
    try:
        for process in processes:
            process.wait(max(end - time.monotonic(), 0.1))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.returncode for process in processes], "".join(process.said() for process in processes)


def run_args(recipe: str, shards: Path, run: Path, *more: str) -> list[str]:
    return ["--preset", recipe, "--data", str(shards), "--out", str(run), *more]


def train(world: int, *args: str) -> str:
    """A run that must end well; what it said."""
    codes, said = wait(start(world, *args))
    assert codes == [0] * world, said[-4000:]
    assert "Traceback" not in said
    return said


def records(run: Path, kind: str, rank: int = 0) -> list[dict[str, Any]]:
    lines = (run / "metrics" / f"rank-{rank:05d}.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def losses(run: Path) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in records(run, "training")]


def digests(run: Path, world: int) -> dict[int, dict[str, str]]:
    """Step -> stream position -> hash of the row there, over all ranks."""
    found: dict[int, dict[str, str]] = {}
    for rank in range(world):
        for record in records(run, "rows", rank):
            step = found.setdefault(record["step"], {})
            assert not set(step) & set(record["digests"]), "two ranks had one row"
            step |= record["digests"]
    return found


def end_of(run: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((run / "end.json").read_text())
    return told


def keep_only(run: Path, *steps: int) -> None:
    """As if the run had been killed after the last of these checkpoints."""
    for folder in (run / "checkpoints").glob("step-*"):
        if int(folder.name.removeprefix("step-")) not in steps:
            shutil.rmtree(folder)
    (run / "end.json").unlink(missing_ok=True)
