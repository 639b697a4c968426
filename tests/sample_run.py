"""Folders of runs that nobody trained: what a run leaves, with figures that are known."""

import json
import math
from pathlib import Path
from typing import Any

from remask.launcher.config import dump, load
from remask.launcher.training.records import json_number

RANKS = 2
STARTED = 1772366400.0
"""2026-03-01T12:00:00+0000"""
BYTES = {"all_reduce": 3_000_000, "all_gather": 1_500_000}


def training_record(step: int, **changed: Any) -> dict[str, Any]:
    """Of ten steps of 32 rows with 100 tokens each."""
    masked = 3.0 + 6.0 * math.exp(-step / 100)
    record = {
        "step": step, "kind": "training", "steps": 10, "position": 32 * (step - 10), "rows": 320, "loss": masked + 0.5,
        "losses": {"masked_tokens": masked, "sentence": 0.5}, "lr": 1e-4 * step, "gradient_norm": 1.25, "tokens": 3200 * step,
        "tokens_per_s": 8000.0 + step, "mfu": 0.4, "data_wait": 0.01, "seconds": 4.0, "done": step / 100, "seconds_left": 9.0,
        "bytes_per_step": BYTES, "tflops": 0.125, "time": STARTED + 0.4 * step,
    }  # fmt: skip
    return record | changed


def evaluation_record(step: int, loss: float) -> dict[str, Any]:
    return {
        "step": step, "kind": "evaluation", "validation/masked_tokens": loss, "validation/perplexity": math.exp(loss),
        "time": STARTED + 0.4 * step, "filled": {"A [MASK] day.": [["good", 0.25], ["<b>bad</b>", 0.125]]},
    }  # fmt: skip


def write_run(
    folder: Path,
    records: list[dict[str, Any]] | None = None,
    *,
    overrides: dict[str, Any] | None = None,
    ranks: tuple[int, ...] = (RANKS,),
    ended: bool = True,
) -> Path:
    """With one start for each number of ranks; without `records` a hundred steps, two evaluations and rows' digests."""
    (folder / "metrics").mkdir(parents=True)
    if records is None:
        records = [evaluation_record(0, 9.0), *(training_record(step) for step in range(10, 101, 10)), evaluation_record(100, 5.0)]
        records.insert(1, {"step": 1, "kind": "rows", "digests": {"0": "ab"}})
    (folder / "config.yaml").write_text(dump(load("albert-tiny", {"data": {"sets": ["no-shards"]}, **(overrides or {})})))
    lines = [json.dumps({name: json_number(value) for name, value in record.items()}) + "\n" for record in records]
    (folder / "metrics" / "rank-00000.jsonl").write_text("".join(lines))
    start = {"time": "2026-03-01T12:00:00+0000", "command": ["remask", "train", "--out", "a b"], "versions": {"torch": "2.13.0"}}
    starts = [{**start, "ranks": number, "hosts": ["node1"], "devices": ["CPU, 1 threads"]} for number in ranks]
    (folder / "environment.json").write_text(json.dumps(starts))
    if ended:
        end_run(folder)
    return folder


def end_run(folder: Path, how: str = "finished") -> None:
    (folder / "end.json").write_text(json.dumps({"end": how, "why": "the budget is used up", "step": 100, "tokens": 320000}))


def write_incident(folder: Path, step: int) -> None:
    (folder / "incidents").mkdir(exist_ok=True)
    record = {
        "why": "the loss is not finite", "policy": "skip", "step": step, "position": 320, "losses": {"masked_tokens": "nan"},
        "gradient_norm": "inf", "batch_rows": 32, "rows": [{"loss": "nan", "position": 321, "text": "guilty <i>words</i> | here"}],
    }  # fmt: skip
    (folder / "incidents" / f"step-{step:08d}-row-320.json").write_text(json.dumps(record))


def communication_benchmark() -> dict[str, Any]:
    """What remask bench comm writes, in small."""
    cell = {"zero": 0, "world": 2, "accumulation": 1, "micro_batch": 4, "calls": 3, "step_s": 0.3, "exposed_s": 0.1}
    sizes = {"none": (5_000_000, 5_100_000), "all": (3_000_000, 3_060_000)}
    cells = [
        {**cell, "sharing": name, "payload_bytes": size, "predicted_payload_bytes": size, "wire_bytes": wire, "predicted_wire_bytes": size}
        for name, (size, wire) in sizes.items()
    ]
    speeds = {10: (1.02, 1.03), 0.1: (1.7, 1.75), None: (0.98, 1.0)}
    links: list[dict[str, Any]] = [{"link_gbit": 10, "sharing": "none", "step_s": 1.0, "speedup": 1.0, "predicted_speedup": 1.0}]
    links += [
        {"link_gbit": gbit, "sharing": "all", "step_s": 1.0, "speedup": found, "predicted_speedup": expected}
        for gbit, (found, expected) in speeds.items()
    ]
    return {
        "benchmark": "comm", "command": "remask bench comm --json comm.json", "time": "2026-03-01T12:00:00+0000", "seconds": 75.0,
        "commit": "0123456789ab", "versions": {"torch": "2.13.0"}, "hardware": {"cpu": "a CPU", "cores": 2, "gpus": []},
        "cells": cells, "links": links, "breakeven_gbit": 4.2,
        "tables": [
            {"title": "Bytes of a step", "columns": ["sharing", "ratio"], "rows": [["all", "1.02 (1.01 to 1.03)"]], "note": "Of one rank."},
            {"title": "No link was tried.", "columns": [], "rows": []},
        ],
    }  # fmt: skip
