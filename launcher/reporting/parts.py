"""What a report consists of, before anybody decides how it looks: tables, charts, notes and rows with masks, in sections."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from remask.launcher.inspect_masks import Stretch


@dataclass(frozen=True, kw_only=True)
class Note:
    """A sentence or two."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as they are shown."""

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    folded: bool = False
    """Long, and for looking things up: the page shows its title first."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve, or points; a value that is not finite is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    """Lines of one run have one colour in all charts."""
    dash: int = 0
    """Which of the line styles; tells the parts of one run apart."""
    points: bool = False
    """Points without a line between them."""
    hover: Sequence[str] = ()
    """What each point is, if its place does not tell."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over a common axis."""

    kind: ClassVar[str] = "chart"
    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    unit: Literal["", "percent", "bytes"] = ""
    """How values are written; a percent is a share of one."""
    from_zero: bool = False
    """The y axis begins at 0, so that heights can be compared."""
    marks: Sequence[tuple[float, str]] = field(default=())
    """Places on the x axis that have a meaning, with their names."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Rows as the model gets them, by row and epoch."""

    kind: ClassVar[str] = "masks"
    title: str
    rows: Sequence[tuple[int, int, Sequence[Stretch]]]


Part = Note | Table | Chart | Masks


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of it."""

    title: str
    made: str
    """When, and by which version."""
    sections: Sequence[Section]


def show_number(value: float) -> str:
    """Short, and exact enough to compare by eye."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.2e}"


def show_bytes(amount: float, digits: int = 4) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(amount) >= size:
            return f"{amount / size:.{digits}g} {unit}"
    return f"{amount:.{digits}g} B"
