"""What benchmarks left as JSON: their tables, what they were measured on, and charts of those whose figures have a known shape."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remask.launcher.errors import UserError
from remask.launcher.reporting.parts import Chart, Line, Note, Part, Section, Table, show_bytes
from remask.launcher.reporting.values import Record, mapping, number, parse_json
from remask.launcher.training.telling import clock

_SIGNS = ("benchmark", "tables", "runs")
_SETTINGS = {
    "sharing": "sharing",
    "layers": "layers",
    "zero": "ZeRO",
    "world": "ranks",
    "accumulation": "accumulation",
    "micro_batch": "micro-batch",
}
"""What tells the cells of the communication benchmark apart."""
_KINDS = {"payload": "given to collectives", "wire": "seen by the network"}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One file."""

    file: Path
    record: Record

    @property
    def name(self) -> str:
        return str(self.record.get("benchmark", self.file.stem))


def read_benchmark(file: Path) -> Benchmark:
    try:
        record = parse_json(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); give a run's folder or a benchmark's JSON") from error
    except ValueError as error:
        raise UserError(f"{file}: no whole JSON ({error}); remask bench NAME --json FILE writes one") from error
    if not isinstance(record, dict) or not any(sign in record for sign in _SIGNS):
        raise UserError(f"{file}: no benchmark's JSON; remask bench NAME --json FILE writes one")
    return Benchmark(file=file, record=record)


def measured(benchmark: Benchmark) -> Section:
    record = benchmark.record
    cells = [cell for cell in _rows_of(record, "cells") if "predicted_payload_bytes" in cell]
    charts: list[Part] = [*_communication(record, cells), *_learning(record)]
    parts = [*charts, *_shown_tables(record), *([_cells_table(cells)] if cells else []), _facts(record)]
    return Section(title=f"Benchmark: {benchmark.name}", parts=parts)


def _facts(record: Record) -> Table:
    """What the figures were measured with and on."""
    seconds = number(record, "seconds")
    facts = {
        "command": str(record.get("command", "not told")),
        "commit": str(record.get("commit", "not told")),
        "time": str(record.get("time", "not told")),
        "took": clock(seconds) if math.isfinite(seconds) else "not told",
        "versions": _pairs(mapping(record, "versions")) or "not told",
        "hardware": _pairs(mapping(record, "hardware")) or "not told",
    }
    return Table(title="How it was measured", columns=["what", ""], rows=[list(fact) for fact in facts.items()])


