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
