"""Reading a run's folder: whatever is missing or damaged is told, and the rest is used."""

import json
from pathlib import Path

import pytest
from sample_run import evaluation_record, training_record, write_incident, write_run

from remask.launcher.errors import UserError
from remask.launcher.reporting.runs import find_runs, name_runs, read_run


def test_all_that_a_run_told_is_read(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"), "run")
    assert [record["step"] for record in run.training] == list(range(10, 101, 10))
    assert [record["step"] for record in run.evaluations] == [0, 100]
    assert (run.ranks, run.parts, run.collectives) == (2, ["masked_tokens", "sentence"], ["all_gather", "all_reduce"])
    assert run.speed == (8055.0, 8020.0, 8090.0)
    assert run.notes == [] and run.end is not None and run.end["end"] == "finished"


def test_the_wall_time_is_the_newest_checkpoints_and_that_of_the_steps_since(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert read_run(run, "run").seconds == 40.0, "no checkpoint: the time of all steps"
    for step, seconds in ((30, 15.0), (60, 34.5)):
        folder = run / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"state": {"step": step, "seconds": seconds}}))
    assert read_run(run, "run").seconds == 34.5 + 4 * 4.0
    (run / "checkpoints" / "step-00000060" / "state.json").write_text("{")
    assert read_run(run, "run").seconds == 15.0 + 7 * 4.0, "a damaged one is passed over"


def test_a_line_that_is_not_whole_is_told_and_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [training_record(10), training_record(20)])
    file = run / "metrics" / "rank-00000.jsonl"
    file.write_text(file.read_text() + '{"step": 30, "kind": "trai')
    found = read_run(run, "run")
    assert [record["step"] for record in found.training] == [10, 20]
    assert found.notes == ["1 line of rank-00000.jsonl not whole, left out"]
    file.write_bytes(file.read_bytes() + b'\n[1, 2]\n{"step": "x", "kind": "training"}\n\xff\xfe\n')
    assert read_run(run, "run").notes == ["4 lines of rank-00000.jsonl not whole, left out"]


def test_a_run_without_a_step_is_told(tmp_path: Path) -> None:
    (tmp_path / "run" / "job").mkdir(parents=True)
    (tmp_path / "run" / "job" / "jobs.json").write_text("[]")
    assert read_run(tmp_path / "run", "run").notes == ["no step has been told yet", "no config.yaml yet: it was not started"]


def test_damaged_files_beside_the_metrics_are_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_incident(run, 20)
    (run / "incidents" / "step-00000030-row-1.json").write_text("{")
    (run / "config.yaml").write_text("seed: [1")
    for name in ("environment.json", "end.json"):
        (run / name).write_text("{")
    found = read_run(run, "run")
    assert len(found.incidents) == 1 and found.starts == [] and found.end is None and found.config == {}
    assert any("config.yaml cannot be read" in note for note in found.notes)
    assert "incidents/step-00000030-row-1.json is damaged, left out" in found.notes
    assert found.parsed_config is None


def test_a_file_that_is_nested_too_deep_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [training_record(10)])
    write_incident(run, 20)
    metrics = run / "metrics" / "rank-00000.jsonl"
    metrics.write_text(metrics.read_text() + "[" * 100_000 + "\n" + json.dumps(training_record(20) | {"step": 10**400}) + "\n")
    (run / "checkpoints" / "step-00000010").mkdir(parents=True)
    names = ["environment.json", "end.json", "incidents/step-00000020-row-320.json", "checkpoints/step-00000010/state.json"]
    for name in names:
        (run / name).write_text("[" * 100_000)
    found = read_run(run, "run")
    assert len(found.training) == 1 and found.end is None and not found.starts and not found.incidents and found.seconds == 4.0
    assert found.notes == ["2 lines of rank-00000.jsonl not whole, left out", *(f"{name} is damaged, left out" for name in names)]


def test_a_wall_time_that_is_not_finite_is_passed_over(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [training_record(10), training_record(20)])
    for step, text in ((10, "5.0"), (20, "1e999")):
        folder = run / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(f'{{"state": {{"step": {step}, "seconds": {text}}}}}')
    found = read_run(run, "run")
    assert found.seconds == 5.0 + 4.0 and found.notes == ["checkpoints/step-00000020/state.json tells no wall time, left out"]


def test_ranks_that_are_no_number_leave_the_number_open(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for ranks in ([1, 2], True, "2", -1, 10**400):
        (run / "environment.json").write_text(json.dumps([{"ranks": ranks}, {"ranks": ranks}]))
        assert read_run(run, "run").ranks is None


def test_starts_with_other_numbers_of_ranks_leave_the_number_open(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", ranks=(2, 4)), "run")
    assert run.ranks is None and run.notes == ["its starts had different numbers of ranks, so figures for one GPU are left out"]


def test_runs_right_below_a_folder_are_found(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_run(tmp_path / "sweep" / name)
    (tmp_path / "sweep" / "notes").mkdir()
    (tmp_path / "sweep" / "config.yaml").write_text("base: albert-tiny\n")  # as a demo's folder has
    assert find_runs(tmp_path / "sweep") == [tmp_path / "sweep" / "a", tmp_path / "sweep" / "b"]
    assert find_runs(tmp_path / "sweep" / "a") == [tmp_path / "sweep" / "a"]
    with pytest.raises(UserError, match="no run here"):
        find_runs(tmp_path / "sweep" / "notes")


def test_runs_with_one_name_are_called_by_their_paths() -> None:
    assert name_runs([Path("x/run"), Path("y/run"), Path("other")]) == ["x/run", "y/run", "other"]


def test_each_step_counts_once_the_last_line_of_it(tmp_path: Path) -> None:
    records = [training_record(10, loss=1.0), training_record(10, loss=2.0), evaluation_record(10, 3.0)]
    run = read_run(write_run(tmp_path / "run", records), "run")
    assert [record["loss"] for record in run.training] == [2.0] and len(run.evaluations) == 1
