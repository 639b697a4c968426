"""Records and the page that is made of them: what was measured stands there with its origin, and what people wrote is kept."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from remask.benchmarks import all as everything
from remask.benchmarks.page import command_of, section_of, updated
from remask.benchmarks.record import Table, check_target, describe_commit, write_record
from remask.launcher.errors import UserError

TABLE = Table(title="Speed", columns=("who", "tokens/s"), rows=[["ours", "1,234"], ["a|b <c>", "5"]], note="Two rounds.")


@pytest.fixture
def record(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "step.json"
    write_record(file, "step", ["--quick", "--json", str(file)], time.monotonic() - 3, [TABLE], {"rows": [1, 2]})
    read: dict[str, Any] = json.loads(file.read_text())
    return read


def test_a_record_tells_what_was_measured_on_what(record: dict[str, Any]) -> None:
    assert record["benchmark"] == "step" and record["rows"] == [1, 2] and 3 <= record["seconds"] < 60
    assert record["command"].startswith("remask bench step --quick --json ")
    assert record["commit"] and record["versions"]["torch"] and record["hardware"]["cores"] >= 1
    assert record["tables"] == [
        {"title": "Speed", "columns": ["who", "tokens/s"], "rows": [list(r) for r in TABLE.rows], "note": "Two rounds."}
    ]


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_commit() == "unknown"


def test_a_target_without_a_folder_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    check_target("step", tmp_path / "step.json")
    with pytest.raises(UserError, match=r"remask bench step: --json: the folder of .* does not exist"):
        check_target("step", tmp_path / "no" / "step.json")


def test_a_section_has_origin_and_tables(record: dict[str, Any]) -> None:
    section = section_of(record)
    assert section.startswith("## step\n\n`remask bench step --quick`, ")
    for told in (record["commit"], record["time"][:10], f"torch {record['versions']['torch']}", f"{record['hardware']['cores']} cores"):
        assert told in section
    assert "### Speed\n\n| who | tokens/s |\n| --- | ---: |\n| ours | 1,234 |\n| a\\|b &lt;c> | 5 |\n\nTwo rounds." in section


def test_where_the_json_went_is_not_told() -> None:
    assert command_of({"command": "remask bench step --json 'a b.json' --quick"}) == "remask bench step --quick"
    assert command_of({"command": "remask bench step --json=x --quick"}) == "remask bench step --quick"
    assert command_of({"command": "remask bench learning --html x.html --steps 9"}) == "remask bench learning --steps 9"


def test_a_page_keeps_what_stands_outside_of_its_markers(record: dict[str, Any]) -> None:
    page = updated("", {"step": record, "loader": {**record, "benchmark": "loader"}})
    assert page.startswith("# Benchmarks\n") and page.index("## step") < page.index("## loader")
    edited = page.replace("<!-- begin loader -->", "My own remark.\n\n<!-- begin loader -->") + "\nAnd an end.\n"
    again = updated(edited, {"step": {**record, "commit": "another"}})
    assert "My own remark." in again and again.endswith("And an end.\n") and again.count("## step") == 1
    before, after = edited.split("<!-- begin step -->")[0], edited.split("<!-- end step -->")[1]
    assert again.startswith(before) and again.endswith(after) and "commit another" in again
    assert updated(again, {}) == again


def test_a_benchmark_that_fails_is_told_and_the_others_still_run(
    record: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, out: Path, quick: bool) -> tuple[int, dict[str, Any]]:
        (out / f"{name}.log").write_text("first\nthe reason\n")
        return (1, {}) if name == "loader" else (0, {**record, "benchmark": name})

    monkeypatch.setattr(everything, "run", run)
    page = tmp_path / "BENCHMARKS.md"
    code = everything.main(["--only", "loader", "step", "--out", str(tmp_path / "out"), "--page", str(page)])
    said = capsys.readouterr().out
    assert code == 1 and "1 of 2: loader … failed after" in said and "exit code 1: the reason" in said and "2 of 2: step …" in said
    assert "## step" in page.read_text() and "## loader" not in page.read_text()


@pytest.mark.dist  # half a minute of imports, in turn
def test_every_benchmark_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    code, found = everything.run("startup", tmp_path, quick=True)
    assert code == 0, (tmp_path / "startup.log").read_text()
    assert found["benchmark"] == "startup" and found["repeats"] == 2 and found["rows"]["remask_help"]["ratio"] > 0
    assert len(found["tables"][0]["rows"]) == len(found["rows"]) > 4 and "--quick" in found["command"]
