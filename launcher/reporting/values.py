"""Values that somebody else wrote: read once, here, so that nothing behind it meets a shape that no run or benchmark leaves."""

import json
import math
from typing import Any

Record = dict[str, Any]

_MOST_LEVELS = 50
"""Of lists and mappings in each other; runs and benchmarks have five. Python can neither read nor show about a thousand."""
_MOST_DIGITS = 300
"""Of a whole number; with 309 it is no float any more."""
_LARGEST = 1e100
"""Of a figure. Sums and squares of it are floats still; at 1e300 plotly's own arithmetic overflows, and it draws nothing."""


def parse_json(data: bytes) -> Any:
    """The document's value; a `ValueError` if it is damaged. A number that no float holds is infinite, as 1e999 is."""
    try:
        value = json.loads(data, parse_int=lambda digits: int(digits) if len(digits) <= _MOST_DIGITS else float(digits))
    except RecursionError as error:
        raise ValueError("too many levels of nesting") from error
    # There are no more levels than brackets; records of metrics, which are many, have few.
    if data.count(b"[") + data.count(b"{") > _MOST_LEVELS and _is_deeper(value, _MOST_LEVELS):
        raise ValueError(f"more than {_MOST_LEVELS} levels of nesting")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    return levels == 0 or any(_is_deeper(inner, levels - 1) for inner in (value.values() if isinstance(value, dict) else value))


def number(record: Record, name: str) -> float:
    """A figure of a record; nan if it is not there, infinite if nobody could mean it.

    JSON has no way to write nan and inf, so they stand there as text.
    """
    value = record.get(name)
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return math.copysign(math.inf, value) if abs(value) > _LARGEST else float(value)


def mapping(record: Record, name: str) -> dict[str, Any]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}
