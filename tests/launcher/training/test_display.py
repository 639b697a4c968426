"""What a person sees who starts a run in a terminal of 80 columns."""

import fcntl
import os
import re
import struct
import termios
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from launcher.training.ranks import Rank, records, run_args

from remask.launcher.distributed import free_port

pytestmark = pytest.mark.dist

COLUMNS = 80


class Terminal:
    """A pseudo-terminal, and what stands on its screen; lines that scroll away are kept."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self.name, self._slave = os.ttyname(slave), slave
        self._written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # nobody writes any more
            while got := os.read(self._master, 65536):
                self._written += got

    def close(self) -> str:
        """All that was written to it."""
        os.close(self._slave)
        self._reader.join(10)
        os.close(self._master)
        return self._written.decode()


def screen_of(written: str) -> list[str]:
    """As a terminal shows it: carriage returns, line feeds, cursor up, erased lines and lines that are too long."""
    lines, row, column = [""], 0, 0
    for control, count, letter, char in re.findall(r"(\x1b\[[?]?([\d;]*)([A-Za-z]))|([\s\S])", written):
        if letter == "A":
            row -= int(count or 1)
        elif letter == "K":
            lines[row] = ""
        elif control:
            assert letter in "mhl", repr(control)
        elif char == "\r":
            column = 0
        elif char == "\n" or column == COLUMNS:
            row += 1
            lines += [""] * (row + 1 - len(lines))
            column = 0
        if char and char not in "\r\n":
            lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


@pytest.fixture(scope="module")
def seen(recipe: str, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run of two ranks, rank 0 in a terminal."""
    run, terminal = tmp_path_factory.mktemp("display") / "run", Terminal()
    args = run_args(recipe, shards, run, "--engine.zero-stage", "1", "--metrics.evaluate-every-steps", "15")
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TERM": "xterm", "COLUMNS": ""}
    ranks = [
        Rank("remask.launcher.train", tuple(args), {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, terminal=place)
        for rank, place in enumerate([terminal.name, None])
    ]
    codes = [rank.wait(120) for rank in ranks]
    written = terminal.close()
    assert codes == [0, 0], written
    return run, screen_of(written)


def test_every_figure_is_seen_whole(seen: tuple[Path, list[str]]) -> None:
    run, screen = seen
    told = records(run, "training")[-1]
    bar = max(number for number, line in enumerate(screen) if "━" in line)
    assert re.fullmatch(r"━{40,} 100\.0%, 0 s to go", screen[bar]), screen
    figures = " ".join(screen[bar + 1 : bar + 5])
    losses = ", ".join(f"{name.replace('_', ' ')} {loss:.4f}" for name, loss in told["losses"].items())
    assert len(told["losses"]) == 2 and set(told["bytes_per_step"]) == {"all_reduce", "all_gather_into_tensor"}
    for figure in (
        f"step 40 (100.0%): loss {told['loss']:.4f} ({losses})", f"lr {told['lr']:.2e}", f"gradient norm {told['gradient_norm']:.2f}",
        f"{told['tokens_per_s']:,.0f} tokens/s", f"MFU {told['mfu']:.1%}", f"data wait {told['data_wait']:.1%}", "sent a step: ",
        *(f"{name} {amount / 1000:.1f} kB" for name, amount in told["bytes_per_step"].items()),
    ):  # fmt: skip
        assert figure in figures, (figure, screen)
    assert not any("…" in line for line in screen)


def test_lines_of_the_log_begin_on_lines_of_their_own(seen: tuple[Path, list[str]]) -> None:
    run, screen = seen
    shown = [line for line in screen if re.search(r"(INFO|WARNING) +\w", line)]
    assert all(re.match(r"(\d\d:\d\d:\d\d|\s{8}) (INFO|WARNING) +\w", line) for line in shown), screen
    told = [line.split(" ", 3)[3] for line in (run / "train.log").read_text().splitlines()]
    assert len(told) >= 10 and sum("checkpoint written" in line for line in told) == 4
    begun = [line[18:].split()[0] for line in shown]  # a long line goes on in the next one
    assert begun[-len(told) :] == [line.split()[0] for line in told], screen
