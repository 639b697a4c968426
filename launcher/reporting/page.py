"""The report as one HTML file that needs nothing else: plotly.js stands in it, and the page itself forbids any request."""

import re
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from remask.launcher.inspect_masks import MASK_STYLE, in_colour
from remask.launcher.reporting.figures import figure
from remask.launcher.reporting.parts import Chart, Part, Report

_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?( ?(%|x|times|[kMGT]?B|ms|s|min|h|to|/|[-\d.,%()]+))*|nan|-?inf|")
"""A figure with its unit, two of them, or one with its spread in brackets."""


def write_page(report: Report, reload_seconds: float | None = None) -> str:
    """With `reload_seconds` a browser reads it again and again, as long as it is being rewritten."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"numeric": _numeric_columns, "in_colour": lambda stretch: Markup(in_colour(stretch))}  # noqa: S704 (it escapes)
    # A browser reads no Infinity: it would draw no chart at all, and nobody here would know.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    template = environment.from_string((resources.files("remask.launcher.reporting") / "page.html.j2").read_text(encoding="utf-8"))
    charts = [part for section in report.sections for part in section.parts if isinstance(part, Chart)]
    return template.render(
        report=report,
        sections=[(section.title, _grouped(section.parts, charts)) for section in report.sections],
        figures=[figure(chart) for chart in charts],
        plotly=Markup(get_plotlyjs()),  # noqa: S704 (a file of the package)
        mask_style=Markup(MASK_STYLE),  # noqa: S704
        reload_seconds=reload_seconds,
    )


def _grouped(parts: Sequence[Part], charts: Sequence[Chart]) -> list[tuple[str, list[tuple[int, Any]]]]:
    """Neighbours of one kind together, for charts stand side by side; each chart with its number."""
    number = {id(chart): place for place, chart in enumerate(charts)}
    return [(kind, [(number.get(id(part), -1), part) for part in group]) for kind, group in groupby(parts, lambda part: part.kind)]


def _numeric_columns(rows: Sequence[Sequence[str]], columns: int) -> list[bool]:
    """Those that hold nothing but figures stand to the right."""
    return [any(row[i] for row in rows) and all(_NUMBER.fullmatch(row[i]) for row in rows) for i in range(columns)]
