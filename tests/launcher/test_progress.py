"""Progress where there is no terminal: now and then a line with the time to go."""

import logging

import pytest

from remask.launcher import progress as module
from remask.launcher.progress import progress


def test_lines_tell_what_is_done_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    monkeypatch.setattr(logging.getLogger("remask"), "propagate", True)
    with caplog.at_level(logging.INFO, "remask.launcher.progress"), progress("corpus", "files") as report:
        for done in range(1, 101):
            now += 0.25
            report(done, 100)
    lines = list(dict.fromkeys(record.message for record in caplog.records))
    assert lines[:2] == ["corpus: 20 of 100 files, 20 s to go", "corpus: 40 of 100 files, 15 s to go"]
