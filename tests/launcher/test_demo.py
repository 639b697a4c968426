"""The demo runs from nothing, goes on where it stopped, and never mixes two configs in one folder."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from remask.launcher.config import load

Remask = Callable[..., subprocess.CompletedProcess[str]]


def test_demo_makes_a_corpus_and_a_config_and_uses_them_again(remask: Remask, tmp_path: Path) -> None:
    first = remask("demo", "--out", "run", "--model.layers", "2")
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"everything is in {tmp_path / 'run'}\n"
    documents = [json.loads(line) for line in (tmp_path / "run" / "corpus.jsonl").read_text().splitlines()]
    assert sum(len(document["text"]) for document in documents) > 5_000_000
    assert {document["source"].split("/")[0] for document in documents} == {"python", "numpy", "torch"}
    assert load(str(tmp_path / "run" / "config.yaml")).model.layers == 2
    assert "1/2 corpus" in (tmp_path / "run" / "demo.log").read_text()

    stamp = (tmp_path / "run" / "corpus.jsonl").stat().st_mtime_ns
    second = remask("demo", "--out", "run", "--model.layers", "2")
    assert second.returncode == 0 and "used again" in second.stderr
    assert (tmp_path / "run" / "corpus.jsonl").stat().st_mtime_ns == stamp

    other = remask("demo", "--out", "run")
    assert other.returncode == 2 and "made with another config" in other.stderr
    assert load(str(tmp_path / "run" / "config.yaml")).model.layers == 2


def test_dry_run_shows_steps_and_config_and_writes_nothing(remask: Remask, tmp_path: Path) -> None:
    result = remask("demo", "--dry-run", "--preset", "bert-tiny")
    assert "# corpus: corpus.jsonl" in result.stdout
    (tmp_path / "shown.yaml").write_text(result.stdout)
    assert load(str(tmp_path / "shown.yaml")) == load("bert-tiny")
    assert not (tmp_path / "remask-demo").exists()
