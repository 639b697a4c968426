"""The demo runs from nothing, goes on where it stopped, and never mixes two configs in one folder."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from conftest import REMASK

from remask.data_prep import manifest
from remask.data_prep.files import locked
from remask.launcher.config import load

Remask = Callable[..., subprocess.CompletedProcess[str]]


def test_demo_goes_from_nothing_to_shards_and_uses_what_is_there_again(remask: Remask, tmp_path: Path) -> None:
    first = remask("demo", "--out", "run", "--model.layers", "2")
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"everything is in {tmp_path / 'run'}\n"
    documents = [json.loads(line) for line in (tmp_path / "run" / "corpus.jsonl").read_text().splitlines()]
    assert sum(len(document["text"]) for document in documents) > 5_000_000
    assert {document["source"].split("/")[0] for document in documents} == {"python", "numpy", "torch"}
    assert load(str(tmp_path / "run" / "config.yaml")).model.layers == 2
    assert "2/5 corpus" in (tmp_path / "run" / "demo.log").read_text()

    assert "5/5 masks: 12 verdicts, all good" in (tmp_path / "run" / "demo.log").read_text()

    made = manifest.read(tmp_path / "run" / "shards")
    assert made.config["pack"]["mode"] == "segment-pair" and made.vocab_size == 8192
    assert sum(shard.tokens for shard in made.train) > 1_000_000

    stamp = (tmp_path / "run" / "corpus.jsonl").stat().st_mtime_ns
    second = remask("demo", "--out", "run", "--model.layers", "2")
    assert second.returncode == 0 and second.stderr.count("used again") == 2 and "0 of them made now" in second.stderr
    assert (tmp_path / "run" / "corpus.jsonl").stat().st_mtime_ns == stamp

    other = remask("demo", "--out", "run")
    assert other.returncode == 2 and "made with another config" in other.stderr
    assert load(str(tmp_path / "run" / "config.yaml")).model.layers == 2


def test_a_damaged_corpus_is_noticed_and_made_again(remask: Remask, tmp_path: Path) -> None:
    demo = ["demo", "--preset", "roberta-tiny"]
    assert remask(*demo).returncode == 0
    corpus = tmp_path / "remask-demo" / "corpus.jsonl"
    whole = corpus.read_bytes()
    corpus.write_bytes(whole[: len(whole) // 2])
    assert "is not as it was written; it is made again" in remask(*demo).stderr
    assert corpus.read_bytes() == whole


def test_two_demos_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        result = subprocess.run([REMASK, "demo", "--out", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2 and "another remask is at work in this folder" in result.stderr
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_dry_run_shows_steps_and_config_and_writes_nothing(remask: Remask, tmp_path: Path) -> None:
    result = remask("demo", "--dry-run", "--preset", "bert-tiny")
    assert "# corpus: corpus.jsonl" in result.stdout
    (tmp_path / "shown.yaml").write_text(result.stdout)
    assert load(str(tmp_path / "shown.yaml")) == load("bert-tiny")
    assert not (tmp_path / "remask-demo").exists()