def _pairs(values: dict[str, Any]) -> str:
    shown = {name: ", ".join(map(str, value)) or "none" if isinstance(value, list) else value for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _rows_of(record: Record, name: str) -> list[Record]:
    rows = record.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _shown_tables(record: Record) -> list[Part]:
    """As they are; a table without columns is a sentence."""
    found: list[Part] = []
    for table in _rows_of(record, "tables"):
        columns, rows = table.get("columns"), table.get("rows")
        if not isinstance(columns, list) or not isinstance(rows, list):
            continue
        cells = [[str(cell) for cell in row][: len(columns)] for row in rows if isinstance(row, list)]
        filled = [[*row, *[""] * (len(columns) - len(row))] for row in cells]
        title, note = str(table.get("title", "")), str(table.get("note", ""))
        shown = Table(title=title, columns=[str(name) for name in columns], rows=filled, note=note)
        found.append(shown if columns else Note(text=f"{title} {note}".strip()))
    return found


def _communication(record: Record, cells: list[Record]) -> list[Part]:
    charts = [_predicted(cells, kind) for kind in _KINDS]
    return [*(chart for chart in charts if chart), *_speedup(record)]


def _cell_name(cell: Record) -> str:
    return ", ".join(f"{shown} {cell[name]}" for name, shown in _SETTINGS.items() if name in cell)


def _predicted(cells: list[Record], kind: str) -> Chart | None:
    """Points on the diagonal are as predicted."""
    there = [cell for cell in cells if all(0 < number(cell, f"{name}{kind}_bytes") < math.inf for name in ("", "predicted_"))]
    if not there:
        return None
    values = [number(cell, f"{name}{kind}_bytes") for cell in there for name in ("", "predicted_")]
    ends = [min(values), max(values)]
    lines = [Line(name="equal", x=ends, y=ends, colour=-1, dash=1)]
    for colour, sharing in enumerate(dict.fromkeys(str(cell.get("sharing")) for cell in there)):
        own = [cell for cell in there if str(cell.get("sharing")) == sharing]
        lines.append(
            Line(
                name=f"sharing {sharing}",
                x=[number(cell, f"predicted_{kind}_bytes") for cell in own],
                y=[number(cell, f"{kind}_bytes") for cell in own],
                colour=colour, points=True, hover=[_cell_name(cell) for cell in own],
            )
        )  # fmt: skip
    title = f"{kind.capitalize()} bytes, predicted and measured"
    return Chart(
        title=title, x_title=f"predicted bytes {_KINDS[kind]}", y_title="measured bytes", lines=lines, log_x=True, log_y=True, unit="bytes"
    )


def _cells_table(cells: list[Record]) -> Table:
    settings = [name for name in _SETTINGS if any(name in cell for cell in cells)]
    columns = [_SETTINGS[name] for name in settings]
    columns += [f"{kind}, {what}" for kind in _KINDS for what in ("predicted", "measured", "ratio")]
    rows = []
    for cell in cells:
        row = [str(cell.get(name, "")) for name in settings]
        for kind in _KINDS:
            expected, found = number(cell, f"predicted_{kind}_bytes"), number(cell, f"{kind}_bytes")
            known = math.isfinite(expected) and math.isfinite(found)
            row += [show_bytes(value) if math.isfinite(value) else "" for value in (expected, found)]
            row.append(f"{found / expected:.4f}" if known and expected else "")
        rows.append(row)
    return Table(title="Bytes of a step, predicted and measured", columns=columns, rows=rows, folded=len(rows) > 12)


def _speedup(record: Record) -> list[Part]:
    """Over no sharing, by the link's speed; a link without a limit stands to the right of the fastest."""
    shared = [link for link in _rows_of(record, "links") if math.isfinite(number(link, "speedup")) and link.get("sharing") != "none"]
    speeds = [speed for link in shared if 0 < (speed := number(link, "link_gbit")) < math.inf]
    note = _breakeven_note(record)
    if not speeds:
        return [Note(text=note)] if note else []
    links = [link for link in shared if link.get("link_gbit") is None or number(link, "link_gbit") in speeds]
    beyond = 4 * max(speeds)
    marks = [(beyond, "no limit")] if any(link.get("link_gbit") is None for link in links) else []
    even = number(record, "breakeven_gbit")
    marks += [(even, f"break-even {even:.3g} Gbit/s")] if 0 < even < math.inf else []
    lines = []
    for colour, sharing in enumerate(dict.fromkeys(str(link.get("sharing")) for link in links)):
        own = [link for link in links if str(link.get("sharing")) == sharing]
        x = [beyond if link.get("link_gbit") is None else number(link, "link_gbit") for link in own]
        order = sorted(range(len(x)), key=x.__getitem__)
        for dash, (name, what) in enumerate((("speedup", "measured"), ("predicted_speedup", "predicted"))):
            y = [number(own[i], name) for i in order]
            lines.append(Line(name=f"sharing {sharing}, {what}", x=[x[i] for i in order], y=y, colour=colour, dash=dash))
    title = "Speedup over the link's speed"
    return [Chart(title=title, x_title="link, Gbit/s", y_title="times as fast", lines=lines, log_x=True, marks=marks, note=note)]


def _breakeven_note(record: Record) -> str:
    """How sure the break-even is, or why there is none."""
    ends, reason = record.get("breakeven_gbit_range"), record.get("breakeven_reason")
    if isinstance(ends, list) and len(ends) == 2:
        low, high = (number({"end": end}, "end") for end in ends)
        if math.isfinite(low) and math.isfinite(high):
            return f"The break-even lies between {low:.3g} and {high:.3g} Gbit/s."
    return f"No break-even: {reason}." if isinstance(reason, str) and record.get("breakeven_gbit") is None else ""


def _learning(record: Record) -> list[Part]:
    """Curves of runs that differ in one setting, one chart a question."""
    runs = [run for run in _rows_of(record, "runs") if isinstance(run.get("curve"), list)]
    charts: list[Part] = []
    for question in dict.fromkeys(str(run.get("question", "")) for run in runs):
        own = [run for run in runs if str(run.get("question", "")) == question]
        settings = list(dict.fromkeys(str(run.get("setting", "")) for run in own))
        lines = [line for run in own if (line := _curve(run, settings.index(str(run.get("setting", ""))))).x]
        title = f"Validation loss by {question}"
        charts += [Chart(title=title, x_title="step", y_title="loss of masked tokens", lines=lines)] if lines else []
    return charts


def _curve(run: Record, colour: int) -> Line:
    pairs = [{"x": point[0], "y": point[1]} for point in run["curve"] if isinstance(point, list) and len(point) == 2]
    points = [pair for pair in pairs if math.isfinite(number(pair, "x"))]
    name = f"{run.get('family', '')} {run.get('setting', '')}".strip() + (f", seed {run['seed']}" if "seed" in run else "")
    return Line(name=name, x=[number(point, "x") for point in points], y=[number(point, "y") for point in points], colour=colour)
