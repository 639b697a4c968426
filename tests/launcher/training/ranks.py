"""Starts the ranks of a real run, as a launcher would, and reads what it left."""

import json
import multiprocessing
import os
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remask.launcher.distributed import free_port

# Most of a short run's time goes into importing torch and DeepSpeed: one process does it, and every rank is forked from there.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["deepspeed", "torch._dynamo", "remask.launcher.cli", "remask.launcher.training.trainer"])


class Rank:
    """A process with its output in a file, for a pipe that nobody reads would stop it; or in a terminal that is named."""

    def __init__(
        self, script: str, args: tuple[str, ...], environment: dict[str, str], largest_file: int | None = None, terminal: str | None = None
    ) -> None:
        self._output = tempfile.NamedTemporaryFile()  # noqa: SIM115 (closed with the process)
        given = (script, args, environment, terminal or self._output.name, largest_file)
        self._process = _SERVER.Process(target=_be, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def said(self) -> str:
        return Path(self._output.name).read_text()

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"process {self.pid} is still there after {seconds} s"
        return self._process.exitcode

    @property
    def alive(self) -> bool:
        return self._process.is_alive()


def _be(script: str, args: tuple[str, ...], environment: dict[str, str], output: str, largest_file: int | None) -> None:
    """What `python -m module` or `python script` does, in a process that has imported most of it."""
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.argv = [script, *args]
    if script.endswith(".py"):
        runpy.run_path(script, run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__")


def start(world: int, *args: str, script: str = "remask.launcher.train", largest_file: int | None = None) -> list[Rank]:
    """The ranks of `remask train`, or of another module or file."""
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [Rank(script, args, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, largest_file) for rank in range(world)]


def wait(processes: list[Rank], seconds: float = 200) -> tuple[list[int], str]:
    """Exit codes and all that was said; nothing is left running."""
    end = time.monotonic() + seconds
    try:
        for process in processes:
            process.wait(max(end - time.monotonic(), 0.1))
    finally:
        for process in processes:
            process.kill()
    return [process.wait() for process in processes], "".join(process.said() for process in processes)


def wait_until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


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
