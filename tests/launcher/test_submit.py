"""`remask submit` before anything is queued: what the job would be refused for later is refused at once."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from launcher.training.ranks import run_args

from remask.launcher import cli

Remask = Callable[..., CompletedProcess[str]]


@pytest.fixture
def args(recipe: str, shards: Path, tmp_path: Path) -> list[str]:
    return ["submit", *run_args(recipe, shards, tmp_path / "run"), "--dry-run"]


def test_several_sweeps_give_all_combinations(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*args, "--sweep", "optimizer.lr=1e-3,2e-3", "--sweep", "seed=1,2", "--sweep", "model.layers=1,2,3"]) == 0
    printed = capsys.readouterr().out
    assert "#SBATCH --array=1-12" in printed and printed.count("/job/config.yaml\n") == 12


@pytest.mark.parametrize("sweeps", [["seed=1,2", "seed=3"], ["data.sets=a,b"]])
def test_a_sweep_that_another_option_would_override_is_refused(
    sweeps: list[str], args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*args, *(f"--sweep={sweep}" for sweep in sweeps)]) == 2
    assert "was given before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--nodes", "5"], "data.batch_rows: 24 was given, it must be a multiple of the 5 ranks"),
        (["--nodes", "8"], "data.lanes: 12 was given, it must be a multiple of the 8 ranks"),
        (["--gpus-per-node", "2", "--ranks-per-node", "3"], "--ranks-per-node: 3 was given with 2 GPUs a machine"),
        (["--setup", "gone.sh"], "--setup: gone.sh is no file"),
        (["--engine.ds-config", "gone.json"], "gone.json: cannot be read"),
        (["--engine.precision", "fp16", "--engine.zero-stage", "1"], "fp16 was given, which DeepSpeed does not run on a CPU"),
        (["--template", "gone.j2"], "--template: gone.j2: cannot be read (No such file or directory)"),
    ],
)
@pytest.mark.parametrize("dry", [True, False])
def test_what_the_ranks_would_refuse_is_refused_before_the_job_waits(
    more: list[str], said: str, dry: bool, args: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main([*(args if dry else args[:-1]), *more]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [["--nodes", "5"], ["--nodes", "8"]])
def test_rows_of_shards_that_are_still_to_be_made_are_checked_too(
    more: list[str], args: list[str], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = ["--corpus", str(corpus / "corpus.jsonl"), "--tokenizer", str(corpus / "tokenizer.json"), "--data", str(tmp_path / "made")]
    given = [arg for i, arg in enumerate(args) if "--data" not in (arg, args[i - 1])]
    assert cli.main([*given, *chain]) == 0
    capsys.readouterr()
    assert cli.main([*given, *chain, *more]) == 2
    assert f"must be a multiple of the {more[1]} ranks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% if %}", "line 1: cannot be used"),
        ("{{ job.nonsense }}", "has no attribute 'nonsense'"),
        ('{% extends "gone.j2" %}', "names a template that is not there (gone.j2)"),
        ("{{ job.run / 2 }}", "cannot be used"),
    ],
)
def test_a_template_with_a_mistake_is_one_sentence(
    text: str, said: str, args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.j2").write_text(text)
    assert cli.main([*args, "--template", str(tmp_path / "mine.j2")]) == 2
    error = capsys.readouterr().err
    assert said in error and "mine.j2" in error and error.count("\n") == 1


def test_a_setup_file_is_sourced_by_its_whole_path(args: list[str], remask: Remask, tmp_path: Path) -> None:
    """Without a slash bash would look for it in PATH first."""
    (tmp_path / "env.sh").write_text("export A=1\n")
    printed = remask(*args, "--setup", "env.sh").stdout
    assert f"SETUP={tmp_path}/env.sh\n" in printed


def test_the_deepspeed_json_is_shown_for_the_jobs_ranks(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*args, "--nodes", "2", "--ranks-per-node", "2"]) == 0
    shown = capsys.readouterr().out.split("# ds_config.json, 4 ranks\n")[1]
    assert json.loads(shown)["train_micro_batch_size_per_gpu"] == 6
