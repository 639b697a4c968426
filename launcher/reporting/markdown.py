"""The report as Markdown, for a terminal, an issue or a pull request; of a curve some points stand in a table."""

import re
from collections.abc import Callable, Sequence

from remask.launcher.inspect_masks import in_brackets
from remask.launcher.reporting.parts import Chart, Masks, Note, Part, Report, Table, show_bytes, show_number

_POINTS = 8


def write_markdown(report: Report) -> str:
    lines = [f"# {_plain(report.title)}", "", _plain(report.made), ""]
    for section in report.sections:
        lines += [f"## {_plain(section.title)}", ""]
        for part in section.parts:
            written = _part(part)
            lines += [*written, ""] if written else []
    return "\n".join(lines).rstrip() + "\n"


def _part(part: Part) -> list[str]:
    match part:
        case Note():
            return [_plain(part.text)]
        case Table():
            return _table(part.title, part.columns, part.rows, part.note)
        case Masks():
            shown = [f"- row {row}, epoch {epoch}: {_plain(' '.join(map(in_brackets, stretches)))}" for row, epoch, stretches in part.rows]
            return [f"**{_plain(part.title)}**", "", *shown]
        case Chart():
            return _sampled(part)


def _sampled(chart: Chart) -> list[str]:
    """Values at some places of the longest line; points without a line have a table of their own."""
    lines = [line for line in chart.lines if not line.points]
    if len(lines) < len(chart.lines) or not any(line.x for line in lines):
        return []
    longest = max(lines, key=lambda line: len(line.x)).x
    last = len(longest) - 1
    places = sorted({longest[round(i * last / (_POINTS - 1))] for i in range(_POINTS)})
    shows: dict[str, Callable[[float], str]] = {"": show_number, "percent": lambda share: f"{share:.1%}", "bytes": show_bytes}
    show = shows[chart.unit]
    rows = []
    for place in places:
        values = [dict(zip(line.x, line.y, strict=True)).get(place) for line in lines]
        rows.append([f"{place:,.6g}" if place < 1e6 else f"{place:,.0f}", *("" if value is None else show(value) for value in values)])
    marks = "; ".join(f"{name} at {show_number(place)}" for place, name in chart.marks)
    note = " ".join(filter(None, (f"{marks}." if marks else "", chart.note)))
    return _table(f"{chart.title} ({chart.y_title})", [chart.x_title, *(line.name for line in lines)], rows, note)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> list[str]:
    head = [f"**{_plain(title)}**", ""] if title else []
    cells = [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in [columns, *rows]]
    return [*head, cells[0], "|" + "---|" * len(columns), *cells[1:], *(["", _plain(note)] if note else [])]


def _plain(text: str) -> str:
    """Text that stays what it is: no cell, tag, link or picture begins in it."""
    one_line = " ".join(text.split())
    return re.sub(r"([\\|\[\]*`])", r"\\\1", one_line.replace("&", "&amp;").replace("<", "&lt;"))
