"""The learning rate's way against Hugging Face's schedules, which begin at 0 and so are one step behind in the warm-up."""

from typing import Any

import pytest
import torch
import transformers

from remask.launcher.schedule import ScheduleConfig


def theirs(make: Any, steps: int, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = make(optimizer, num_training_steps=steps, **options)
    rates = []
    for _ in range(steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates


SHAPES = {
    "linear": (transformers.get_linear_schedule_with_warmup, {}),
    "cosine": (transformers.get_cosine_schedule_with_warmup, {}),
    "polynomial": (transformers.get_polynomial_decay_schedule_with_warmup, {"power": 2.0, "lr_end": 0.0}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_way_is_hugging_faces(shape: Any) -> None:
    config = ScheduleConfig(steps=100, warmup_steps=10, shape=shape)
    make, options = SHAPES[shape]
    wanted = theirs(make, 100, num_warmup_steps=10, **options)
    found = [config.rate_at(step) for step in range(100)]
    assert found[10:] == pytest.approx(wanted[10:]) and max(found) == 1.0
    assert found[:9] == pytest.approx(wanted[1:10]) and found[9] == 1.0
    assert min(found) > 0


def test_warmup_stable_decay_stays_and_then_falls() -> None:
    config = ScheduleConfig(steps=100, warmup_steps=10, shape="warmup-stable-decay", decay_fraction=0.2, final_fraction=0.1)
    found = [config.rate_at(step) for step in range(100)]
    assert (
        found[9:81] == pytest.approx([1.0] * 72)
        and found[90] == pytest.approx(0.1 + 0.9 * 0.5)
        and found[99] == pytest.approx(0.1 + 0.9 * 0.05)
    )


def test_without_warmup_the_first_step_has_the_peak() -> None:
    assert ScheduleConfig(steps=5, warmup_steps=0).rate_at(0) == 1.0
    assert ScheduleConfig(steps=5, warmup_steps=5).rate_at(4) == 1.0
    assert ScheduleConfig(steps=5, warmup_steps=5).rate_at(7) == 0.0


def test_the_nearest_end_of_steps_tokens_and_hours_counts() -> None:
    config = ScheduleConfig(steps=1000, warmup_steps=10, tokens=5000, hours=2.0)
    assert config.done_at(500, 1000, 60) == 0.5
    assert config.done_at(500, 4000, 60) == 0.8
    assert config.done_at(500, 4000, 6480) == 0.9


def test_the_rate_follows_the_budget_from_where_the_warm_up_ended() -> None:
    config = ScheduleConfig(steps=10**6, warmup_steps=10, tokens=1000)
    assert config.rate_at(4, done=0.05) == 0.5
    assert config.rate_at(10, done=0.2, done_when_warm=0.2) == 1.0
    assert config.rate_at(50, done=0.6, done_when_warm=0.2) == pytest.approx(0.5)
    in_steps = ScheduleConfig(steps=100, warmup_steps=10)
    assert [in_steps.rate_at(step) for step in range(100)] == [in_steps.rate_at(step, step / 100, 0.1) for step in range(100)]


def test_the_batch_grows_and_phases_have_their_own_size() -> None:
    config = ScheduleConfig(
        steps=100, warmup_steps=0, first_batch_rows=8, batch_warmup_steps=10, short_fraction=0.5, short_length=64, short_batch_rows=128
    )
    assert [config.rows_at(step, False, 64) for step in (0, 5, 10, 99)] == [8, 36, 64, 64]
    assert [config.rows_at(step, True, 64) for step in (0, 5, 10)] == [8, 68, 128]
    assert config.is_short(0.49) and not config.is_short(0.5)
    assert ScheduleConfig(steps=100, warmup_steps=0).rows_at(0, False, 64) == 64
    with pytest.raises(ValueError, match="batch_warmup_steps"):
        ScheduleConfig(first_batch_rows=8)
