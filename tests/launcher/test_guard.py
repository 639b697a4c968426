"""The guard tells noise from what is far out."""

import math
import random

from remask.launcher.guard import Guard, GuardConfig, loss_to_judge


def seasoned(**options: object) -> Guard:
    draw = random.Random(1)  # noqa: S311
    guard = Guard(GuardConfig(**options), [], [])  # type: ignore[arg-type]
    for step in range(200):
        loss, norm = 9 - step / 50 + draw.gauss(0, 0.05), 1 + abs(draw.gauss(0, 0.4))
        assert guard.judge(loss, norm) == "", "ordinary noise"
        guard.remember(loss, norm)
    return guard


def test_what_is_not_finite_is_said_from_the_first_step() -> None:
    for loss, norm, named in ((float("nan"), 1.0, "loss"), (float("inf"), 1.0, "loss"), (5.0, float("inf"), "gradient norm")):
        assert Guard(GuardConfig(spike_factor=None), [], []).judge(loss, norm) == f"the {named} is not finite"


def test_what_is_far_out_is_said_once_there_is_something_to_compare_with() -> None:
    fresh = Guard(GuardConfig(), [], [])
    assert fresh.judge(500.0, 500.0) == ""
    guard = seasoned()
    usual = sorted(guard.losses)[50]
    assert "the gradient norm 100 is more than 20 times the usual" in guard.judge(usual, 100.0)
    assert "the loss" in guard.judge(usual + 60, 1.0) and guard.judge(usual + 1, 1.0) == "" and guard.judge(usual - 5, 1.0) == ""
    assert Guard(GuardConfig(spike_factor=None), list(guard.losses), list(guard.norms)).judge(usual + 60, 1e9) == ""


def test_memory_is_as_long_as_the_window_and_can_be_handed_on() -> None:
    guard = seasoned(window_steps=30)
    assert len(guard.losses) == len(guard.norms) == 30
    again = Guard(guard.config, list(guard.losses), list(guard.norms))
    assert again.judge(6.0, 99.0) == guard.judge(6.0, 99.0) != ""


def test_steps_with_and_without_a_sentence_question_are_compared_by_their_masked_tokens() -> None:
    assert loss_to_judge({"masked_tokens": 4.0, "sentence": 0.7}) == loss_to_judge({"masked_tokens": 4.0}) == 4.0
    assert loss_to_judge({"sentence": 0.7}) == 0.7
    assert (
        math.isnan(loss_to_judge({"masked_tokens": 4.0, "sentence": math.nan})) and loss_to_judge({"masked_tokens": math.inf}) == math.inf
    )
