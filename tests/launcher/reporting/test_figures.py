"""Charts: what a long run loses, and what it keeps."""

import json
import math

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


def test_a_mark_stands_where_it_belongs_on_a_logarithmic_axis() -> None:
    line = Line(name="speedup", x=[0.1, 100.0], y=[2.0, 1.0])
    chart = Chart(title="t", x_title="link", y_title="times", lines=[line], log_x=True, marks=[(10.0, "break-even")])
    layout = figure(chart)["layout"]
    assert layout["shapes"][0]["x0"] == 10.0
    assert (layout["annotations"][0]["x"], layout["annotations"][0]["text"]) == (1.0, "break-even")
