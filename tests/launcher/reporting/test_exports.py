"""Runs for other tools, held against the records that they were made of."""

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from sample_run import BYTES, end_run, training_record, write_run

from remask.launcher.reporting.exports import write_csv, write_mllog
from remask.launcher.reporting.runs import read_run


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def events_of(text: str) -> list[dict[str, Any]]:
    """As MLPerf's own parser finds them."""
    found = [re.fullmatch(r":::MLLOG (\{.+\})", line) for line in text.splitlines()]
    assert found and all(found)
    return [json.loads(match.group(1)) for match in found if match]


def test_the_csv_has_the_known_columns_and_the_records_figures(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"), "a, run")
    rows = rows_of(write_csv([run]))
    assert [row["step"] for row in rows] == ["0", *(str(step) for step in range(10, 101, 10))]
    assert {row["run"] for row in rows} == {"a, run"}
    row = rows[5]
    assert float(row["tokens_per_sec"]) == 8050.0 and float(row["tokens_per_sec_per_gpu"]) == 4025.0
    assert float(row["model_tflops_per_gpu"]) == 0.125
    assert (row["consumed_samples"], row["consumed_tokens"], row["global_batch_size"]) == ("1600", "160000", "32")
    assert (float(row["step_time_s"]), row["world_size"], row["comm_bytes_per_step"]) == (0.4, "2", str(sum(BYTES.values())))
    assert float(row["loss"]) == pytest.approx(float(row["loss_masked_tokens"]) + float(row["loss_sentence"]))
    assert rows[0]["loss"] == "" and float(rows[0]["validation_loss"]) == 9.0
    assert float(rows[-1]["validation_perplexity"]) == pytest.approx(math.exp(5.0)) and rows[-1]["loss"] != ""


def test_a_loss_that_is_nan_is_no_empty_cell(tmp_path: Path) -> None:
    records = [training_record(10, loss=math.nan, gradient_norm=math.inf), training_record(20)]
    del records[1]["mfu"]
    rows = rows_of(write_csv([read_run(write_run(tmp_path / "run", records), "run")]))
    assert (rows[0]["loss"], rows[0]["grad_norm"], rows[1]["mfu"]) == ("nan", "inf", "")


def test_figures_for_one_gpu_are_left_out_where_the_number_changed(tmp_path: Path) -> None:
    rows = rows_of(write_csv([read_run(write_run(tmp_path / "run", ranks=(2, 4)), "run")]))
    assert {row["tokens_per_sec_per_gpu"] for row in rows} == {""} and rows[1]["tokens_per_sec"] != ""


def test_mllog_lines_tell_the_run_in_order(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"), "run")
    events = events_of(write_mllog([run]))
    keys = [event["key"] for event in events]
    told = {event["key"]: event["value"] for event in events}
    assert (told["global_batch_size"], told["opt_name"], told["max_sequence_length"], told["seed"]) == (32, "lamb", 128, 1)
    assert keys.count("run_start") == keys.count("run_stop") == 1 and keys[-1] == "run_stop"
    assert keys.count("train_loss") == keys.count("tracked_stats") == 10 and keys.count("eval_start") == keys.count("eval_stop") == 2
    times = [event["time_ms"] for event in events]
    assert times == sorted(times) and times[0] == 1772366400000 and times[-1] == times[0] + 40_000
    assert events[-1]["metadata"]["status"] == "success" and events[-1]["event_type"] == "INTERVAL_END"
    first = next(event for event in events if event["key"] == "tracked_stats")
    assert first["value"]["throughput"] == 80.0 and first["metadata"]["samples_count"] == 320, "320 rows in 4 seconds"


def test_a_run_that_was_stopped_or_goes_on_is_no_success(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [training_record(10, loss=math.nan)], ended=False)
    events = events_of(write_mllog([read_run(folder, "run")]))
    assert "run_stop" not in [event["key"] for event in events]
    assert [event["value"] for event in events if event["key"] == "train_loss"] == ["nan"]
    end_run(folder, "stopped")
    assert events_of(write_mllog([read_run(folder, "run")]))[-1]["metadata"]["status"] == "aborted"
