"""Some ranks on this machine, for the demo: what torchrun does, in the words of this program."""

import os
import subprocess
import time
from collections.abc import Sequence

from remask.launcher.distributed import free_port

_SECONDS_BETWEEN_LOOKS = 0.2


def run_ranks(world: int, command: Sequence[str]) -> int:
    """The first exit code that is not 0, after all have ended; when one fails or we are interrupted, the others are told to end."""
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(list(command), env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(world)
    ]
    try:
        while not any(process.poll() for process in processes) and any(process.poll() is None for process in processes):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    finally:
        for process in processes:
            process.terminate()
        codes = [process.wait() for process in processes]
    return next((code for code in codes if code), 0)
