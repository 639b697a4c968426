"""The page in a real browser: all charts drawn, no complaint, no request; and proof that either would be noticed."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from sample_run import communication_benchmark, evaluation_record, training_record, write_incident, write_run

from remask.launcher.report import main

pytestmark = pytest.mark.browser

EVIL = '<img src=x onerror="window.entered=1">'


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of them with a long and a broken curve and a name that is no name, and a benchmark."""
    folder = tmp_path_factory.mktemp("report")
    write_run(folder / "plain")
    records = [training_record(step, loss="nan" if step == 500 else 4.0) for step in range(10, 20_001, 10)]
    write_incident(write_run(folder / EVIL, records), 20)
    benchmark = communication_benchmark() | {"benchmark": EVIL}
    (folder / "comm.json").write_text(json.dumps(benchmark))
    args = [folder / "plain", folder / EVIL, folder / "comm.json", "--html", folder / "r.html"]
    assert main([str(arg) for arg in args]) == 0
    return folder / "r.html"


def test_every_chart_is_drawn_without_a_complaint_or_a_request(browser: Browser, page: Path) -> None:
    browser.visit(page)
    assert browser.errors == []
    assert browser.requests == [page.as_uri()]
    traces = "[...document.querySelectorAll('.chart')].map(chart => chart.querySelectorAll('.main-svg .scatterlayer .trace').length)"
    drawn = browser.evaluate(traces)
    assert len(drawn) == 13 and all(number > 0 for number in drawn), drawn
    assert browser.evaluate("document.querySelectorAll('.modebar-btn').length") > 0
    assert browser.evaluate("document.querySelectorAll('.modebar-btn[data-title*=\"hare\"]').length") == 0, "no button sends a chart away"


def test_numbers_that_nobody_could_mean_leave_every_chart_drawn(browser: Browser, tmp_path: Path) -> None:
    huge = training_record(20, loss=1.7e308, gradient_norm=-1.7e308, lr=5e-324, tokens_per_s=10**300)
    checked = [
        evaluation_record(step, 9.0) | {"validation/perplexity": value} for step, value in ((0, 6422.0), (10, 8252.0), (20, 1.7e308))
    ]
    write_run(tmp_path / "run", [training_record(10), huge, training_record(30), *checked])
    benchmark = communication_benchmark() | {"breakeven_gbit": math.inf}
    benchmark["links"].append({"link_gbit": 1e308, "sharing": "all", "speedup": 1e308, "predicted_speedup": 1e308})
    (tmp_path / "comm.json").write_text(json.dumps(benchmark))
    assert main([str(tmp_path / "run"), str(tmp_path / "comm.json"), "--html", str(tmp_path / "r.html")]) == 0
    browser.visit(tmp_path / "r.html")
    assert browser.errors == []
    for seen in (".scatterlayer .trace", ".xtick", ".ytick"):
        found = browser.evaluate(f"[...document.querySelectorAll('.chart')].map(chart => chart.querySelectorAll('{seen}').length)")
        assert len(found) == 13 and min(found) >= (1 if "trace" in seen else 2), (seen, found)


def test_names_are_shown_and_not_run(browser: Browser, page: Path) -> None:
    browser.visit(page)
    assert browser.evaluate("window.entered === undefined")
    assert EVIL in browser.evaluate("document.querySelector('main').innerText")
    assert EVIL in browser.evaluate("[...document.querySelectorAll('.legendtext')].map(text => text.textContent).join('\\n')")


@pytest.mark.parametrize("width", [1400, 700])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.resize(width, 900)
    browser.visit(page)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    overlapping = """(() => {
        const boxes = [...document.querySelectorAll('.card')].map(card => card.getBoundingClientRect());
        return boxes.filter((a, i) => boxes.some((b, j) => j > i && a.left < b.right - 1 && b.left < a.right - 1
            && a.top < b.bottom - 1 && b.top < a.bottom - 1)).length;
    })()"""
    assert browser.evaluate("document.querySelectorAll('.card').length") > 15 and browser.evaluate(overlapping) == 0


def test_a_complaint_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    for script in ("console.error('broken')", "nothing.there()", "Promise.reject(new Error('late'))"):
        (tmp_path / "bad.html").write_text(f"<!doctype html><title>bad</title><script>{script}</script>")
        browser.visit(tmp_path / "bad.html")
        assert browser.errors, script


def test_a_request_would_be_noticed(browser: Browser, page: Path, tmp_path: Path) -> None:
    asking = '<img src="http://127.0.0.1:9/x.png">'
    (tmp_path / "bad.html").write_text(f"<!doctype html><title>bad</title>{asking}")
    browser.visit(tmp_path / "bad.html")
    assert "http://127.0.0.1:9/x.png" in browser.requests
    text = page.read_text(encoding="utf-8")
    (tmp_path / "worse.html").write_text(text.replace("</main>", f"{asking}</main>"), encoding="utf-8")
    browser.visit(tmp_path / "worse.html")
    assert any("Content Security Policy" in error for error in browser.errors), "the page itself forbids it"
