"""Charts in the words of plotly.js."""

import html
import math
from dataclasses import replace
from typing import Any

from remask.launcher.reporting.parts import Chart, Line, show_bytes

# Okabe and Ito's colours, which colour-blind people can tell apart, without the yellow that vanishes on white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555", "#7f3c8d")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_GRID, _GREY = "#e8ebf0", "#8a919e"
MOST_POINTS = 1000
"""Of a line: more than a chart has pixels to tell apart."""
_MOST_MARKED = 30
"""Points of a line that are shown as points, too."""


def figure(chart: Chart) -> dict[str, Any]:
    """Plain values, as Plotly.newPlot takes them."""
    return {"data": [_trace(thin_out(line, MOST_POINTS), chart) for line in chart.lines], "layout": _layout(chart)}


def thin_out(line: Line, most: int) -> Line:
    """The line with about `most` points: of each stretch the lowest, the highest and a gap stay, so that no spike is lost."""
    if len(line.x) <= most:
        return line
    size = math.ceil(len(line.x) / max(most // 2, 1))
    kept: set[int] = {0, len(line.x) - 1}
    for begin in range(0, len(line.x), size):
        places = range(begin, min(begin + size, len(line.x)))
        finite = [place for place in places if math.isfinite(line.y[place])]
        kept |= {min(finite, key=line.y.__getitem__), max(finite, key=line.y.__getitem__)} if finite else set()
        kept |= set([place for place in places if not math.isfinite(line.y[place])][:1])
    chosen = sorted(kept)
    hover = [line.hover[i] for i in chosen] if line.hover else ()
    return replace(line, x=[line.x[i] for i in chosen], y=[line.y[i] for i in chosen], hover=hover)


def _trace(line: Line, chart: Chart) -> dict[str, Any]:
    colour = _GREY if line.colour < 0 else _COLOURS[line.colour % len(_COLOURS)]
    mode = "markers" if line.points else "lines+markers" if len(line.x) <= _MOST_MARKED else "lines"
    value = {"": "%{y:.5~g}", "percent": "%{y:.2%}", "bytes": "%{y:.4~s}B"}[chart.unit]
    place = "%{text}<br>%{x:.4~s}B predicted, %{y:.4~s}B measured" if line.hover else f"{chart.x_title} %{{x:,.6~g}}: {value}"
    return {
        "type": "scatter",
        "mode": mode,
        "name": html.escape(line.name, quote=False),
        "x": [_plain(x) for x in line.x],
        "y": [_plain(y) for y in line.y],
        "text": [html.escape(text, quote=False) for text in line.hover],
        "line": {"color": colour, "width": 2, "dash": _DASHES[line.dash % len(_DASHES)]},
        "marker": {"color": colour, "size": 8 if line.points else 5},
        "connectgaps": False,
        "hovertemplate": place,
        "showlegend": True,
    }


def _plain(value: float) -> float | None:
    """A gap where JSON has no number; six digits are more than a screen shows."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _layout(chart: Chart) -> dict[str, Any]:
    marks = [(at, name) for at, name in chart.marks if math.isfinite(at) and (at > 0 or not chart.log_x)]
    return {
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12, "color": "#2b3040"},
        "margin": {"l": 64, "r": 20, "t": 32, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "#ffffff",
        "hovermode": "closest" if any(line.points for line in chart.lines) else "x",
        "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0},
        "modebar": {"bgcolor": "rgba(255,255,255,0.7)", "color": "#b4bac6", "activecolor": "#0072b2"},
        "xaxis": _axis(chart.x_title, [x for line in chart.lines for x in line.x], chart.log_x, chart.unit if chart.log_x else ""),
        "yaxis": _axis(chart.y_title, [y for line in chart.lines for y in line.y], chart.log_y, chart.unit)
        | ({"rangemode": "tozero"} if chart.from_zero else {}),
        "shapes": [_mark(at) for at, _ in marks],
        "annotations": [_mark_name(at, name, chart.log_x, i) for i, (at, name) in enumerate(marks)],
    }


def _axis(title: str, values: list[float], log: bool, unit: str) -> dict[str, Any]:
    axis = {
        "title": {"text": html.escape(title, quote=False), "standoff": 8},
        "gridcolor": _GRID,
        "zeroline": False,
        "linecolor": "#c9ced8",
        "automargin": True,
    }
    if unit == "percent":
        axis["tickformat"] = ".3~%"
    elif unit == "bytes" and not log:
        axis |= {"tickformat": "~s", "ticksuffix": "B"}
    positive = [value for value in values if math.isfinite(value) and value > 0]
    if log and positive:
        ticks = _log_ticks(min(positive), max(positive))
        # 15 digits: neighbours on a narrow axis differ, and 0.1 + 0.2 is 0.3.
        shown = [show_bytes(tick, 15) if unit == "bytes" else f"{tick:,.15g}" if tick < 1e15 else f"{tick:g}" for tick in ticks]
        axis |= {"type": "log", "tickvals": ticks, "ticktext": shown}
    return axis


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and what lies between where there are few: plotly itself would write 5 for 5,000."""
    first, last = max(math.floor(math.log10(low)), -307), min(math.ceil(math.log10(high)), 308)  # as far as floats go
    step = max(1, round((last - first) / 8))
    few = [10.0**power for power in range(first, last + 1, step)]
    if math.log10(high) - math.log10(low) >= 3:
        return few
    for digits in ((1, 2, 5), range(1, 10)):
        ticks = [tick for power in few for digit in digits if math.isfinite(tick := digit * power)]
        # Of one value, as of values that six digits do not tell apart, plotly shows the decades around it.
        if sum(low <= tick <= high for tick in ticks) >= 2 or high - low < 1e-6 * high:
            return ticks
    return _even_ticks(low, high)


def _even_ticks(low: float, high: float) -> list[float]:
    """Three or more at equal distances, for an axis so short that its logarithm is nearly a straight line."""
    third = (high - low) / 3
    power = 10.0 ** math.floor(math.log10(third))
    step = max(digit * power for digit in (1, 2, 5) if digit * power <= third or digit == 1)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _mark(at: float) -> dict[str, Any]:
    line = {"color": _GREY, "width": 1.5, "dash": "dot"}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "xref": "x", "yref": "paper", "line": line}


def _mark_name(at: float, name: str, log: bool, number: int) -> dict[str, Any]:
    """Names of neighbours stand below each other."""
    place = math.log10(at) if log else at  # plotly wants an annotation's place as its logarithm, a shape's not
    return {
        "x": place, "y": 1 - 0.07 * number, "xref": "x", "yref": "paper", "xanchor": "right", "yanchor": "top", "showarrow": False,
        "text": html.escape(name, quote=False), "font": {"size": 11, "color": "#4a5060"}, "bgcolor": "rgba(255,255,255,0.8)",
    }  # fmt: skip
