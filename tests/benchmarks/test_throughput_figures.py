"""What a throughput cell's steps add up to, and how cells of several records become one table."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.benchmarks.throughput import ThroughputOptions, cells_of, merge
from remask.benchmarks.throughput_cells import why_not
from remask.benchmarks.throughput_figures import FORMULA, PARTS, Step, compare, mfu, percentile, summarise, tables_of
from remask.launcher.config import load
from remask.launcher.errors import UserError
from remask.model.flops import count_flops


def steps(*seconds: float, tokens: int = 100, parts: bool = True) -> list[Step]:
    return [
        Step(seconds=s, tokens=tokens, padded_tokens=2 * tokens, flops=1000, parts={p: s / len(PARTS) for p in PARTS} if parts else {})
        for s in seconds
    ]


def cell(**changed: Any) -> dict[str, Any]:
    found = summarise([steps(1.0, 2.0)], world=2, peak_flops=1e3) | {"peak_bytes": 5_000_000}
    about = {"world": 2, "zero_stage": 1, "micro_batch_tokens": 64, "batch_rows": 4, "sequence_length": 32, "preset": "p"}
    more = {"precision": "fp32", "parameters": 10, "device": "CPU", "machines": 1, "rounds": 1, "warm_up_steps": 1}
    return {**about, **more, "remask": found, "peers": [], **changed}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share), abs=1e-6)


def test_mfu_is_the_formula_over_the_models_flops() -> None:
    model = load("roberta-tiny").model
    flops = count_flops(model, [128] * 16, 300).total
    tokens, forward = 128 * 16, 2 * 128 * 16 * model.layers * (4 * model.hidden**2 + 2 * model.hidden * model.ffn)
    assert flops > 3 * forward and tokens
    assert mfu(flops, 2.0, flops / 2) == pytest.approx(1.0) and mfu(flops, 4.0, flops) == pytest.approx(0.25)
    assert mfu(flops, 1.0, 0.0) == 0.0, "an unknown peak gives no MFU"


def test_figures_follow_from_the_steps() -> None:
    found = summarise([steps(1.0, 3.0), steps(2.0, 2.0)], world=4, peak_flops=500.0)
    assert (found["steps"], found["seconds"], found["tokens"], found["padded_tokens"]) == (4, 8.0, 400, 800)
    assert found["tokens_per_s"] == 50 and found["padded_tokens_per_s"] == 100 and found["tokens_per_s_a_device"] == 12.5
    assert found["mfu"] == pytest.approx(4000 / 8 / 500)
    assert found["tokens_per_s_of_rounds"] == [50, 50]
    assert found["step_seconds"] == {"median": 2.0, "p10": pytest.approx(1.3), "p90": pytest.approx(2.7)}
    assert sum(found["shares"].values()) == pytest.approx(1) and found["data_wait"] == pytest.approx(0.2)
    assert summarise([steps(1.0, parts=False)], world=1, peak_flops=1.0)["shares"] is None


def test_peers_are_compared_round_by_round() -> None:
    ours, theirs = (summarise(rounds, 1, 1.0) for rounds in ([steps(1.0), steps(2.0)], [steps(2.0), steps(8.0)]))
    assert compare(ours, theirs) == {"median": 3.0, "lowest": 2.0, "highest": 4.0}


def test_tables_hold_the_formula_and_say_why_a_peer_did_not_run() -> None:
    theirs = summarise([steps(2.0, 4.0, parts=False)], world=2, peak_flops=1e3) | {"peak_bytes": 1}
    ran = {"name": "hf_deepspeed", "reason": "", **theirs, "ratio": {"median": 2.0, "lowest": 1.5, "highest": 2.5}}
    ours, peers = tables_of([cell(peers=[ran, {"name": "hf_trainer", "reason": "accelerate is not installed"}])], "About.")
    assert FORMULA in ours.note and all(len(row) == len(ours.columns) for row in ours.rows)
    assert all(len(row) == len(peers.columns) for row in peers.rows)
    assert "2.00x (1.50 to 2.50)" in str(peers) and "not run: accelerate is not installed" in str(peers)
    assert len(tables_of([cell()], "")) == 1


def test_cells_of_several_files_become_one_sweep(tmp_path: Path) -> None:
    origin = {"benchmark": "throughput", "command": "c", "time": "t", "versions": {"torch": "1"}, "hardware": {"cpu": "x"}}
    for number, (world, commit) in enumerate([(4, "b"), (2, "a"), (1, "a")]):
        (tmp_path / f"{number}.json").write_text(json.dumps({**origin, "commit": commit, "cells": [cell(world=world)]}))
    cells, about = merge(sorted(tmp_path.glob("*.json")))
    assert [one["world"] for one in cells] == [1, 2, 4] and cells[0]["command"] == "c"
    assert about == {"commit": "b, a", "versions": {"torch": "1"}, "hardware": {"cpu": "x"}, "all_commit": ["b", "a"]}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"benchmark": "step", "cells": []}', '{"benchmark": "throughput"}'])
def test_other_files_are_not_merged(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"--merge: .*x.json: is no record that remask bench throughput has written"):
        merge([tmp_path / "x.json"])


def test_a_sweep_has_a_cell_for_each_combination_with_a_micro_batch_a_rank() -> None:
    options = ThroughputOptions(zero=(0, 3), world=(1, 4), micro_batch_tokens=(256, 1024))
    cells = cells_of(options, load("roberta-tiny"))
    assert len(cells) == 8
    assert {(one.world, one.config.engine.micro_batch_tokens, one.config.data.batch_rows) for one in cells} == {
        (1, 256, 2), (1, 1024, 8), (4, 256, 8), (4, 1024, 32),
    }  # fmt: skip
    assert [bool(one.peers) for one in cells] == [True, False] * 4, "peers run beside the first stage"
    assert all(one.peers for one in cells_of(replace(options, peers_at="every"), load("roberta-tiny")))
    stages = {one.config.engine.zero_stage for one in cells_of(ThroughputOptions(world=(1,)), load("roberta-base"))}
    assert stages == {1, 2, 3}, "bf16 does not go with stage 0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ThroughputOptions(world=(1,), micro_batch_tokens=(100,)), r"--micro-batch-tokens 100 --world 1: at least a row \(128 tokens\)"),
        (ThroughputOptions(world=(5,)), r"--world: 5 was given, it must divide data.lanes \(3072\)"),
    ],
)
def test_a_cell_that_cannot_be_run_is_refused(options: ThroughputOptions, said: str) -> None:
    with pytest.raises(UserError, match=said):
        cells_of(options, load("roberta-tiny"))


def test_a_model_that_hugging_face_does_not_have_is_told() -> None:
    config = load("roberta-tiny")
    assert "no class of Hugging Face has it" in why_not("hf_deepspeed", replace(config, model=replace(config.model, query_key_norm=True)))
    assert why_not("hf_deepspeed", config) == ""
