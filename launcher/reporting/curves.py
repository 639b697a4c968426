"""The runs' curves over their steps, the runs laid over each other."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Literal

from remask.data_prep.errors import InputError
from remask.launcher.communication import predict, weights_of
from remask.launcher.config import RunConfig
from remask.launcher.reporting.parts import Chart, Line, Note, Part, Section, Table, show_bytes
from remask.launcher.reporting.runs import Run
from remask.launcher.reporting.values import Record, mapping, number

Unit = Literal["", "percent", "bytes"]

_PREDICTED = (
    "Predicted: by the last start's config and the number of micro-batches; empty where the number of ranks changed, and where a run at "
    "ZeRO stage 2 or 3 did not tell its micro-batches."
)


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
    chart = _chart(runs, f"{title}, training", "perplexity", lambda record: math.exp(min(_part("masked_tokens")(record), 230.0)))
    return chart and replace(chart, log_y=True)


def communication(runs: Sequence[Run]) -> Section:
    """What rank 0 gave to each collective in a step, next to what the communication model says."""
    names = list(dict.fromkeys(name for run in runs for name in run.collectives))
    if not names:
        return Section(title="Communication", parts=[Note(text="Nothing was sent: one rank, or no step yet.")])
    lines = [
        _line(_named(runs, run, name), run.training, _sent([name]), colour if len(runs) > 1 else dash, dash)
        for colour, run in enumerate(runs)
        for dash, name in enumerate(names)
        if name in run.collectives
    ]
    chart = _drawn("Payload by collective", "payload a step, rank 0", lines, "bytes")
    columns = ["run", "collective", "bytes a step, median", "predicted", "measured / predicted"]
    table = Table(title="", columns=columns, rows=[row for run in runs for row in _payloads(run)], note=_PREDICTED)
    return Section(title="Communication", parts=[*([chart] if chart else []), table])


def _payloads(run: Run) -> list[list[str]]:
    """One row a collective, whatever names torch has for it."""
    predicted = _predict(run)
    kinds = sorted({*map(_kind, run.collectives), *predicted}) if run.collectives else []
    rows = []
    for kind in kinds:
        sent = map(_sent([name for name in run.collectives if _kind(name) == kind]), run.training)
        measured = median([amount for amount in sent if math.isfinite(amount)] or [math.nan])
        expected = predicted.get(kind, 0.0 if predicted else math.nan)
        ratio = f"{measured / expected:.4f}" if expected > 0 and math.isfinite(measured) else ""
        shown = [show_bytes(amount) if math.isfinite(amount) else "" for amount in (measured, expected)]
        rows.append([run.name, kind, *shown, ratio])
    return rows


def _kind(name: str) -> str:
    """all_gather_into_tensor is an all_gather."""
    return name.removesuffix("_coalesced").removesuffix("_tensor").removesuffix("_into")


def _predict(run: Run) -> dict[str, float]:
    """Bytes by collective at the median number of micro-batches; empty where that, the ranks or the config is not known."""
    config, world = run.parsed_config, run.ranks
    if config is None or world is None:
        return {}
    told = [pieces for record in run.training if math.isfinite(pieces := number(record, "micro_batches"))]
    if not told and config.engine.zero_stage > 1:
        return {}
    pieces = median(told or [1.0])
    try:
        one, two = _payload(config, world, 1), _payload(config, world, 2)
    except InputError:  # its DeepSpeed JSON is not here
        return {}
    # All terms are constant or grow with the micro-batches, so what holds for whole numbers holds for a mean between them.
    return {name: one[name] + (pieces - 1) * (two[name] - one[name]) for name in one}


@cache
def _payload(config: RunConfig, world: int, micro_batches: int) -> dict[str, int]:
    """Kept, for a page that is written again and again."""
    return dict(predict(config, weights_of(config), world, micro_batches).payload)


def _sent(names: Sequence[str]) -> Callable[[Record], float]:
    """A collective that a window did not use sent nothing in it."""

    def sent(record: Record) -> float:
        told = mapping(record, "bytes_per_step")
        return sum((number(told, name) for name in names if name in told), start=0.0)

    return sent
