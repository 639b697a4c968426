"""Charts: what a long run loses, and what it keeps."""

import json
import math

import pytest

from remask.launcher.reporting.figures import MOST_POINTS, figure, thin_out
from remask.launcher.reporting.parts import Chart, Line


def test_a_long_line_is_thinned_and_keeps_its_spikes_ends_and_gaps() -> None:
    y = [math.sin(step / 5000) for step in range(100_000)]
    y[12_345], y[54_321], y[77_777] = 50.0, -50.0, math.nan
    thin = thin_out(Line(name="loss", x=[float(step) for step in range(100_000)], y=y), MOST_POINTS)
    assert len(thin.x) <= MOST_POINTS + 3 and thin.x[0] == 0 and thin.x[-1] == 99_999
    assert thin.x == sorted(thin.x) and {50.0, -50.0} <= set(thin.y)
    assert [x for x, value in zip(thin.x, thin.y, strict=True) if math.isnan(value)] == [77_777]
    assert all(y[int(x)] == value for x, value in zip(thin.x, thin.y, strict=True) if math.isfinite(value))


def test_a_short_line_stays_as_it_is() -> None:
    line = Line(name="loss", x=[1.0, 2.0], y=[3.0, 4.0])
    assert thin_out(line, MOST_POINTS) is line


def test_what_is_not_finite_is_a_gap_and_the_rest_is_json() -> None:
    chart = Chart(title="t", x_title="step", y_title="loss", lines=[Line(name="<b>", x=[1, 2, 3], y=[1.0, math.inf, math.nan])])
    drawn = json.loads(json.dumps(figure(chart), allow_nan=False))
    assert drawn["data"][0]["y"] == [1.0, None, None] and drawn["data"][0]["name"] == "&lt;b&gt;"


def test_a_logarithmic_axis_writes_its_numbers_in_full() -> None:
    chart = Chart(title="t", x_title="step", y_title="perplexity", lines=[Line(name="a", x=[1, 2], y=[700.0, 8000.0])], log_y=True)
    axis = figure(chart)["layout"]["yaxis"]
    assert axis["type"] == "log" and {"1,000", "2,000", "5,000"} <= set(axis["ticktext"])


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (6422.0, 8252.0, ["7,000", "8,000"]),
        (7001.1, 7001.9, ["7,001.2", "7,001.4", "7,001.6", "7,001.8"]),
        (0.00123, 0.00131, ["0.00124", "0.00126", "0.00128", "0.0013"]),
        (150.0, 190.0, ["150", "160", "170", "180", "190"]),
        (3.0, 3.0, []),
        (1e-320, 1.7e308, ["1e-307", "1e-230", "1e-153"]),
        (9e307, 1.7e308, ["1e+308"]),
    ],
)
def test_a_logarithmic_axis_has_ticks_however_short_or_long_it_is(low: float, high: float, shown: list[str]) -> None:
    chart = Chart(title="t", x_title="step", y_title="perplexity", lines=[Line(name="a", x=[1, 2], y=[low, high])], log_y=True)
    axis = json.loads(json.dumps(figure(chart), allow_nan=False))["layout"]["yaxis"]
    inside = [text for tick, text in zip(axis["tickvals"], axis["ticktext"], strict=True) if low <= tick <= high]
    assert len(axis["tickvals"]) >= 2 and len(set(axis["ticktext"])) == len(axis["ticktext"])
    assert set(shown) <= set(axis["ticktext"]) and (low == high or len(inside) >= 2)


def test_a_mark_without_a_place_is_left_out() -> None:
    marks = [(place, "x") for place in (math.inf, math.nan, 0.0, -1.0, 10.0)]
    chart = Chart(title="t", x_title="link", y_title="times", lines=[Line(name="a", x=[1, 2], y=[1, 2])], log_x=True, marks=marks)
    layout = json.loads(json.dumps(figure(chart), allow_nan=False))["layout"]
    assert [shape["x0"] for shape in layout["shapes"]] == [10.0] and len(layout["annotations"]) == 1


def test_a_mark_stands_where_it_belongs_on_a_logarithmic_axis() -> None:
    line = Line(name="speedup", x=[0.1, 100.0], y=[2.0, 1.0])
    chart = Chart(title="t", x_title="link", y_title="times", lines=[line], log_x=True, marks=[(10.0, "break-even")])
    layout = figure(chart)["layout"]
    assert layout["shapes"][0]["x0"] == 10.0
    assert (layout["annotations"][0]["x"], layout["annotations"][0]["text"]) == (1.0, "break-even")
