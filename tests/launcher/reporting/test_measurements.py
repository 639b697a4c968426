"""Benchmarks: tables of any, charts of those whose figures are known."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from sample_run import communication_benchmark

from remask.launcher.errors import UserError
from remask.launcher.reporting.markdown import write_markdown
from remask.launcher.reporting.measurements import measured, read_benchmark
from remask.launcher.reporting.parts import Chart, Note, Part, Report, Section, Table


def parts_of(folder: Path, record: dict[str, Any]) -> dict[str, Part]:
    file = folder / "figures.json"
    file.write_text(json.dumps(record))
    return {part.text if isinstance(part, Note) else part.title: part for part in measured(read_benchmark(file)).parts}


def test_tables_and_what_they_were_measured_on_are_shown(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, communication_benchmark())
    table, facts = parts["Bytes of a step"], parts["How it was measured"]
    assert isinstance(table, Table) and isinstance(facts, Table)
    assert list(table.rows) == [["all", "1.02 (1.01 to 1.03)"]] and table.note == "Of one rank."
    told = {row[0]: row[1] for row in facts.rows}
    assert told["command"] == "remask bench comm --json comm.json" and told["commit"] == "0123456789ab"
    assert told["took"] == "1 min 15 s" and told["versions"] == "torch 2.13.0" and told["hardware"] == "cpu a CPU, cores 2, gpus none"
    assert isinstance(parts["No link was tried."], Note), "a table without columns is a sentence"


def test_predicted_bytes_stand_next_to_measured_ones(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, communication_benchmark())
    chart, table = parts["Wire bytes, predicted and measured"], parts["Bytes of a step, predicted and measured"]
    assert isinstance(chart, Chart) and isinstance(table, Table)
    points = {line.name: (list(line.x), list(line.y)) for line in chart.lines if line.points}
    assert points == {"sharing none": ([5_000_000], [5_100_000]), "sharing all": ([3_000_000], [3_060_000])}
    assert list(table.rows)[1] == ["all", "0", "2", "1", "4", "3 MB", "3 MB", "1.0000", "3 MB", "3.06 MB", "1.0200"]


def test_speedup_is_drawn_over_the_links_speed_with_the_break_even(tmp_path: Path) -> None:
    chart = parts_of(tmp_path, communication_benchmark())["Speedup over the link's speed"]
    assert isinstance(chart, Chart)
    lines = {line.name: (list(line.x), list(line.y)) for line in chart.lines}
    assert lines == {
        "sharing all, measured": ([0.1, 10, 40], [1.7, 1.02, 0.98]),
        "sharing all, predicted": ([0.1, 10, 40], [1.75, 1.03, 1.0]),
    }
    assert list(chart.marks) == [(40, "no limit"), (4.2, "break-even 4.2 Gbit/s")]


@pytest.mark.parametrize(
    ("told", "note"),
    [
        ({"breakeven_gbit_range": [3.9, 4.61234]}, "The break-even lies between 3.9 and 4.61 Gbit/s."),
        ({"breakeven_gbit": None, "breakeven_reason": "sharing saves too few bytes"}, "No break-even: sharing saves too few bytes."),
        ({"breakeven_gbit_range": ["x", 3], "breakeven_reason": 5}, ""),
        ({"breakeven_gbit_range": [10**400, 3], "breakeven_gbit": None}, ""),
    ],
)
def test_the_break_even_is_told_with_its_range_or_why_there_is_none(tmp_path: Path, told: dict[str, Any], note: str) -> None:
    record = communication_benchmark() | told
    chart = parts_of(tmp_path, record)["Speedup over the link's speed"]
    assert isinstance(chart, Chart) and chart.note == note
    assert len(chart.marks) == (1 if record["breakeven_gbit"] is None else 2)
    assert note in write_markdown(Report(title="", made="", sections=[Section(title="", parts=[chart])]))
    if note:
        assert isinstance(parts_of(tmp_path, record | {"links": []})[note], Note)


def test_speeds_that_no_axis_can_show_leave_finite_figures(tmp_path: Path) -> None:
    record = communication_benchmark() | {"breakeven_gbit": math.inf}
    links = [{"link_gbit": gbit, "sharing": "all", "speedup": 1.5} for gbit in (1e308, "x", math.inf, -1, 10**400)]
    chart = parts_of(tmp_path, record | {"links": [*record["links"], *links]})["Speedup over the link's speed"]
    assert isinstance(chart, Chart) and all(math.isfinite(place) for place, _ in chart.marks)
    assert [list(line.x) for line in chart.lines] == [[0.1, 10, 40]] * 2


def test_cells_with_endless_numbers_are_no_points(tmp_path: Path) -> None:
    record = communication_benchmark()
    record["cells"][0] |= {"wire_bytes": 10**400, "world": 10**400}
    chart = parts_of(tmp_path, record)["Wire bytes, predicted and measured"]
    assert isinstance(chart, Chart) and [line.name for line in chart.lines] == ["equal", "sharing all"]


def test_a_curve_without_a_point_is_no_chart(tmp_path: Path) -> None:
    assert set(parts_of(tmp_path, {"runs": [{"curve": []}, {"curve": [["x", 1]]}, {"curve": [[1]]}]})) == {"How it was measured"}


def test_learning_curves_are_drawn_by_question(tmp_path: Path) -> None:
    runs = [
        {"question": "masks", "family": "roberta", "setting": name, "seed": 2, "curve": [[0, 9.0], [100, loss]]}
        for name, loss in (("static", 5.0), ("dynamic", 4.0))
    ]
    chart = parts_of(tmp_path, {"steps": 100, "runs": runs})["Validation loss by masks"]
    assert isinstance(chart, Chart)
    lines = {line.name: list(line.y) for line in chart.lines}
    assert lines == {"roberta static, seed 2": [9.0, 5.0], "roberta dynamic, seed 2": [9.0, 4.0]}


def test_figures_of_another_shape_are_left_to_their_tables(tmp_path: Path) -> None:
    record = communication_benchmark() | {"benchmark": "throughput", "cells": [{"tokens_per_s": 1}], "links": None, "runs": [1, None]}
    assert set(parts_of(tmp_path, record)) == {"Bytes of a step", "No link was tried.", "How it was measured"}


def test_odd_tables_do_not_break_the_report(tmp_path: Path) -> None:
    tables = [None, {"title": "t", "columns": ["a", "b"], "rows": [["1"], ["1", 2, 3], None]}, {"title": "u", "rows": 3}]
    table = parts_of(tmp_path, {"tables": tables})["t"]
    assert isinstance(table, Table) and list(table.rows) == [["1", ""], ["1", "2"]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"benchmark": "comm", ', "no whole JSON"),
        (b"[]", "no benchmark's JSON"),
        (b'{"a": 1}', "no benchmark's JSON"),
        (b"\xff", "no whole"),
        (b"[" * 100_000, "no whole JSON .too many levels of nesting"),
    ],
)
def test_what_is_no_benchmark_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "figures.json").write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_benchmark(tmp_path / "figures.json")
