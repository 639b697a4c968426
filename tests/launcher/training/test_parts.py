"""The smaller parts of a run, each by itself."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from remask.launcher.communication import weights_of
from remask.launcher.config import load
from remask.launcher.device import Device
from remask.launcher.ranks import Place
from remask.launcher.training.memory import _bytes_kept, estimate_memory, measure_activations
from remask.launcher.training.records import Records
from remask.launcher.training.run_folder import differences, plain
from remask.launcher.training.state import RunState
from remask.launcher.training.step_batch import Agreed
from remask.launcher.training.telling import Window
from remask.launcher.training.traffic import Traffic
from remask.model.heads import PretrainingModel

DEVICE = Device(kind="cpu", name="a CPU", count=1, peak_flops=1e9, peak_precision="fp32", peak_source="made up")


def test_records_of_steps_that_are_made_again_are_removed(tmp_path: Path) -> None:
    for rank in (0, 5):
        file = tmp_path / "metrics" / f"rank-{rank:05d}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 9)) + '{"step": 9, "lo')
    records = Records(tmp_path, Place(rank=0, world_size=2), tensorboard=False, resumed_step=5)
    records.write({"step": 6, "gradient_norm": float("inf"), "losses": {"masked_tokens": float("nan")}})
    records.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "rank-00000.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[-1]["gradient_norm"] == "inf" and lines[-1]["losses"] == {"masked_tokens": "nan"}
    gone = (tmp_path / "metrics" / "rank-00005.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in gone] == [1, 2, 3, 4, 5], "a rank of an earlier start with more ranks"


def test_state_survives_json() -> None:
    state = RunState(step=7, position=99, losses=[1.5, 0.1 + 0.2], done_when_warm=0.1)
    state.since_last_line.losses["masked_tokens"] = 1 / 3
    assert RunState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_a_step_without_a_question_is_in_no_mean_of_the_sentence_task() -> None:
    window = Window(place=Place(rank=0, world_size=1), device=DEVICE, traffic=Traffic())
    state, schedule = RunState(), load("bert-tiny").schedule
    for step, losses in enumerate(({"masked_tokens": 4.0}, {"masked_tokens": 2.0, "sentence": 0.7}, {})):
        agreed = Agreed(
            counts={"masked_tokens": 9, "sentence": 3 * (step == 1)}, rows=8, tokens=99, pieces=1, seconds=1.0, signal=0, save=False
        )
        window.add(SimpleNamespace(flops=5), agreed, state, losses, 1.0, 1e-3)  # type: ignore[arg-type]
    record, sentence, scalars = window.close(schedule, state)
    assert record["losses"] == {"masked_tokens": 3.0, "sentence": 0.7} and record["loss"] == pytest.approx(3.7)
    assert (record["steps"], record["rows"], record["labelled_rows"]) == (3, 24, 3)
    assert "sentence 0.7000" in sentence and scalars["train/sentence"] == 0.7
    window.add(SimpleNamespace(flops=5), agreed, state, {"masked_tokens": 2.0}, 1.0, 1e-3)  # type: ignore[arg-type]
    assert window.close(schedule, state)[0]["losses"] == {"masked_tokens": 2.0}


def test_another_run_is_told_by_what_it_computes() -> None:
    ours = plain(load("albert-tiny"))
    assert differences(ours, plain(load("albert-tiny", {"engine": {"zero_stage": 2}, "data": {"sets": ["elsewhere"]}}))) == []
    assert differences(ours, plain(load("albert-tiny", {"seed": 2, "masking": {"rate": 0.2}}))) == [
        "seed: 1 here, 2 there",
        "masking.rate: 0.15 here, 0.2 there",
    ]


def test_payload_is_counted_where_it_is_given() -> None:
    traffic = Traffic()
    traffic.note("all_reduce", torch.zeros(10))
    traffic.note("reduce_scatter", [torch.zeros(4, dtype=torch.bfloat16)] * 2)
    with traffic.aside():
        traffic.note("broadcast", torch.zeros(100))
    assert traffic.payload_bytes == {"all_reduce": 40, "reduce_scatter": 16} and traffic.calls["all_reduce"] == 1
    assert traffic.last == "broadcast" and traffic.number == 3


@pytest.mark.parametrize("recomputed", [0.0, 1.0])
def test_activations_on_the_meta_device_bound_what_a_real_pass_keeps(recomputed: float) -> None:
    config = load("bert-tiny", {"engine": {"activation_checkpointing": recomputed}, "model": {"dropout": 0.0, "attention_dropout": 0.0}})
    model = PretrainingModel(config.model, sentence_task=False)
    model.encoder.recompute(recomputed)
    few, many = (_bytes_kept(model, rows, 128, 0.15, "cpu") for rows in (2, 4))
    real = (many - few) / 256
    estimated = measure_activations(config.model, config.engine, 128, 0.15)
    assert real > 1000 and real <= estimated <= 1.35 * real


def test_memory_shrinks_by_stage() -> None:
    def of(stage: int, precision: str = "bf16") -> list[int]:
        config = load("bert-base", {"engine": {"zero_stage": stage, "precision": precision}})
        memory = estimate_memory(config, 1000, world=4)
        return [memory.weights, memory.gradients, memory.master, memory.moments]

    assert of(1) == [2000, 2000, 1000, 2000]
    assert of(2) == [2000, 500, 1000, 2000]
    assert of(3) == [500, 500, 1000, 2000]
    assert of(0, "fp32") == [4000, 4000, 0, 8000]


def test_what_is_trained_is_counted_without_a_pooler_that_nothing_reads() -> None:
    assert weights_of(load("albert-base")).total == 11_813_810  # FACTS: 11.7 M without the heads
    roberta = load("roberta-tiny")
    model = PretrainingModel(roberta.model, sentence_task=False)
    unread = sum(weight.numel() for weight in model.encoder.pooler.parameters())
    assert weights_of(roberta).total == sum(weight.numel() for weight in model.parameters()) - unread
