"""What is looked at before the first step; machines that this one cannot be are pretended."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from launcher.training.pretended import PretendedPeers

from remask.launcher.communication import Weights
from remask.launcher.config import load
from remask.launcher.errors import UserError
from remask.launcher.ranks import Place
from remask.launcher.training import preflight
from remask.launcher.training.start import open_loaders

HOSTS = ["red", "green", "green", "blue"]


@pytest.fixture(autouse=True)
def no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_measure_all_reduce", lambda peers, device: 1.0)
    monkeypatch.setattr(logging.getLogger("remask"), "propagate", True)


def check(recipe: str, shards: Path, run: Path, peers: PretendedPeers) -> preflight.Findings:
    config = load(recipe, {"data": {"sets": [str(shards)]}})
    run.mkdir(exist_ok=True)
    loaders, _ = open_loaders(config, Place(rank=0, world_size=1))
    return preflight.check(config, run, peers, loaders, HOSTS, torch.device("cpu"))


def test_machines_that_are_alike_pass_and_what_was_found_is_kept(recipe: str, shards: Path, tmp_path: Path) -> None:
    findings = check(recipe, shards, tmp_path / "run", PretendedPeers(4))
    kept = json.loads((tmp_path / "run" / "preflight.json").read_text())
    assert kept["hosts"] == findings.hosts == ["blue", "green", "red"] and kept["shards"] > 0 and kept["seconds_apart"] == 0
    assert kept["free_gb"] == pytest.approx(shutil.disk_usage(tmp_path).free / 1e9, rel=0.1)


@pytest.mark.parametrize("name", ["torch", "remask's files"])
def test_a_machine_with_another_version_or_other_files_is_named(name: str, recipe: str, shards: Path, tmp_path: Path) -> None:
    def other(told: Any, rank: int) -> Any:
        return {**told, "code": {**told["code"], name: "another"}} if rank in (1, 2) and isinstance(told, dict) else told

    with pytest.raises(UserError) as caught:
        check(recipe, shards, tmp_path / "run", PretendedPeers(4, other))
    said = str(caught.value)
    assert f"green: {name} another, red has " in said and "install the same on all machines" in said
    assert said.count("green: ") == 1 and "blue" not in said, "a machine is named once, and no other one"


def test_code_is_told_by_what_is_in_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Copies of one version may differ."""
    package = Path(preflight.__file__).resolve().parents[2]
    for folder in ("launcher", "model", "data_prep"):
        shutil.copytree(package / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    ours = preflight._describe_code()
    monkeypatch.setattr(preflight, "__file__", str(tmp_path / "launcher" / "training" / "preflight.py"))
    assert preflight._describe_code() == ours
    file = tmp_path / "model" / "heads.py"
    file.write_text(file.read_text() + "\n")
    theirs = preflight._describe_code()
    assert {name for name in ours if ours[name] != theirs[name]} == {"remask's files"}


def test_a_clock_that_is_off_is_a_warning_that_names_its_machine(
    recipe: str, shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def late(told: Any, rank: int) -> Any:
        return told - 40 if rank == 3 and isinstance(told, float) else told

    findings = check(recipe, shards, tmp_path / "run", PretendedPeers(4, late))
    assert findings.seconds_apart == pytest.approx(40)
    (warning,) = [record.message for record in caplog.records if "clocks" in record.message]
    assert warning.startswith("clocks differ by 40 s (blue: -40 s)")


def test_a_disk_that_is_too_small_is_refused_or_warned_of_with_the_figures(
    recipe: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preflight, "weights_of", lambda config: Weights(groups=((500_000_000,),)))  # a checkpoint of 6 GB
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=5_900_000_000))
    with pytest.raises(UserError, match=r"run: 5\.90 GB are free, one checkpoint needs 6\.00; free some, or give another --out"):
        check(recipe, shards, tmp_path / "run", PretendedPeers(4))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=60_000_000_000))
    check(recipe, shards, tmp_path / "run", PretendedPeers(4))
    assert "60.0 GB are free, the 10 checkpoints that are kept need 66.0" in caplog.text


def test_a_shard_that_is_cut_off_is_named(recipe: str, shards: Path, tmp_path: Path) -> None:
    """By the machine that sees it so: all ranks of a machine look at their part of its files."""
    copy = tmp_path / "shards"
    shutil.copytree(shards, copy)
    config = load(recipe, {"data": {"sets": [str(copy)]}})
    loaders, _ = open_loaders(config, Place(rank=0, world_size=1))
    shard = copy / loaders[False].sets[0].manifest.shards[0].name
    size = shard.stat().st_size
    with shard.open("r+b") as stream:
        stream.truncate(size - 512)
    with pytest.raises(UserError, match=rf"red: {shard}: {size - 512} bytes, {size} were written; prepare the shards again"):
        preflight.check(config, tmp_path, PretendedPeers(4), loaders, HOSTS, torch.device("cpu"))
