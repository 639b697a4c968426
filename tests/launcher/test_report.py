"""`remask report`: what stands in its files, what it refuses, and how it watches a run."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REMASK
from launcher.training.ranks import records, run_args, train
from sample_run import communication_benchmark, end_run, evaluation_record, training_record, write_incident, write_run

from remask.launcher.report import main
from remask.launcher.reporting.figures import MOST_POINTS

Remask = Callable[..., subprocess.CompletedProcess[str]]


def report(*args: object) -> int:
    return main([str(arg) for arg in args])


def written(page: Path) -> str:
    """The page without plotly's own code."""
    text = page.read_text(encoding="utf-8")
    begin, end = text.index("/**\n* plotly.js"), text.index('<script type="application/json"')
    assert end - begin > 1_000_000
    return text[:begin] + text[end:]


def figures(page: Path) -> dict[str, dict[str, Any]]:
    """By the charts' titles."""
    titles = re.findall(r'<h3>([^<]*)</h3><div class="chart"', written(page))
    drawn = json.loads(re.findall(r'id="figures">(.*)</script>', written(page))[0])
    assert titles and len(titles) == len(drawn)
    return dict(zip(titles, drawn, strict=True))


def test_the_page_and_the_markdown_tell_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page, text = write_run(tmp_path / "run"), tmp_path / "r.html", tmp_path / "r.md"
    write_incident(run, 20)
    assert report(run, "--html", page, "--markdown", text) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^run +finished +100 ", printed, re.MULTILINE) and "r.html" in printed
    drawn = figures(page)
    assert list(drawn) == [
        "Training loss", "Training loss by part", "Validation loss of masked tokens", "Perplexity of masked tokens, validation",
        "Learning rate", "Gradient norm before clipping", "Speed", "Model FLOPs utilisation", "Waiting for data", "Payload by collective",
    ]  # fmt: skip
    assert drawn["Speed"]["data"][0]["y"] == [8000 + step for step in range(10, 101, 10)]
    assert [trace["name"] for trace in drawn["Payload by collective"]["data"]] == ["all_gather", "all_reduce"]
    for shown in (written(page), text.read_text()):
        for words in ("the loss is not finite", "3 MB", "1.5 MB", "good 25%", "torch 2.13.0", "remask train --out", "148.41", "8,055"):
            assert words in shown, words
        assert "its shards are not here, so its masks cannot be shown" in shown
    headings = re.findall(r"<h2>(.*)</h2>", written(page))
    assert headings == re.findall(r"^## (.*)$", text.read_text(), re.MULTILINE)
    assert headings == ["Overview", "Curves", "Communication", "Masks", "Filled masks", "Incidents", "Starts"]


def test_several_runs_are_laid_over_each_other_and_compared(tmp_path: Path) -> None:
    for name in ("all", "none"):
        write_run(tmp_path / "sweep" / name, overrides={"model": {"sharing": name}})
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    assert report(tmp_path / "sweep", tmp_path / "sweep" / "all", "--html", page, "--markdown", text) == 0
    assert {len(drawn["data"]) for drawn in figures(page).values()} == {2, 4}, "each run once, with one or two lines"
    assert [trace["name"] for trace in figures(page)["Training loss"]["data"]] == ["all", "none"]
    differing = text.read_text().split("**What differs in the configs**")[1].split("\n\n")[1].splitlines()
    assert differing == ["| key | all | none |", "|---|---|---|", "| model.sharing | all | none |"]
    table = [line for line in text.read_text().splitlines() if line.startswith(("| all | finished", "| none | finished"))]
    assert len(table) == 2 and all("| 40 s | 1 | 2 |" in line for line in table)


