"""The communication model against figures worked out by hand; tests/benchmarks/test_comm.py holds it against real steps."""

from dataclasses import replace

import pytest

from remask.launcher.communication import Link, Sent, Weights, exposed_seconds, predict, weights_of, when_ready
from remask.launcher.config import RunConfig, load

WEIGHTS = Weights(groups=((200_001, 5), (7,)), frozen=(3, 400_000))


def config_at(stage: int, optimizer: str = "adamw") -> RunConfig:
    return load("albert-tiny", {"engine": {"zero_stage": stage, "precision": "fp32"}, "optimizer": {"name": optimizer}})


def test_stage_0_sends_the_gradient_once_a_step() -> None:
    sent = predict(config_at(0), WEIGHTS, world=3, accumulation=4)
    assert sent.payload == {"all_reduce": 4 * 200_013 + 4} and sent.calls == {"all_reduce": 2}


@pytest.mark.parametrize(("stage", "times"), [(1, 1), (2, 4)])
def test_stages_1_and_2_gather_padded_groups(stage: int, times: int) -> None:
    sent = predict(config_at(stage), WEIGHTS, world=3, accumulation=4)
    gathered = 4 * 200_010 // 3 + 4 * 12 // 3  # rounded up to multiples of 2 x 3
    assert sent.payload == {"all_reduce": times * 4 * 200_013 + 8, "all_gather": gathered}
    assert sent.calls == {"all_reduce": times + 2, "all_gather": 2}


def test_stage_3_gathers_large_weights_every_micro_batch_and_small_ones_once() -> None:
    sent = predict(config_at(3), WEIGHTS, world=3, accumulation=4)
    assert sent.payload == {
        "all_reduce": 16,
        "reduce_scatter": 4 * 4 * (200_001 + 6 + 9),
        "all_gather": 4 * 4 * 200_001 // 3 + 4 * (2 + 3 + 1),
    }
    assert sent.calls == {"all_reduce": 2, "reduce_scatter": 4, "all_gather": 4 + 3}


def test_lamb_sums_two_norms_of_every_weight_where_weights_are_cut() -> None:
    extra = {stage: predict(config_at(stage, "lamb"), WEIGHTS, 2, 1).payload["all_reduce"] for stage in (0, 1)}
    plain = {stage: predict(config_at(stage), WEIGHTS, 2, 1).payload["all_reduce"] for stage in (0, 1)}
    assert extra[0] == plain[0] and extra[1] == plain[1] + 8 * 3


def test_wire_bytes_follow_from_the_ring() -> None:
    sent = Sent()
    for collective, amount in (("all_reduce", 400), ("all_gather", 100), ("reduce_scatter", 400)):
        sent.add(collective, 1, amount)
    assert sent.wire(4, "nccl") == 2 * 300 + 3 * 100 + 300
    assert sent.wire(4, "gloo") == 2 * 300 + 3 * 100 + 600


def test_a_shared_weight_counts_once_whatever_the_depth() -> None:
    config = load("albert-base")
    deeper = replace(config, model=replace(config.model, layers=48))
    unshared = replace(config, model=replace(config.model, sharing="none"))
    assert weights_of(config) == weights_of(deeper) and weights_of(unshared).total > 7 * weights_of(config).total


def test_an_unshared_layer_is_ready_in_its_turn_and_a_shared_one_at_the_end() -> None:
    model = load("albert-base").model
    shared, unshared = (when_ready(replace(model, sharing=sharing), head_share=0.1) for sharing in ("all", "none"))
    for parts, sharing in ((shared, "all"), (unshared, "none")):
        assert sum(size for _, size in parts) == replace(model, sharing=sharing).unique_parameters
    assert [round(share, 4) for share, _ in shared] == [round(1 - 0.9 / 24, 4), 1.0, 1.0]
    assert len(unshared) == 25 and unshared[0][0] == pytest.approx(0.1 + 0.9 / 24)


def test_what_is_sent_early_is_hidden_and_what_is_ready_late_is_not() -> None:
    assert exposed_seconds([(1.0, 30)], 10.0, 10) == pytest.approx(3)
    assert exposed_seconds([(0.2, 30), (1.0, 5)], 10.0, 10) == pytest.approx(0.5)
    assert exposed_seconds([(0.9, 30), (1.0, 5)], 10.0, 10) == pytest.approx(2.5)
    assert Link(name="slow", gbit=8, latency_us=100).seconds(2e9, calls=3, world=4) == pytest.approx(2 + 3 * 4 * 1e-4)
