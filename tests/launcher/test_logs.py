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


def test_other_ranks_are_silent_until_all_are_asked_for(remask: Remask) -> None:
    demo = ["demo", "--preset", "roberta-tiny"]
    assert "INFO 1/5 config" in remask(*demo).stderr
    assert remask(*demo, **RANK_1).stderr == ""
    for args in ([*demo, "--log-all-ranks"], ["--log-all-ranks", *demo]):
        assert "INFO [rank 1] 1/5 config" in remask(*args, **RANK_1).stderr
