"""One line a fact: plain in pipes and files, from rank 0 unless all are asked for."""

import logging
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from remask.launcher import logs

Remask = Callable[..., subprocess.CompletedProcess[str]]
RANK_1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}


def test_log_file_has_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logs.also_to(tmp_path / "run" / "run.log")
    logging.getLogger("remask.launcher.demo").info("made %d rows", 3)
    (line,) = (tmp_path / "run" / "run.log").read_text().splitlines()
    assert line.endswith("INFO made 3 rows") and line[:2] == "20"
    assert capsys.readouterr().err.endswith("INFO made 3 rows\n")
    logs.configure()


def test_other_ranks_are_silent_until_all_are_asked_for(remask: Remask, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("Few words make few entries.\n")
    train = ["tokenizer", "train", "corpus.txt", "--out"]
    assert "WARNING the sample gives only" in remask(*train, "a.json").stderr
    assert remask(*train, "b.json", **RANK_1).stderr == ""
    for out, args in (("c.json", [*train, "c.json", "--log-all-ranks"]), ("d.json", ["--log-all-ranks", *train, "d.json"])):
        assert "WARNING [rank 1] the sample gives only" in remask(*args, **RANK_1).stderr
        assert (tmp_path / out).exists()
