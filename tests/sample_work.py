"""Work for worker processes, which import it by name."""

import os
import signal
from pathlib import Path


def die_the_first_time(marker: Path) -> int:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


def always_die(_: Path) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def fail(_: Path) -> int:
    raise RuntimeError("this file never works")
