"""Curves of the runs: what was sent, next to what the communication model says."""

from pathlib import Path
from typing import Any

import pytest
from sample_run import training_record, write_run

from remask.launcher.communication import predict, weights_of
from remask.launcher.config import load
from remask.launcher.reporting.curves import communication
from remask.launcher.reporting.parts import Note, Table, show_bytes
from remask.launcher.reporting.runs import read_run


def rows_of(folder: Path, records: list[dict[str, Any]], stage: int, ranks: tuple[int, ...] = (2,)) -> list[list[str]]:
    """Of the table, without the run's name."""
    run = write_run(folder, records, overrides={"engine": {"zero_stage": stage}}, ranks=ranks)
    table = communication([read_run(run, "run")]).parts[-1]
    assert isinstance(table, Table)
    return [list(row[1:]) for row in table.rows]


def predicted(stage: int, micro_batches: int) -> dict[str, int]:
    config = load("albert-tiny", {"data": {"sets": ["no-shards"]}, "engine": {"zero_stage": stage}})
    return dict(predict(config, weights_of(config), 2, micro_batches).payload)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_predicted_bytes_stand_next_to_measured_ones_by_collective(tmp_path: Path, stage: int) -> None:
    expected = predicted(stage, 3)
    told = {name if name == "all_reduce" else f"{name}_{'into_' if 'gather' in name else ''}tensor": n for name, n in expected.items()}
    records = [training_record(step, bytes_per_step=told, micro_batches=3.0) for step in (10, 20)]
    assert rows_of(tmp_path / "run", records, stage) == [
        [name, show_bytes(expected[name]), show_bytes(expected[name]), "1.0000"] for name in sorted(expected)
    ]


def test_a_mean_number_of_micro_batches_is_predicted_too(tmp_path: Path) -> None:
    two, three = predicted(2, 2)["all_reduce"], predicted(2, 3)["all_reduce"]
    records = [training_record(10, bytes_per_step={"all_reduce": (two + three) // 2}, micro_batches=2.5)]
    assert rows_of(tmp_path / "run", records, 2)[1][-1] == "1.0000"


def test_older_records_have_a_prediction_where_it_needs_no_micro_batches(tmp_path: Path) -> None:
    for stage in (0, 1, 2, 3):
        rows = rows_of(tmp_path / str(stage), [training_record(10)], stage)
        assert [bool(row[2]) for row in rows] == [stage < 2] * 2


def test_kernels_that_are_not_to_be_had_here_change_no_prediction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kernels = {"engine": {"kernels": "vendor", "compile": True}}
    run = read_run(write_run(tmp_path / "run", [training_record(10)], overrides=kernels), "run")
    with caplog.at_level("INFO"):
        table = communication([run]).parts[-1]
    assert isinstance(table, Table) and table.rows[1][3] and not caplog.records


def test_nothing_is_predicted_where_the_number_of_ranks_changed(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "run", [training_record(10)], 0, ranks=(2, 4))
    assert rows == [["all_gather", "1.5 MB", "", ""], ["all_reduce", "3 MB", "", ""]]


def test_bytes_that_are_no_number_are_a_gap(tmp_path: Path) -> None:
    records = [training_record(10, bytes_per_step={"a": "zz"}), training_record(20, bytes_per_step={"a": 4000})]
    run = read_run(write_run(tmp_path / "run", records), "run")
    chart, table = communication([run]).parts
    assert not isinstance(chart, Note) and isinstance(table, Table) and list(table.rows[0][:3]) == ["run", "a", "4 kB"]
