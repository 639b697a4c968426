"""Signs of life: every rank tells where it is, and watches the next one; a rank that falls silent is named, and the run ends.

Signs are small files in the run's folder, which all ranks share. They are compared by their content and this rank's own clock, so the
machines' clocks need not agree. A full disk does not silence a rank: it touches the file that is there.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from remask.launcher.ranks import Place
from remask.launcher.training.traffic import Traffic

SILENT_EXIT = 3
"""Exit code of a run that ends because a rank gave no sign."""

log = logging.getLogger(__name__)

# Shares of the timeout: silence that is too long, and time between two looks; together less than the whole, when collectives give up.
_SILENCE, _LOOK = 0.7, 0.1
_MOST_SECONDS_BETWEEN_LOOKS = 5.0


class Heartbeat:
    """A thread that beats for this rank and watches the next one, between `start` and `stop`."""

    def __init__(self, folder: Path, place: Place, traffic: Traffic, seconds: float) -> None:
        self.place, self._traffic, self._seconds = place, traffic, seconds
        self.step: Callable[[], int] = lambda: 0
        """The step at which the run is."""
        self._folder = folder
        self._next = (place.rank + 1) % place.world_size
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._beats = 0

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._beat()
        if self.place.world_size > 1:
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def last_sign(self, rank: int) -> dict[str, Any]:
        """What a rank told last, and when its file was touched."""
        try:
            sign: dict[str, Any] = json.loads(self._file(rank).read_text(encoding="utf-8"))
            return {**sign, "touched": self._file(rank).stat().st_mtime_ns}
        except (OSError, ValueError):
            return {}

    def _run(self) -> None:
        seen, since = {}, time.monotonic()  # type: ignore[var-annotated]
        while not self._stopped.wait(min(_MOST_SECONDS_BETWEEN_LOOKS, _LOOK * self._seconds)):
            self._beat()
            sign = self.last_sign(self._next)
            if sign != seen:
                seen, since = sign, time.monotonic()
            elif (silent := time.monotonic() - since) > _SILENCE * self._seconds:
                self._end(sign, silent)

    def _end(self, sign: dict[str, Any], silent: float) -> None:
        where = f"rank {self._next}" + (f" on {sign['host']} (process {sign['process']})" if sign else "")
        last = f"last seen at step {sign['step']} after {sign['collective']}, its collective {sign['number']:,}" if sign else "never seen"
        log.error(
            "%s gave no sign of life for %.0f s, %s; rank %d waits for it at step %d in %s, its collective %s; the run ends. "
            "Look at that machine, then start the same command: it resumes",
            where, silent, last, self.place.rank, self.step(), self._traffic.last, f"{self._traffic.number:,}",
        )  # fmt: skip
        logging.shutdown()
        os._exit(SILENT_EXIT)

    def _beat(self) -> None:
        self._beats += 1
        sign = {
            "beat": self._beats,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "step": self.step(),
            "collective": self._traffic.last,
            "number": self._traffic.number,
        }
        partial = self._file(self.place.rank).with_suffix(".partial")
        try:
            partial.write_text(json.dumps(sign), encoding="utf-8")
            partial.replace(self._file(self.place.rank))
        except OSError as error:
            log.warning("%s: no sign of life could be written (%s)", self._folder, error.strerror)
            with suppress(OSError):
                os.utime(self._file(self.place.rank))

    def _file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank:05d}.json"
