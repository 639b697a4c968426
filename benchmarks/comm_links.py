"""Two machines and a slow link between them: the same steps with and without sharing, and the speed from which sharing no longer pays."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remask.benchmarks.comm_cells import configure, run_job
from remask.benchmarks.record import Table
from remask.launcher.communication import exposed_seconds, predict, weights_of, when_ready
from remask.launcher.config import RunConfig

PAYS_FROM = 1.05
"""Sharing counts as paying where it makes a step at least so much faster."""
_SHARINGS = ("none", "all")
_TIMES = ("after_s", "overlapped_s", "hidden_s", "spread_s", "predicted_hidden_s", "modelled_hidden_s")
_LAYERS, _ROWS, _LENGTH, _WORLD = 12, 4, 64, 2


@dataclass(frozen=True, kw_only=True)
class Links:
    """Figures and tables, or why there are none."""

    figures: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    why_none: str = ""

    def __post_init__(self) -> None:
        if self.why_none:
            self.figures.update(links=[], overlap=[], breakeven_gbit=None, breakeven_reason=self.why_none)
            self.tables.append(Table(title=f"No link was tried: {self.why_none}.", columns=(), rows=()))


def measure(config: RunConfig, folder: Path, links: Sequence[float], repeats: int) -> Links:
    """At each speed, and without a limit; plain data parallelism (stage 0), where all bytes are gradients."""
    cell = {"zero": 0, "accumulation": 1, "micro_batch": _ROWS, "length": _LENGTH, "layers": _LAYERS}
    cells = [{**cell, "sharing": sharing} for sharing in _SHARINGS]
    found = {gbit: run_job(folder, _WORLD, cells, cells, repeats, gbit=gbit) for gbit in (*sorted(links), None)}
    rows, overlap = [], []
    for gbit, one in found.items():
        rows += _rows(config, gbit, one)
        overlap += _overlap_rows(config, gbit, one)
    figures = {"links": rows, "overlap": overlap, **breakeven(rows)}
    return Links(figures=figures, tables=[_link_table(rows, figures), _overlap_table(overlap)])


def _rows(config: RunConfig, gbit: float | None, found: dict[str, Any]) -> list[dict[str, Any]]:
    """With the model's own step time without wires as the compute time, and for no limit what two timed all-reduces tell of the link."""
    byte_s = found["collectives"]["wire_byte_s"] if gbit is None else 8e-9 / gbit
    steps, predicted = {}, {}
    for cell in found["cells"]:
        steps[cell["sharing"]] = statistics.median(cell["steps_s"])
        predicted[cell["sharing"]] = statistics.median(cell["alone_s"]) + _wire(config, cell) * byte_s
    return [
        {
            "link_gbit": gbit,
            "sharing": cell["sharing"],
            "step_s": steps[cell["sharing"]],
            "step_s_spread": [min(cell["steps_s"]), max(cell["steps_s"])],
            "alone_s": statistics.median(cell["alone_s"]),
            "predicted_step_s": predicted[cell["sharing"]],
            "wire_bytes": cell["wire_bytes"],
            "predicted_wire_bytes": round(_wire(config, cell)),
            "speedup": steps["none"] / steps[cell["sharing"]],
            "predicted_speedup": predicted["none"] / predicted[cell["sharing"]],
        }
        for cell in found["cells"]
    ]


def _wire(config: RunConfig, cell: dict[str, Any]) -> float:
    told = configure(config, cell)
    return predict(told, weights_of(told), _WORLD, cell["accumulation"]).wire(_WORLD, "gloo")