def test_a_benchmark_alone_makes_a_report(tmp_path: Path) -> None:
    file, page = tmp_path / "comm.json", tmp_path / "r.html"
    file.write_text(json.dumps(communication_benchmark()))
    assert report(file, "--html", page, "--markdown", tmp_path / "r.md") == 0
    assert list(figures(page)) == [
        "Payload bytes, predicted and measured",
        "Wire bytes, predicted and measured",
        "Speedup over the link&#39;s speed",
    ]
    for shown in (written(page), (tmp_path / "r.md").read_text()):
        assert "1.02 (1.01 to 1.03)" in shown and "0123456789ab" in shown and "remask bench comm --json comm.json" in shown


def test_without_an_output_option_a_page_is_written(remask: Remask, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    assert remask("report", "run").returncode == 0
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["report.html"]


def test_a_long_run_makes_no_large_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [training_record(step) for step in range(10, 60_001, 10)])
    assert report(run, "--html", tmp_path / "r.html") == 0
    assert all(len(trace["x"]) <= MOST_POINTS + 2 for drawn in figures(tmp_path / "r.html").values() for trace in drawn["data"])
    assert len(written(tmp_path / "r.html")) < 600_000


def test_what_is_not_finite_is_a_gap_and_told(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", [training_record(10), training_record(20, loss=math.nan, gradient_norm=math.inf), training_record(30)]
    )
    assert report(run, "--html", tmp_path / "r.html", "--markdown", tmp_path / "r.md") == 0
    assert figures(tmp_path / "r.html")["Training loss"]["data"][0]["y"][1] is None
    assert "Gaps are values that are not finite: run." in written(tmp_path / "r.html")
    assert "| 20 | nan |" in (tmp_path / "r.md").read_text() and "| 20 | inf |" in (tmp_path / "r.md").read_text()


@pytest.mark.parametrize(
    "records", [[], [{"step": 5, "kind": "training"}], [{"step": 5, "kind": "training", "losses": 3, "bytes_per_step": [1]}]]
)
def test_a_run_that_told_little_makes_a_report(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    run = write_run(tmp_path / "run", records, ended=False)
    outputs = [f"--{name}={tmp_path / name}" for name in ("html", "markdown", "csv", "mllog")]
    assert report(run, *outputs) == 0
    shown = (tmp_path / "markdown").read_text()
    assert "no end yet" in shown and "Nothing was sent" in shown and ("no step has been told yet" in shown) == (not records)


DAMAGED = {
    "400 digits": "9" * 400, "5000 digits": "-" + "9" * 5000, "infinite": "1e999", "largest": "1.7e308", "lowest": "-1.7e308",
    "smallest": "5e-324", "text": '"zz"', "bool": "true", "null": "null", "list": "[[1], 2]", "mapping": '{"a": {}}', "nan": "NaN",
}  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_value_anywhere_makes_a_report(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "run")
    write_incident(run, 20)
    (incident,) = (run / "incidents").iterdir()
    told = [training_record(10) | {"losses": {"a": "HERE"}, "bytes_per_step": {"a": "HERE"}}, evaluation_record(10, 5.0)]
    for kind, known in (("training", training_record(0)), ("evaluation", evaluation_record(0, 5.0))):
        told += [{**known, "kind": kind, "step": step, name: "HERE"} for step, name in enumerate(known, start=20)]
    (run / "metrics" / "rank-00000.jsonl").write_text("".join(f"{damage(one, text)}\n" for one in told))
    (run / "environment.json").write_text(damage(one_damaged(json.loads((run / "environment.json").read_text())[0]), text))
    (run / "end.json").write_text(damage({"end": "HERE", "step": "HERE"}, text))
    for number, one in enumerate(one_damaged(json.loads(incident.read_text()))):
        (run / "incidents" / f"{number}.json").write_text(damage(one, text))
    benchmark = communication_benchmark() | {"breakeven_gbit": "HERE", "breakeven_gbit_range": ["HERE", 1], "seconds": "HERE"}
    benchmark |= {name: benchmark[name] + one_damaged(benchmark[name][1]) for name in ("cells", "links")}
    benchmark |= {"runs": [{"question": "HERE", "curve": [["HERE", 1], [1, "HERE"]]}], "versions": {"torch": "HERE"}}
    (tmp_path / "b.json").write_text(damage(benchmark, text))
    outputs = [f"--{name}={tmp_path / name}" for name in ("html", "markdown", "csv", "mllog")]
    assert report(run, tmp_path / "b.json", *outputs) == 0
    assert "Infinity" not in written(tmp_path / "html") and figures(tmp_path / "html")


def test_halves_of_characters_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / os.fsdecode(b"r\xffn"))
    end_run(run, "\ud800")
    assert report(run, *(f"--{name}={tmp_path / name}" for name in ("html", "markdown", "csv", "mllog"))) == 0
    assert "r?n" in capsys.readouterr().out and "r?n" in (tmp_path / "markdown").read_text()


