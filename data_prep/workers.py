"""Who does the work items: local processes, or the ranks of an MPI job. Both take the same list, and the result does not depend on them."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from remask.data_prep.processes import process_pool

log = logging.getLogger(__name__)

_ATTEMPTS = 3

Task = tuple[Any, ...]


class Workers:
    """Runs tasks and tells how each ended. What was running when a worker died runs again one at a time: then the blame is certain."""

    def __init__(self, new_executor: Callable[[], Executor], count: int) -> None:
        self._new_executor, self.count = new_executor, count
        self._executor: Executor | None = None

    def run(self, work: Callable[..., int], tasks: list[Task]) -> Iterator[tuple[Task, int | None, BaseException | None]]:
        """(task, what it returned, error) as they end; the error is None when it went well."""
        waiting = [(task, 0) for task in reversed(tasks)]
        suspects: list[tuple[Task, int]] = []
        running: dict[Future[int], tuple[Task, int, bool]] = {}
        while waiting or suspects or running:
            if suspects and not running:
                task, deaths = suspects.pop()
                running[self._submit(work, task)] = (task, deaths, True)
            while waiting and not suspects and len(running) < self.count and not any(alone for *_, alone in running.values()):
                task, deaths = waiting.pop()
                running[self._submit(work, task)] = (task, deaths, False)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task, deaths, alone = running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    self.close()
                    deaths += alone
                    if deaths < _ATTEMPTS:
                        log.warning("a worker died; what it was doing is tried again")
                        suspects.append((task, deaths))
                        continue
                yield task, None if error else future.result(), error

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def _submit(self, work: Callable[..., int], task: Task) -> Future[int]:
        try:
            return self._running_executor().submit(work, *task)
        except (BrokenProcessPool, OSError):  # OSError: a worker died while the pool was starting another one
            self.close()
            return self._running_executor().submit(work, *task)

    def _running_executor(self) -> Executor:
        if self._executor is None:
            self._executor = self._new_executor()
        return self._executor


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """Processes on this machine."""
    workers = Workers(lambda: process_pool(count), count)
    try:
        yield workers
    finally:
        workers.close()
