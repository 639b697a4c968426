"""Real runs of several ranks: what is interrupted goes on exactly, with any number of ranks."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launcher.training.ranks import digests, end_of, keep_only, losses, records, run_args, start, train, wait

from remask.launcher.config import load
from remask.launcher.sealed import seal

pytestmark = pytest.mark.dist


@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (2, "bf16")])
def test_a_resumed_run_is_bit_exact(stage: int, precision: str, recipe: str, shards: Path, tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    args = ["--engine.zero-stage", str(stage), "--engine.precision", precision, "--metrics.log-every-steps", "3"]
    train(2, *run_args(recipe, shards, whole, *args))
    assert [path.name for path in sorted((whole / "checkpoints").iterdir())] == [f"step-{step:08d}" for step in (13, 26, 39, 40)]
    shutil.copytree(whole, resumed)
    keep_only(resumed, 13)
    said = train(2, *run_args(recipe, shards, resumed, *args))
    assert "resumed at step 13" in said
    log = losses(whole)
    assert len(log) == 14 and log[-1][1] < log[0][1] - 0.2 and log == losses(resumed)
    assert [r["validation/perplexity"] for r in records(whole, "evaluation")] == [
        r["validation/perplexity"] for r in records(resumed, "evaluation")
    ]
    seen = digests(whole, 2)
    assert len(seen) == 40 and seen == digests(resumed, 2)
    assert end_of(whole)["weights"] == end_of(resumed)["weights"] and end_of(resumed)["end"] == "finished"


def test_another_number_of_ranks_sees_the_same_rows_and_losses(recipe: str, shards: Path, tmp_path: Path) -> None:
    """2 ranks to step 13, 1 rank to step 26, 4 ranks to the end, another ZeRO stage each time."""
    dropless = ["--model.dropout", "0.0", "--model.attention-dropout", "0.0"]
    whole, mixed = tmp_path / "whole", tmp_path / "mixed"
    train(2, *run_args(recipe, shards, whole, *dropless, "--engine.zero-stage", "1"))
    shutil.copytree(whole, mixed)
    keep_only(mixed, 13)
    train(1, *run_args(recipe, shards, mixed, *dropless, "--engine.zero-stage", "3"))
    keep_only(mixed, 13, 26)
    train(4, *run_args(recipe, shards, mixed, *dropless, "--engine.zero-stage", "2"))
    seen = digests(whole, 2)
    assert len(seen) == 40 and all(len(rows) == 24 for rows in seen.values()) and seen == digests(mixed, 4)
    assert [step for step, _ in losses(mixed)] == list(range(1, 41))
    assert [loss for _, loss in losses(mixed)] == pytest.approx([loss for _, loss in losses(whole)], abs=1e-5)


def damage(folder: Path, how: str) -> None:
    file = folder / "optimizer-00001.safetensors"
    content = bytearray(file.read_bytes())
    assert len(content) > 5000
    if how == "torn":
        file.unlink()
    elif how == "flipped":
        content[4000] ^= 1
        file.write_bytes(content)
    elif how == "truncated":
        file.write_bytes(content[:-1])
    else:
        told = json.loads((folder / "state.json").read_text())
        told["config"]["seed"] = 99
        (folder / "state.json").write_text(json.dumps(told))
        seal(folder)


def test_damaged_and_foreign_checkpoints_are_named_and_the_newest_whole_one_is_used(recipe: str, shards: Path, tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    args = ["--checkpoint.save-every-steps", "8", "--schedule.steps", "40"]
    train(2, *run_args(recipe, shards, whole, *args))
    shutil.copytree(whole, damaged)
    reasons = {
        "torn": "cannot be read",
        "flipped": "its digest differs",
        "truncated": "its digest differs",
        "foreign": "seed: 1 here, 99 there",
    }
    for step, how in zip((40, 32, 24, 16), reasons, strict=True):
        damage(damaged / "checkpoints" / f"step-{step:08d}", how)
    said = train(2, *run_args(recipe, shards, damaged, *args))
    for step, reason in zip((40, 32, 24, 16), reasons.values(), strict=True):
        line = next(line for line in said.splitlines() if f"damaged-step-{step:08d}" in line)
        assert reason in line, line
        assert (damaged / "checkpoints" / f"damaged-step-{step:08d}").is_dir()
    assert "resumed at step 8 " in said
    assert end_of(damaged)["weights"] == end_of(whole)["weights"]


def test_two_phases_a_growing_batch_and_a_token_budget_resume_exactly(
    recipe: str, shards: Path, short_shards: Path, tmp_path: Path
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    args = [
        "--schedule.steps", "1000", "--schedule.tokens", "16000", "--schedule.short-fraction", "0.5", "--schedule.short-length", "16",
        "--data.short-sets", str(short_shards),
        "--schedule.short-batch-rows", "36", "--schedule.first-batch-rows", "12", "--schedule.batch-warmup-steps", "10",
        "--checkpoint.save-every-steps", "5", "--checkpoint.keep-last", "100",
    ]  # fmt: skip
    train(2, *run_args(recipe, shards, whole, *args))
    told = records(whole, "training")
    sizes = [record["rows"] for record in told]
    assert sizes[:3] == [12, 14, 17] and 36 in sizes and sizes[-1] == 24
    turn = next(number for number, record in enumerate(told) if number and record["position"] == 0)
    assert sizes[turn] == 24 and told[turn - 1]["tokens"] >= 8000 > told[turn - 2]["tokens"]
    assert told[-1]["tokens"] >= 16000 > told[-2]["tokens"] and told[-1]["lr"] < told[turn]["lr"] < max(record["lr"] for record in told)
    for stop in (5, turn // 5 * 5 + 5):  # in each phase
        shutil.rmtree(resumed, ignore_errors=True)
        shutil.copytree(whole, resumed)
        keep_only(resumed, stop)
        train(2, *run_args(recipe, shards, resumed, *args))
        assert losses(resumed) == losses(whole) and end_of(resumed)["weights"] == end_of(whole)["weights"]


def test_a_time_budget_ends_the_run_and_the_rate_follows_it_over_restarts(recipe: str, shards: Path, tmp_path: Path) -> None:
    run, hours = tmp_path / "run", 0.002
    args = run_args(
        recipe, shards, run, "--schedule.steps", "1000000", "--schedule.hours", str(hours), "--engine.cpu-threads", "1",
        "--checkpoint.save-every-steps", "5", "--checkpoint.keep-last", "5000",
    )  # fmt: skip
    schedule = replace(load(recipe).schedule, steps=1_000_000, hours=hours)

    def check() -> list[dict[str, Any]]:
        """What holds however fast the steps are: a step's rate follows from the time that was used up before it."""
        told = records(run, "training")
        assert [record["step"] for record in told] == list(range(1, len(told) + 1))
        done = [record["done"] for record in told]
        assert done == sorted(done) and done[-1] >= 1 > done[-2], "it ends with the first step after the budget"
        warm = done[schedule.warmup_steps - 1]
        rates = [0.03 * schedule.rate_at(step, share, warm) for step, share in enumerate(done[:-1], start=1)]
        assert [record["lr"] for record in told[1:]] == pytest.approx(rates, rel=1e-9) and rates[-1] < 0.9 * max(rates)
        state = json.loads(max((run / "checkpoints").glob("step-*")).joinpath("state.json").read_text())["state"]
        assert state["seconds"] >= 3600 * hours and end_of(run)["end"] == "finished"
        return told

    train(1, *args)
    middle = max(record["step"] for record in check() if record["step"] % 5 == 0 and record["done"] < 0.6)
    keep_only(run, middle)
    assert f"resumed at step {middle} " in train(1, *args)
    check()