def breakeven(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Gbit/s above which the bytes that sharing saves take less than a twentieth of a step, by the compute time that each link's run told.

    The unshared model's own compute counts for both: that the shared one also has fewer weights to step is no matter of the link.
    """
    wire = {row["sharing"]: row["predicted_wire_bytes"] for row in rows}
    saved = wire["none"] - PAYS_FROM * wire["all"]
    if saved <= 0:
        return {"breakeven_gbit": None, "breakeven_reason": "sharing saves too few bytes of this model to pay at any speed"}
    found = sorted(8e-9 * saved / ((PAYS_FROM - 1) * row["alone_s"]) for row in rows if row["sharing"] == "none")
    return {"breakeven_gbit": statistics.median(found), "breakeven_gbit_range": [found[0], found[-1]]}


def _overlap_rows(config: RunConfig, gbit: float | None, found: dict[str, Any]) -> list[dict[str, Any]]:
    byte_s = found["collectives"]["wire_byte_s"] if gbit is None else 8e-9 / gbit
    rows = []
    for cell in found["overlaps"]:
        told = configure(config, cell)
        alone = next(statistics.median(one["alone_s"]) for one in found["cells"] if one["sharing"] == cell["sharing"])
        backward = alone * 2 / 3  # two of the three products
        sent = 2 * (_WORLD - 1) / _WORLD
        modelled = [(share, 4 * sent * parameters) for share, parameters in when_ready(told.model, head_share=0.0)]
        measured = [(share, sent * amount) for share, amount in cell["ready"]]
        rows.append(
            {
                "link_gbit": gbit,
                "sharing": cell["sharing"],
                "after_s": statistics.median(cell["after_s"]),
                "overlapped_s": statistics.median(cell["overlapped_s"]),
                "hidden_s": statistics.median(cell["after_s"]) - statistics.median(cell["overlapped_s"]),
                "spread_s": max(max(cell[name]) - min(cell[name]) for name in ("after_s", "overlapped_s")),
                "predicted_hidden_s": sum(amount for _, amount in measured) * byte_s - exposed_seconds(measured, backward, 1 / byte_s),
                "modelled_hidden_s": sum(amount for _, amount in modelled) * byte_s - exposed_seconds(modelled, backward, 1 / byte_s),
                "ready_before_the_end": _ready_early(measured),
                "modelled_ready_before_the_end": _ready_early(modelled),
            }
        )
    return rows


def _ready_early(ready: Sequence[tuple[float, float]]) -> float:
    """Share of the bytes whose gradient is whole when nine tenths of the backward pass are done."""
    return sum(amount for share, amount in ready if share <= 0.9) / sum(amount for _, amount in ready)


def _link_table(rows: list[dict[str, Any]], figures: dict[str, Any]) -> Table:
    return Table(
        title=f"Two machines, {_LAYERS} layers, stage 0: the same step with and without sharing",
        columns=("link", "sharing", "wire MB", "step ms (lowest to highest)", "predicted ms", "speed-up", "predicted"),
        rows=[
            (
                _link(row["link_gbit"]),
                row["sharing"],
                f"{row['wire_bytes'] / 1e6:.2f}",
                f"{row['step_s'] * 1e3:.0f} ({row['step_s_spread'][0] * 1e3:.0f} to {row['step_s_spread'][1] * 1e3:.0f})",
                f"{row['predicted_step_s'] * 1e3:.0f}",
                f"{row['speedup']:.2f}",
                f"{row['predicted_speedup']:.2f}",
            )
            for row in rows
        ],
        note=_about_breakeven(figures),
    )


def _about_breakeven(figures: dict[str, Any]) -> str:
    if figures["breakeven_gbit"] is None:
        return f"No break-even: {figures['breakeven_reason']}."
    low, high = figures["breakeven_gbit_range"]
    return (
        f"Break-even: above {figures['breakeven_gbit']:.1f} Gbit/s ({low:.1f} to {high:.1f} by the compute time of each link's run) the "
        f"bytes that sharing saves take less than {PAYS_FROM - 1:.0%} of this step. Fewer weights to step come on top, at any speed."
    )


def _overlap_table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        title="What overlap hides: gradients sent during the backward pass (torch's DistributedDataParallel) or after it",
        columns=(
            "link",
            "sharing",
            "ready early",
            "modelled",
            "after ms",
            "overlapped ms",
            "hidden ms",
            "spread ms",
            "from readiness",
            "modelled",
        ),
        rows=[
            (
                _link(row["link_gbit"]),
                row["sharing"],
                f"{row['ready_before_the_end']:.0%}",
                f"{row['modelled_ready_before_the_end']:.0%}",
                *(f"{row[name] * 1e3:.0f}" for name in _TIMES),
            )
            for row in rows
        ],
        note=(
            "Ready early: gradient bytes that are whole after nine tenths of the backward pass, as hooks on the weights saw it. A shared "
            "layer's gradient is whole only when the first layer is done, so nearly nothing of it can be sent meanwhile. Hidden: what "
            "sending meanwhile saved; where that is less than the spread of the steps, the machine's noise is all that it shows."
        ),
    )


def _link(gbit: float | None) -> str:
    return "no limit" if gbit is None else f"{gbit:g} Gbit/s"