def test_a_figure_that_a_browser_cannot_read_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remask.launcher.reporting.page.figure", lambda chart: {"x": math.inf})
    with pytest.raises(ValueError, match="not JSON compliant"):
        report(write_run(tmp_path / "run"), "--html", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_names_and_words_are_text_and_nothing_else(tmp_path: Path) -> None:
    evil = "<script>document.title='x'<"
    run = write_run(tmp_path / evil)
    write_incident(run, 20)
    benchmark = communication_benchmark() | {"benchmark": "</script><script>alert(1)</script>", "commit": "![x](http://127.0.0.1:9/y.png)"}
    (tmp_path / "b.json").write_text(json.dumps(benchmark))
    assert report(run, tmp_path / "b.json", "--html", tmp_path / "r.html", "--markdown", tmp_path / "r.md") == 0
    page, text = written(tmp_path / "r.html"), (tmp_path / "r.md").read_text()
    assert "&lt;script&gt;document" in page and "guilty &lt;i&gt;words" in page
    assert page.count("<script") == 3 and page.count("</script>") == 2, "plotly's, cut before its end, the figures' and the last one"
    assert "<i>" not in text and "<script" not in text and "![" not in text and r"words&lt;/i> \| here" in text


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    assert report(write_run(tmp_path / "run"), "--html", tmp_path / "r.html") == 0
    page = written(tmp_path / "r.html")
    assert set(re.findall(r'(?:src|href)="([^"#][^"]*)"', page)) == {"data:,"}
    assert "default-src 'none'" in page and 'http-equiv="refresh"' not in page


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "nothing was given"),
        (["nowhere"], "nowhere: cannot be read (No such file or directory)"),
        (["empty"], "empty: no run here; give the folder that remask train or remask submit got as --out"),
        (["damaged.json"], "damaged.json: no whole JSON"),
        (["run", "--html", "no/where.html"], "--html: the folder of no/where.html does not exist"),
        (["run", "--csv", "empty"], "--csv: empty is no file that could be replaced"),
        (["run", "--html", "pipe"], "--html: pipe is no file that could be replaced"),
        (["run", "--html", "/proc/x.html"], "--html: /proc/x.html cannot be written (No such file or directory); give another name"),
        (["run", "--html", "n" * 250], "cannot be written (File name too long)"),
        (["run", "--csv", "a", "--mllog", "./a"], "two outputs have the same name"),
        (["run", "--watch", "--interval-seconds", "0"], "--interval-seconds: 0.0 was given"),
        (["good.json", "--csv", "a.csv"], "are about runs, but only benchmarks were given"),
        (["good.json", "--watch"], "are about runs, but only benchmarks were given"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(remask: Remask, tmp_path: Path, args: list[str], said: str) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "damaged.json").write_text('{"benchmark": ')
    (tmp_path / "good.json").write_text(json.dumps(communication_benchmark()))
    before = sorted(tmp_path.rglob("*"))
    result = remask("report", *args)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2 and line.startswith("error: ") and said in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_to_a_page_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("old")
    (tmp_path / "link.md").symlink_to("old.md")
    assert report(write_run(tmp_path / "run"), "--markdown", tmp_path / "link.md") == 0
    assert (tmp_path / "link.md").is_symlink() and "## Overview" in (tmp_path / "old.md").read_text()