def test_what_would_mix_up_two_runs_is_refused(recipe: str, shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(1, *run_args(recipe, shards, run, "--schedule.steps", "6"))

    def refused(*args: str) -> str:
        codes, said = wait(start(1, *args))
        assert codes == [2] and "Traceback" not in said
        return said

    assert "seed: 7 here, 1 there" in refused(*run_args(recipe, shards, run, "--schedule.steps", "6", "--seed", "7"))
    assert "holds a run with checkpoints" in refused(*run_args(recipe, shards, run, "--schedule.steps", "6", "--resume", "never"))
    shutil.copytree(shards, tmp_path / "others")
    (tmp_path / "others" / "manifest.json").write_text((shards / "manifest.json").read_text() + "\n")
    assert "started with other shards" in refused(*run_args(recipe, tmp_path / "others", run, "--schedule.steps", "6"))
    assert "no such folder" in refused(*run_args(recipe, shards, tmp_path / "new", "--resume", "nowhere"))
    branch = ["--resume", str(run), "--optimizer.lr", "1e-4", "--schedule.steps", "9"]
    said = train(1, *run_args(recipe, shards, tmp_path / "branch", *branch))
    assert "begins this run, though optimizer.lr: 0.0001 here, 0.03 there" in said and end_of(tmp_path / "branch")["step"] == 9
    assert "its data.sentence_task is another" in refused(
        *run_args(recipe, shards, tmp_path / "task", *branch, "--data.sentence-task", "nsp")
    )
    assert "its model is another one" in refused(*run_args(recipe, shards, tmp_path / "other", *branch, "--model.layers", "2"))
    file = run / "checkpoints" / "step-00000006" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert "no whole checkpoint is left" in refused(*run_args(recipe, shards, run, "--schedule.steps", "6"))
    file.write_bytes(whole)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000006"]
    evaluations = records(run, "evaluation")
    train(1, *run_args(recipe, shards, run, "--schedule.steps", "6"))  # finished, so nothing is done again
    assert records(run, "evaluation") == evaluations and len(losses(run)) == 6
