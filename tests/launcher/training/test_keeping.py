"""What a run keeps: checkpoints by step and by time, and the same figures for TensorBoard as in its JSONL."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launcher.training.ranks import end_of, keep_only, records, run_args, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from remask.launcher.metrics import MetricsConfig

pytestmark = pytest.mark.dist


def kept(run: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step-")) for folder in (run / "checkpoints").iterdir())


def told_by(run: Path, step: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((run / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())
    return told


def check_board(run: Path, steps: int, evaluations: list[int]) -> None:
    """Every scalar is the JSONL's, each step once; the filled masks stand there as text."""
    board = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    expected: dict[str, list[tuple[int, float]]] = {}
    for record in records(run, "training"):
        scalars = {"train/loss": record["loss"], "train/lr": record["lr"], "train/gradient_norm": record["gradient_norm"]}
        scalars |= {f"train/{name}": loss for name, loss in record["losses"].items()}
        scalars |= {f"speed/{name}": record[name] for name in ("tokens_per_s", "mfu", "data_wait")}
        scalars |= {f"bytes_per_step/{name}": amount for name, amount in record["bytes_per_step"].items()}
        for name, value in scalars.items():
            expected.setdefault(name, []).append((record["step"], float(np.float32(value))))
    assert [step for step, _ in expected["train/loss"]] == list(range(1, steps + 1))
    evaluated = records(run, "evaluation")
    assert [record["step"] for record in evaluated] == evaluations
    for name in ("validation/masked_tokens", "validation/sentence", "validation/perplexity"):
        expected[name] = [(record["step"], float(np.float32(record[name]))) for record in evaluated]
    assert {name: [(event.step, event.value) for event in board.Scalars(name)] for name in board.Tags()["scalars"]} == expected
    for sentence in MetricsConfig.sentences:
        found = board.Tensors(f"filled/{sentence}/text_summary")  # of steps that are made again TensorBoard forgets scalars only
        assert {event.step: event.tensor_proto.string_val[0].decode() for event in found} == {
            record["step"]: ", ".join(f"{word} {share:.0%}" for word, share in record["filled"][sentence]) for record in evaluated
        }


def test_the_last_and_every_nth_checkpoint_stay_with_the_micro_batch_that_was_found(recipe: str, shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keeping = ["--checkpoint.save-every-steps", "4", "--checkpoint.keep-last", "2", "--checkpoint.keep-every-steps", "12"]
    telling = ["--metrics.tensorboard", "true", "--metrics.evaluate-every-steps", "15", "--schedule.steps", "30"]
    args = run_args(recipe, shards, run, "--micro-batch", "auto", *keeping, *telling)
    said = train(2, *args)
    assert "micro-batches of 384 tokens (12 full rows), found by trial" in said  # half of the batch's 24 rows of 32 tokens
    assert kept(run) == [12, 24, 28, 30], "saved at 4, 8, …, 28 and at the end"
    assert [told_by(run, step)["micro_batch_tokens"] for step in kept(run)] == [384] * 4
    check_board(run, 30, [0, 15, 30])
    keep_only(run, 12, 24)
    said = train(1, *args)  # which would find 768 tokens, and sum in another order
    assert "resumed at step 24 from " in said and "micro-batches of 384 tokens" in said and "found by trial" not in said
    assert kept(run) == [12, 24, 28, 30] and told_by(run, 30)["micro_batch_tokens"] == 384
    check_board(run, 30, [0, 15, 30])


def test_checkpoints_are_written_by_time_and_not_more_often(recipe: str, shards: Path, tmp_path: Path) -> None:
    run, between = tmp_path / "run", 0.6
    never = ["--schedule.steps", "1000000", "--checkpoint.save-every-steps", "1000000", "--metrics.evaluate-every-steps", "1000000"]
    budget = ["--schedule.hours", str(6 * between / 3600), "--checkpoint.save-every-minutes", str(between / 60)]
    train(2, *run_args(recipe, shards, run, *never, *budget, "--engine.cpu-threads", "1", "--checkpoint.keep-last", "100"))
    *by_time, last = kept(run)
    assert last == end_of(run)["step"] == len(records(run, "training"))
    times = [told_by(run, step)["state"]["seconds"] for step in by_time]
    assert 2 <= len(times) <= 6, times
    assert min(np.diff([0.0, *times])) > between, times
