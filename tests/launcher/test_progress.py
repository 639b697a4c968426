"""Progress where there is no terminal: now and then a line with the speed and the time to go."""

import logging

import pytest

from remask.launcher import progress as module
from remask.launcher.progress import Progress, progress


def test_lines_tell_what_is_done_how_fast_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    monkeypatch.setattr(logging.getLogger("remask"), "propagate", True)
    with caplog.at_level(logging.INFO, "remask.launcher.progress"), progress("MB") as report:
        for stage in ("encode", "pack"):
            report(Progress(stage=stage, done=40, total=80))  # half was there before
            for done in range(1, 41):
                now += 0.25
                report(Progress(stage=stage, done=40 + done, total=80, also="tokens", also_done=1000 * done))
    lines = list(dict.fromkeys(record.message for record in caplog.records))
    assert lines == [
        "encode: 60 of 80 MB, 4.0 MB/s, 4,000 tokens/s, 5 s to go",
        "encode: 80 of 80 MB, 4.0 MB/s, 4,000 tokens/s, 0 s to go",
        "pack: 60 of 80 MB, 4.0 MB/s, 4,000 tokens/s, 5 s to go",
        "pack: 80 of 80 MB, 4.0 MB/s, 4,000 tokens/s, 0 s to go",
    ]
