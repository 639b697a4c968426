"""The processes of one contestant: all of its ranks, or the one that belongs to this rank of a job."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from remask.launcher.ranks import Place

# torchrun's own store is not ours to meet at.
_NOT_INHERITED = ("TORCHELASTIC_USE_AGENT_STORE",)


class Team:
    """Ranks of one contestant that this process has started; they make steps when they are told to."""

    def __init__(self, name: str, config: Path, places: Sequence[Place], meeting: tuple[str, int]) -> None:
        self.name = name
        self.logs = [config.with_name(f"{name}-{place.rank}.log") for place in places]
        shared = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        shared |= {"MASTER_ADDR": meeting[0], "MASTER_PORT": str(meeting[1])}
        self.processes = [_start(name, config, {**shared, **_told(place)}, log) for place, log in zip(places, self.logs, strict=True)]

    def ask(self, steps: int) -> dict[str, Any]:
        """What rank 0 says about so many steps, or nothing if it is not here. RuntimeError with its last words if a rank ends."""
        for process in self.processes:
            with suppress(BrokenPipeError):  # then there is no answer either
                print(steps, file=process.stdin, flush=True)
        answer: dict[str, Any] = {}
        waiting = {process.stdout: log for process, log in zip(self.processes, self.logs, strict=True) if process.stdout}
        while waiting:
            for stream in select.select(list(waiting), [], [])[0]:
                if not (line := stream.readline()):
                    raise RuntimeError(f"{self.name} ended: {waiting[stream].read_text(errors='replace')[-2000:]}")
                answer |= json.loads(line)
                del waiting[stream]
        return answer

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def _start(name: str, config: Path, environment: Mapping[str, str], log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "remask.benchmarks.throughput_contestants", name, str(config)]
    with log.open("w") as stream:
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True)


def _told(place: Place) -> dict[str, str]:
    return {"RANK": str(place.rank), "WORLD_SIZE": str(place.world_size), "LOCAL_RANK": str(place.local_rank)}