def test_watching_rewrites_the_page_until_the_run_has_ended(tmp_path: Path) -> None:
    run, page = write_run(tmp_path / "run", [training_record(10)], ended=False), tmp_path / "r.html"
    watching = threading.Thread(target=report, args=(run, "--html", page, "--watch", "--interval-seconds", "0.2"))
    watching.start()
    wait_until(page.exists)
    assert 'http-equiv="refresh" content="0.2"' in written(page)
    with (run / "metrics" / "rank-00000.jsonl").open("a") as file:
        file.write(json.dumps(training_record(20)) + "\n")
    wait_until(lambda: figures(page)["Training loss"]["data"][0]["x"] == [10, 20])
    assert watching.is_alive()
    end_run(run)
    watching.join(30)
    assert not watching.is_alive() and "finished" in written(page) and "refresh" not in written(page)
    assert [file.name for file in tmp_path.iterdir() if "partial" in file.name] == []


def test_ctrl_c_ends_only_the_watching(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ended=False)
    process = subprocess.Popen(
        [REMASK, "report", "run", "--watch", "--interval-seconds", "60"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs inherit it as ignored
    )  # fmt: skip
    assert process.stdout is not None
    while "written" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "") and "no longer watching" in out
    assert figures(tmp_path / "report.html")


@pytest.mark.dist
def test_a_real_run_of_two_ranks_is_reported_with_its_masks(recipe: str, shards: Path, tmp_path: Path, remask: Remask) -> None:
    """The shards lie where the run found them; a copy of the run whose shards were made again, or are gone, says so."""
    here, run = tmp_path / "shards", tmp_path / "run"
    shutil.copytree(shards, here)
    train(2, *run_args(recipe, here, run, "--checkpoint.save-every-steps", "40"))
    outputs = ["--html", "r.html", "--markdown", "r.md", "--csv", "r.csv", "--mllog", "r.log"]
    assert remask("report", "run", *outputs).returncode == 0
    told, drawn = records(run, "training"), figures(tmp_path / "r.html")
    assert len(told) == 40 and drawn["Training loss"]["data"][0]["y"] == pytest.approx([record["loss"] for record in told], rel=1e-5)
    assert len(drawn["Perplexity of masked tokens, validation"]["data"][0]["y"]) == 3
    sent = {name for record in told for name in record["bytes_per_step"]}
    assert sent and {trace["name"] for trace in drawn["Payload by collective"]["data"]} == sent
    page, text = written(tmp_path / "r.html"), (tmp_path / "r.md").read_text()
    assert page.count('class="masked"') > 5 and "row 0, epoch 1" in page and "row 0, epoch 1: \\[" in text
    assert re.search(r"\| run \| finished \| 40 \| .* \| 1 \| 2 \| ", text)
    ratios = re.findall(r"^\| run \| (?:all_\w+|reduce_\w+) \| .* \| ([\d.]+) \|$", text, re.MULTILINE)
    assert ratios and set(ratios) == {"1.0000"}, "what was sent is what the communication model says"
    csv, log = (tmp_path / "r.csv").read_text().splitlines(), (tmp_path / "r.log").read_text().splitlines()
    assert len(csv) == 1 + 41 and all(line.startswith(":::MLLOG {") for line in log) and '"status": "success"' in log[-1]
    (here / "manifest.json").write_text((here / "manifest.json").read_text() + " ")
    assert remask("report", "run", "--markdown", "again.md").returncode == 0
    assert "its shards are not what they were when it was started" in (tmp_path / "again.md").read_text()
    shutil.rmtree(here)
    assert remask("report", "run", "--markdown", "gone.md").returncode == 0
    assert "its shards are not here, so its masks cannot be shown" in (tmp_path / "gone.md").read_text()


def one_damaged(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A copy for each value, with that value damaged."""
    return [{**record, name: "HERE"} for name in record]


def damage(value: Any, text: str) -> str:
    return json.dumps(value).replace('"HERE"', text)


def wait_until(there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)
