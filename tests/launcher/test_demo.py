"""The demo runs from nothing to a Hugging Face model, goes on where it stopped, and never mixes two configs in one folder."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REMASK
from transformers import AutoModelForMaskedLM

from remask.data_prep import manifest
from remask.data_prep.files import locked
from remask.launcher.config import load

Remask = Callable[..., subprocess.CompletedProcess[str]]


SHORT = ["--schedule.steps", "30", "--schedule.warmup-steps", "3", "--metrics.evaluate-rows", "64"]


@pytest.mark.dist
@pytest.mark.timeout(600)
def test_demo_goes_from_nothing_to_filled_masks_and_uses_what_is_there_again(remask: Remask, tmp_path: Path) -> None:
    run = tmp_path / "run"
    demo = ["demo", "--out", "run", "--model.layers", "2", *SHORT]
    first = remask(*demo)
    assert first.returncode == 0, first.stderr
    assert first.stdout.endswith(f"everything is in {run}\n") and "model/, a Hugging Face folder" in first.stdout
    documents = [json.loads(line) for line in (run / "corpus.jsonl").read_text().splitlines()]
    assert sum(len(document["text"]) for document in documents) > 5_000_000
    assert {document["source"].split("/")[0] for document in documents} == {"python", "numpy", "torch"}
    assert load(str(run / "config.yaml")).model.layers == 2
    log = (run / "demo.log").read_text()
    assert "2/8 corpus" in log and "5/8 masks: 12 verdicts, all good" in log

    made = manifest.read(run / "shards")
    assert made.config["pack"]["mode"] == "segment-pair" and made.vocab_size == 8192
    assert sum(shard.tokens for shard in made.train) > 1_000_000

    environment = json.loads((run / "run" / "environment.json").read_text())
    assert environment[0]["ranks"] == 2 and (run / "run" / "metrics" / "rank-00001.jsonl").exists()
    before, after = re.findall(r"validation loss of masked tokens ([\d.]+) at first, ([\d.]+) after 30 steps", log)[0]
    assert float(after) < float(before) - 0.1
    model = AutoModelForMaskedLM.from_pretrained(run / "model")
    assert type(model).__name__ == "AlbertForMaskedLM" and model.config.num_hidden_layers == 2
    assert "is returned to its caller.  " in log

    stamp = (run / "corpus.jsonl").stat().st_mtime_ns
    second = remask(*demo)
    assert second.returncode == 0 and second.stderr.count("used again") == 3 and "0 of them made now" in second.stderr
    assert (run / "corpus.jsonl").stat().st_mtime_ns == stamp
    assert "resumed at step 30" in second.stderr

    other = remask("demo", "--out", "run")
    assert other.returncode == 2 and "made with another config" in other.stderr
    assert load(str(run / "config.yaml")).model.layers == 2

    whole = (run / "corpus.jsonl").read_bytes()
    (run / "corpus.jsonl").write_bytes(whole[: len(whole) // 2])
    assert "is not as it was written; it is made again" in remask(*demo).stderr
    assert (run / "corpus.jsonl").read_bytes() == whole


@pytest.mark.dist
def test_demo_of_a_recipe_in_two_phases_prepares_both_lengths(remask: Remask, tmp_path: Path) -> None:
    result = remask("demo", "--preset", "bert-tiny", "--schedule.short-fraction", "0.5", *SHORT)
    assert result.returncode == 0, result.stderr
    made = [manifest.read(tmp_path / "remask-demo" / name).config["pack"]["sequence_length"] for name in ("shards", "shards-short")]
    assert made == [128, 64]


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
