"""Values of others: what is too deep or too large is no surprise behind the one function that reads them."""

import math

import pytest

from remask.launcher.reporting.values import number, parse_json


@pytest.mark.parametrize("levels", [60, 900, 100_000])
def test_what_is_nested_too_deep_is_damaged(levels: int) -> None:
    for opened, closed in (("[", "]"), ('{"a": ', "}")):
        with pytest.raises(ValueError, match="levels of nesting"):
            parse_json((opened * levels + "1" + closed * levels).encode())


def test_many_lists_beside_each_other_are_fine() -> None:
    assert parse_json(b"[" + b"[1], " * 1000 + b"[1]]") == [[1]] * 1001


@pytest.mark.parametrize("digits", [102, 400, 5000])
def test_a_number_that_nobody_could_mean_is_infinite(digits: int) -> None:
    record = parse_json(f'{{"a": {"9" * digits}, "b": -{"9" * digits}, "c": {"9" * 100}}}'.encode())
    assert (number(record, "a"), number(record, "b")) == (math.inf, -math.inf) and math.isfinite(number(record, "c"))
