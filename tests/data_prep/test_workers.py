"""Workers that die, and work that fails."""

from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from sample_work import always_die, die_the_first_time, fail

from remask.data_prep.workers import Workers, local_workers


def test_work_whose_worker_died_is_done_again(tmp_path: Path) -> None:
    tasks = [(tmp_path / str(i),) for i in range(4)]
    with local_workers(2) as workers:
        ended = list(workers.run(die_the_first_time, tasks))
    assert sorted(task[0].name for task, _, _ in ended) == ["0", "1", "2", "3"]
    assert [(made, error) for _, made, error in ended] == [(7, None)] * 4


def test_work_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    with local_workers(1) as workers:
        ((_, made, error),) = workers.run(always_die, [(tmp_path,)])
        assert made is None and isinstance(error, BrokenProcessPool)
        assert [made for _, made, _ in workers.run(die_the_first_time, [(tmp_path,)])] == [7]


def test_a_failure_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    with local_workers(2) as workers:
        assert [str(error) for _, _, error in workers.run(fail, [(tmp_path,), (tmp_path,)])] == ["this file never works"] * 2


def test_a_pool_that_breaks_while_it_starts_a_process_is_replaced() -> None:
    class Breaking(Executor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            raise OSError("handle is closed")

    executors = iter([Breaking(), ThreadPoolExecutor(1)])
    workers = Workers(lambda: next(executors), 1)
    assert [(made, error) for _, made, error in workers.run(lambda number: number + 1, [(6,)])] == [(7, None)]
    workers.close()
