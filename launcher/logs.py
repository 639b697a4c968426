"""Logging: coloured lines on a terminal, plain lines in files and pipes; one line a fact, from rank 0 unless all ranks are asked for."""

import logging
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_TIME = "%Y-%m-%d %H:%M:%S"


def configure(*, rank: int = 0, all_ranks: bool = False) -> None:
    """Set up the `remask` logger of this process: called when a command starts, never at import."""
    logger = logging.getLogger("remask")
    while logger.handlers:
        logger.handlers[0].close()
        logger.removeHandler(logger.handlers[0])
    logger.propagate = False
    logger.setLevel(logging.INFO if rank == 0 or all_ranks else logging.ERROR)
    prefix = f"[rank {rank}] " if all_ranks else ""
    logger.addHandler(_terminal(prefix) if sys.stderr.isatty() else _plain(logging.StreamHandler(), prefix))


def also_to(file: Path) -> None:
    """Add the run's log file, with plain lines whatever the terminal shows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger("remask").addHandler(_plain(_LogFile(file, encoding="utf-8", errors="backslashreplace"), ""))


class _LogFile(logging.FileHandler):
    """Lines that a full disk does not take are on the terminal; nothing more can be done for them."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 (logging's own signature)
        return


def _plain(handler: logging.Handler, prefix: str) -> logging.Handler:
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {prefix}%(message)s", _TIME))
    return handler


@cache
def terminal() -> "Console":
    """The one console on stderr: two would write into each other's lines."""
    from rich.console import Console

    return Console(stderr=True)


def _terminal(prefix: str) -> logging.Handler:
    from rich.logging import RichHandler

    handler = RichHandler(console=terminal(), show_path=False, log_time_format="%H:%M:%S")
    handler.setFormatter(logging.Formatter(f"{prefix}%(message)s"))
    return handler
