"""What a run tells of itself: lines or a bar on the terminal, a JSONL file a rank, and TensorBoard."""

import json
import logging
import math
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from remask.data_prep.files import written_whole
from remask.launcher.ranks import Place

log = logging.getLogger(__name__)


class Records:
    """The records of one rank. Those of steps that a resumed run makes again are removed, so that each step stands there once."""

    def __init__(self, run: Path, place: Place, *, tensorboard: bool, resumed_step: int | None) -> None:
        self.file = run / "metrics" / f"rank-{place.rank:05d}.jsonl"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        _trim(self.file, resumed_step)
        if place.rank == 0:  # a rank that is no more cannot do it itself
            mine = {f"rank-{rank:05d}.jsonl" for rank in range(place.world_size)}
            for file in self.file.parent.glob("rank-*.jsonl"):
                if file.name not in mine:
                    _trim(file, resumed_step)
        self._closing = ExitStack()
        self._stream = self._closing.enter_context(self.file.open("a", encoding="utf-8"))
        self._board: Any = None
        self._bar: Any = None
        if place.rank == 0:
            self._open_displays(run, tensorboard, resumed_step)

    def _open_displays(self, run: Path, tensorboard: bool, resumed_step: int | None) -> None:
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board_folder = str(run / "tensorboard")
            self._board = SummaryWriter(self._board_folder, purge_step=0 if resumed_step is None else resumed_step + 1)
            self._closing.callback(lambda: self._board.close())
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = self._closing.enter_context(Progress(BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True)))
            self._task = self._bar.add_task("", total=1.0)

    def write(self, record: dict[str, Any]) -> None:
        """One line of JSON with the time of the day, on the disk before the next checkpoint may rely on it."""
        plain = {name: json_number(value) for name, value in {**record, "time": time.time()}.items()}
        self._stream.write(json.dumps(plain, ensure_ascii=False, allow_nan=False) + "\n")
        self._stream.flush()

    def sync(self) -> None:
        os.fsync(self._stream.fileno())

    def forget_after(self, step: int) -> None:
        """After a rollback the steps behind it are made again."""
        self._stream.close()
        _trim(self.file, step)
        self._stream = self._closing.enter_context(self.file.open("a", encoding="utf-8"))
        if self._board is not None:
            self._board.close()
            self._board = type(self._board)(self._board_folder, purge_step=step + 1)

    def show(self, sentence: str, done: float) -> None:
        """On rank 0's terminal, or in its log."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=sentence)
        else:
            log.info("%s", sentence)

    def plot(self, step: int, scalars: dict[str, float], texts: dict[str, str] | None = None) -> None:
        if self._board is not None:
            for name, value in scalars.items():
                self._board.add_scalar(name, value, step)
            for name, text in (texts or {}).items():
                self._board.add_text(name, text, step)

    def close(self) -> None:
        self._closing.close()


def json_number(value: Any) -> Any:
    """A number that JSON has no way to write, alone or in a mapping, as text: "nan", "inf"."""
    if isinstance(value, dict):
        return {name: json_number(inner) for name, inner in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _trim(file: Path, step: int | None) -> None:
    """Leave only whole records of steps up to this one, or none."""
    if not file.exists():
        return
    kept = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            whole = line.endswith("\n") and step is not None and json.loads(line)["step"] <= step
        except (ValueError, KeyError, TypeError):  # a line that a killed run did not finish, or that is not ours
            continue
        kept.extend([line] if whole else [])
    with written_whole(file) as stream:
        stream.write("".join(kept).encode())
