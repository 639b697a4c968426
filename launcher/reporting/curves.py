"""The runs' curves over their steps, the runs laid over each other."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from remask.launcher.reporting.parts import Chart, Line, Note, Part, Section, Table, show_bytes
from remask.launcher.reporting.runs import Record, Run, mapping, number

Unit = Literal["", "percent", "bytes"]


def curves(runs: Sequence[Run]) -> Section:
    charts = [
        _chart(runs, "Training loss", "loss", lambda record: number(record, "loss")),
        _losses_by_part(runs),
        _validation(runs, "Validation loss of masked tokens", "loss", "validation/masked_tokens"),
        _perplexity(runs),
        _chart(runs, "Learning rate", "learning rate", lambda record: number(record, "lr")),
        _chart(runs, "Gradient norm before clipping", "norm", lambda record: number(record, "gradient_norm")),
        _chart(runs, "Speed", "tokens/s, all ranks", lambda record: number(record, "tokens_per_s")),
        _chart(runs, "Model FLOPs utilisation", "MFU of rank 0", lambda record: number(record, "mfu"), "percent"),
        _chart(runs, "Waiting for data", "share of rank 0's time", lambda record: number(record, "data_wait"), "percent"),
    ]
    drawn: list[Part] = [chart for chart in charts if chart is not None]
    return Section(title="Curves", parts=drawn or [Note(text="No step has been told yet.")])


def _chart(runs: Sequence[Run], title: str, y_title: str, value: Callable[[Record], float], unit: Unit = "") -> Chart | None:
    lines = [_line(run.name, run.training, value, colour) for colour, run in enumerate(runs)]
    return _drawn(title, y_title, lines, unit)


def _line(name: str, records: Sequence[Record], value: Callable[[Record], float], colour: int, dash: int = 0) -> Line:
    steps = [float(record["step"]) for record in records]
    return Line(name=name, x=steps, y=[value(record) for record in records], colour=colour, dash=dash)


def _drawn(title: str, y_title: str, lines: Sequence[Line], unit: Unit = "") -> Chart | None:
    """None if no line has a point to show; what is not finite is told."""
    there = [line for line in lines if any(map(math.isfinite, line.y))]
    gaps = [line.name for line in lines if any(not math.isfinite(y) for y in line.y) and line.x]
    note = f"Gaps are values that are not finite: {', '.join(gaps)}." if gaps else ""
    return Chart(title=title, x_title="step", y_title=y_title, lines=there, unit=unit, from_zero=unit != "", note=note) if there else None


def _losses_by_part(runs: Sequence[Run]) -> Chart | None:
    """Only where the loss has parts."""
    names = list(dict.fromkeys(name for run in runs for name in run.parts))
    if len(names) < 2:
        return None
    lines = [
        _line(_named(runs, run, name.replace("_", " ")), run.training, _part(name), colour if len(runs) > 1 else dash, dash)
        for colour, run in enumerate(runs)
        for dash, name in enumerate(names)
        if name in run.parts
    ]
    return _drawn("Training loss by part", "loss", lines)


def _part(name: str) -> Callable[[Record], float]:
    return lambda record: number(mapping(record, "losses"), name)


def _named(runs: Sequence[Run], run: Run, part: str) -> str:
    return f"{run.name}, {part}" if len(runs) > 1 else part


def _validation(runs: Sequence[Run], title: str, y_title: str, name: str) -> Chart | None:
    lines = [
        _line(run.name, [record for record in run.evaluations if name in record], lambda record: number(record, name), colour)
        for colour, run in enumerate(runs)
    ]
    return _drawn(title, y_title, lines)


def _perplexity(runs: Sequence[Run]) -> Chart | None:
    """On held-out rows; where nothing is held out, of the rows in training."""
    title, name = "Perplexity of masked tokens", "validation/perplexity"
    if chart := _validation(runs, f"{title}, validation", "perplexity", name):
        return replace(chart, log_y=True)
    chart = _chart(runs, f"{title}, training", "perplexity", lambda record: math.exp(min(_part("masked_tokens")(record), 700.0)))
    return chart and replace(chart, log_y=True)


def communication(runs: Sequence[Run]) -> Section:
    """What rank 0 gave to each collective in a step."""
    names = list(dict.fromkeys(name for run in runs for name in run.collectives))
    if not names:
        return Section(title="Communication", parts=[Note(text="Nothing was sent: one rank, or no step yet.")])
    lines, rows = [], []
    for colour, run in enumerate(runs):
        for dash, name in enumerate(names):
            if name in run.collectives:
                line = _line(_named(runs, run, name), run.training, _sent(name), colour if len(runs) > 1 else dash, dash)
                lines.append(line)
                rows.append([run.name, name, show_bytes(median(map(_sent(name), run.training)))])
    chart = _drawn("Payload by collective", "payload a step, rank 0", lines, "bytes")
    table = Table(title="", columns=["run", "collective", "bytes a step, median"], rows=rows)
    return Section(title="Communication", parts=[*([chart] if chart else []), table])


def _sent(name: str) -> Callable[[Record], float]:
    """A collective that a window did not use sent nothing in it."""
    return lambda record: float(mapping(record, "bytes_per_step").get(name) or 0)
