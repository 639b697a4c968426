"""What a run tells of itself: lines or a bar on the terminal, a JSONL file a rank, and TensorBoard."""

import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.data_prep.files import written_whole
from remask.launcher import logs
from remask.launcher.ranks import Place

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Display:
    """On a terminal: a bar with the time to go, which the sentence ends with, and below it the other figures in lines that fit."""

    sentence: str = ""
    done: float = 0.0

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        figures, _, left = self.sentence.rpartition(", ")
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(ProgressBar(total=1.0, completed=self.done), Text(", ".join(filter(None, [f"{self.done:.1%}", left]))))
        yield bar
        for line in _wrap(figures, options.max_width):
            yield Text(line)


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
        self._told_of_the_disk = False
        self._closing = ExitStack()
        self._stream = self._closing.enter_context(self.file.open("a", encoding="utf-8"))
        self._board: Any = None
        self._display: _Display | None = None
        if place.rank == 0:
            self._open_displays(run, tensorboard, resumed_step)

    def _open_displays(self, run: Path, tensorboard: bool, resumed_step: int | None) -> None:
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board_folder = str(run / "tensorboard")
            self._board = SummaryWriter(self._board_folder, purge_step=0 if resumed_step is None else resumed_step + 1)
            self._closing.callback(lambda: self._board.close())
        if sys.stderr.isatty() and not logs.terminal().is_dumb_terminal:
            from rich.live import Live

            self._display = _Display()
            self._closing.enter_context(Live(self._display, console=logs.terminal()))
            logs.terminal().show_cursor(True)  # which rich hides, and a run that is killed could not show again

    def write(self, record: dict[str, Any]) -> None:
        """One line of JSON with the time of the day, on the disk before the next checkpoint may rely on it."""
        plain = {name: json_number(value) for name, value in {**record, "time": time.time()}.items()}
        with self._despite_the_disk():
            self._stream.write(json.dumps(plain, ensure_ascii=False, allow_nan=False) + "\n")
            self._stream.flush()

    def sync(self) -> None:
        with self._despite_the_disk():
            os.fsync(self._stream.fileno())

    @contextmanager
    def _despite_the_disk(self) -> Iterator[None]:
        """A full disk does not end a run for its metrics; it is told once."""
        try:
            yield
        except OSError as error:
            if not self._told_of_the_disk:
                log.warning("%s: cannot be written (%s); the run goes on, some of its metrics are lost", self.file, error.strerror)
            self._told_of_the_disk = True

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
        if self._display is not None:
            self._display.sentence, self._display.done = sentence, done
        else:
            log.info("%s", sentence)

    def plot(self, step: int, scalars: dict[str, float], texts: dict[str, str] | None = None) -> None:
        if self._board is None:
            return
        with self._despite_the_disk():
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


def _wrap(sentence: str, width: int) -> list[str]:
    """Lines that are broken between figures only."""
    lines: list[str] = []
    for figure in sentence.split(", "):
        if lines and len(lines[-1]) + len(figure) + 3 <= width:  # with a comma at its own end, too
            lines[-1] += f", {figure}"
        else:
            lines[-1:] = [f"{line}," for line in lines[-1:]]
            lines.append(figure)
    return lines


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
