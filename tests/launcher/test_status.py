"""`remask status` and `remask logs` with a stand-in for squeue; tests/launcher/cluster has the real one."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REMASK

from remask.launcher import cli
from remask.launcher.cluster.folder import Submitted, record

Squeue = Callable[[str], None]
RECORD = {"kind": "training", "step": 7, "done": 0.25, "loss": 1.5, "tokens_per_s": 1234.0, "seconds_left": 60.0}


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Squeue:
    """Puts a text as squeue in front of all commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def answer(text: str) -> None:
        for name, script in {"squeue": text, "scontrol": "echo JobId=7 Restarts=2"}.items():
            (folder / name).write_text(f"#!/bin/bash\n{script}\n")
            (folder / name).chmod(0o755)

    return answer


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    record(folder, [Submitted(name="train", job="7", output=str(folder / "job" / "7.out"))])
    (folder / "job" / "7.out").write_text("first\nsecond\n")
    return folder


def write_records(run: Path, *lines: object) -> None:
    (run / "metrics").mkdir(exist_ok=True)
    (run / "metrics" / "rank-00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_starts(run: Path, *jobs: str | None) -> None:
    (run / "environment.json").write_text(json.dumps([{"slurm_job": job} for job in jobs]))


def told(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
    assert cli.main(["status", str(run)]) == 0
    text = capsys.readouterr().out
    assert cli.main(["status", str(run), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    return text, found


def test_a_colleagues_job_is_shown(run: Path, squeue: Squeue, capsys: pytest.CaptureFixture[str]) -> None:
    """The stand-in hides it from those who ask for their own jobs only."""
    squeue('case " $* " in *" --me "*) ;; *) echo "7|7|RUNNING|1:00|node1" ;; esac')
    assert told(run, capsys)[1]["jobs"][0] == {
        "name": "train", "output": str(run / "job" / "7.out"), "job": "7", "state": "RUNNING", "elapsed": "1:00", "restarts": 2,
        "where": "node1",
    }  # fmt: skip


def test_what_slurm_has_forgotten_is_told_by_the_run(run: Path, squeue: Squeue, capsys: pytest.CaptureFixture[str]) -> None:
    squeue("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    write_starts(run, "7")
    write_records(run, RECORD)
    text, found = told(run, capsys)
    assert found["jobs"][0]["state"] == "gone from the queue" and not found["problem"]
    assert "not finished, and no job of it is waiting or running; remask logs" in text and "to go" not in text
    (run / "end.json").write_text(json.dumps({"end": "finished", "step": 28, "why": "the budget is used up"}))
    assert "finished at step 28 (the budget is used up)" in told(run, capsys)[0]


def test_jobs_that_were_submitted_by_hand_are_shown(run: Path, squeue: Squeue, capsys: pytest.CaptureFixture[str]) -> None:
    squeue("echo '7|7|COMPLETED|1:00|node1'; echo '9|9|RUNNING|0:10|node2'")
    write_starts(run, None, "7", "9", "9")
    text, found = told(run, capsys)
    assert [(job["job"], job["state"]) for job in found["jobs"]] == [("7", "COMPLETED"), ("9", "RUNNING")]
    assert "no step yet" in text


def test_a_silent_controller_is_told_and_nothing_is_called_gone(run: Path, squeue: Squeue, capsys: pytest.CaptureFixture[str]) -> None:
    squeue("echo 'Unable to contact slurm controller' >&2; exit 1")
    text, found = told(run, capsys)
    assert found["jobs"][0]["state"] == "unknown" and "SLURM: squeue: Unable to contact slurm controller" in text


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([RECORD], "step 7 (25.0%): loss 1.5, 1,234 tokens/s, 0 starts"),
        ([{"kind": "training", "step": 7, "loss": 1.5}], "step 7: loss 1.5, 0 starts"),
        ([RECORD, 5, "x", None, [1], {"kind": "training"}], "step 7 (25.0%)"),
        ([{"kind": "training", "step": "seven"}], "no step yet"),
    ],
)
def test_records_of_others_and_of_older_versions_do_no_harm(
    lines: list[object], shown: str, run: Path, squeue: Squeue, capsys: pytest.CaptureFixture[str]
) -> None:
    squeue("echo '7|7|RUNNING|1:00|node1'")
    write_records(run, *lines)
    (run / "end.json").write_text("[1]")
    assert shown in told(run, capsys)[0]


def test_logs_are_followed_though_squeue_fails(run: Path, squeue: Squeue, tmp_path: Path) -> None:
    squeue("echo 'Unable to contact slurm controller' >&2; exit 1")
    printed = tmp_path / "printed"
    with (
        printed.open("wb") as stream,
        subprocess.Popen([REMASK, "logs", "-f", str(run)], stdout=stream, stderr=subprocess.PIPE) as follower,
    ):
        assert follower.stderr is not None
        assert b"Unable to contact slurm controller; the job's end will not be noticed" in follower.stderr.readline()
        while b"second" not in printed.read_bytes():
            assert follower.poll() is None
        follower.terminate()
        assert b"Traceback" not in follower.stderr.read()
    assert printed.read_bytes() == b"first\nsecond\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--lines", "-3"], "remask logs: --lines: -3 was given, it must be at least 0"),
        (["--job", "prep"], "no prep job was submitted for it"),
    ],
)
def test_mistakes_with_logs_are_one_sentence(more: list[str], said: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", str(run), *more]) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_jobs_has_no_logs_of_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").touch()
    assert cli.main(["logs", str(tmp_path)]) == 2
    assert f"{tmp_path}: no job was submitted for it" in capsys.readouterr().err
