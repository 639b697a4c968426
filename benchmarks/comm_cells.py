"""The communication lab's cells: ranks started for them, their findings next to the predictions, and the tables."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from remask.benchmarks.machines import CABLE, Machines, what_is_missing
from remask.benchmarks.record import Table
from remask.launcher.communication import Sent, Weights, predict, weights_of
from remask.launcher.config import RunConfig
from remask.launcher.distributed import free_port
from remask.launcher.engine import read_ds_config
from remask.launcher.ranks import Place
from remask.model.config import Sharing

_SECONDS = 1800
_NO_WIRE = "; no bytes on the wire were counted, for that needs root, iproute2 and ranks that this command starts itself"
_ABOUT = {
    "gloo": "Counted with gloo, whose reduce-scatter (stage 3) sums everything everywhere: NCCL sends less there. Times are of all ranks "
    "on one machine's cores and say nothing of a cluster.",
    "nccl": "Counted with NCCL.",
}
_PORT = 29555  # in a namespace nobody else has ports


def configure(config: RunConfig, cell: dict[str, Any]) -> RunConfig:
    """The run's config with a cell's sharing, depth and ZeRO stage; `groups` shares everything within two halves."""
    groups = 2 if cell["sharing"] == "groups" else 1
    sharing: Sharing = "all" if cell["sharing"] == "groups" else cell["sharing"]
    model = replace(config.model, sharing=sharing, groups=groups, layers=cell.get("layers", config.model.layers))
    return replace(
        config,
        model=replace(model, dropout=0.0, attention_dropout=0.0),
        engine=replace(config.engine, zero_stage=cell["zero"]),
        data=replace(config.data, sentence_task="none"),
    )


def run_job(
    folder: Path, world: int, cells: list[dict[str, Any]], overlaps: list[dict[str, Any]], repeats: int, place: Place | None = None, *,
    gbit: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The findings of rank 0. Without a launcher the ranks are started here, each on a machine of its own where that is possible."""
    out = folder / "found.json"
    job = {"config": str(folder / "config.yaml"), "cells": cells, "overlaps": overlaps, "repeats": repeats, "out": str(out)}
    if place is not None and place.world_size > 1:
        from remask.benchmarks import comm_ranks

        return comm_ranks.run(job, place)
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    with ExitStack() as stack:
        machines = None if what_is_missing() else stack.enter_context(Machines(world))
        if machines and gbit is not None:
            machines.limit(gbit)
        _run_ranks(world, folder, machines)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def _run_ranks(world: int, folder: Path, machines: Machines | None) -> None:
    where = {"MASTER_ADDR": machines.addresses[0], "MASTER_PORT": str(_PORT), "GLOO_SOCKET_IFNAME": CABLE} if machines else {}
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **where, "WORLD_SIZE": str(world)}
    command = [sys.executable, "-W", "ignore", "-m", "remask.benchmarks.comm_ranks", str(folder / "job.json")]
    with ExitStack() as stack:
        said = [stack.enter_context((folder / f"rank-{rank}.log").open("w+")) for rank in range(world)]
        ranks = [
            subprocess.Popen(
                machines.command(rank, command) if machines else command,
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=said[rank], stderr=subprocess.STDOUT,
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            end = time.monotonic() + _SECONDS
            while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks) and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            for rank in ranks:
                rank.terminate()
                rank.wait()
        if failed := [number for number, rank in enumerate(ranks) if rank.returncode]:
            said[failed[0]].seek(0)
            raise RuntimeError(f"rank {failed[0]} of {world} failed: {said[failed[0]].read()[-3000:]}")


def complete(config: RunConfig, world: int, found: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells as the record has them, with the predictions."""
    return [_cell(configure(config, cell), world, cell, found) for cell in found["cells"]]


def _cell(config: RunConfig, world: int, cell: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    weights, collectives = weights_of(config), found["collectives"]
    sent = predict(config, weights, world, cell["accumulation"])
    wire, calls = sent.wire(world, found["backend"]), sum(sent.calls.values())
    step_s, alone_s = statistics.median(cell["steps_s"]), statistics.median(cell["alone_s"])
    exposed = calls * collectives["call_s"] + wire * collectives["wire_byte_s"]
    return {
        **{name: cell[name] for name in ("sharing", "zero", "accumulation", "micro_batch", "length", "layers")},
        "world": world,
        "backend": found["backend"],
        "parameters": weights.total,
        "payload_bytes": sum(cell["payload"].values()),
        "predicted_payload_bytes": sum(sent.payload.values()),
        "payload_by_collective": cell["payload"],
        "predicted_payload_by_collective": dict(sent.payload),
        "wire_bytes": cell["wire_bytes"],
        "alone_wire_bytes": cell["alone_wire_bytes"],
        "predicted_wire_bytes": round(wire),
        "predicted_nccl_wire_bytes": round(sent.wire(world, "nccl")),
        "calls": sum(cell["calls"].values()),
        "predicted_calls": calls,
        "calls_by_collective": cell["calls"],
        "step_s": step_s,
        "step_s_spread": [min(cell["steps_s"]), max(cell["steps_s"])],
        "predicted_step_s": alone_s + exposed,
        "exposed_s": step_s - alone_s,
        "predicted_exposed_s": exposed,
        "gathered_if_at_every_use": _gathered_at_every_use(config, weights, sent, world)
        if cell["sharing"] == "all" and cell["zero"] == 3
        else None,
    }


def _gathered_at_every_use(config: RunConfig, weights: Weights, sent: Sent, world: int) -> int:
    """Payload of a step's all-gathers if the shared matrices came for the forward and for the backward pass of every layer."""
    threshold = read_ds_config(config.engine)["zero_optimization"]["stage3_param_persistence_threshold"]
    of_layers = sum(-(-n // world) for n in weights.sizes[1:] if n > threshold) * (4 if config.engine.precision == "fp32" else 2)
    return sent.payload["all_gather"] + (2 * config.model.layers - 1) * of_layers


def tables_of(cells: list[dict[str, Any]]) -> list[Table]:
    depth = next(cell["layers"] for cell in cells)
    swept = [cell for cell in cells if cell["layers"] == depth]
    deep = [cell for cell in cells if cell["zero"] == 3 and cell["sharing"] == "all" and cell["accumulation"] == 1]
    return [_swept_table(swept), _depth_table(deep)]


def _swept_table(cells: list[dict[str, Any]]) -> Table:
    return Table(
        title="What one rank sends in a step: counted / predicted",
        columns=("sharing", "zero", "world", "acc.", "rows", "payload MB", "wire MB", "calls", "step ms (lowest to highest)", "exposed ms"),
        rows=[
            (
                cell["sharing"],
                *(str(cell[name]) for name in ("zero", "world", "accumulation", "micro_batch")),
                _both(cell["payload_bytes"], cell["predicted_payload_bytes"], 1e6, 3),
                _both(cell["wire_bytes"], cell["predicted_wire_bytes"], 1e6, 3),
                _both(cell["calls"], cell["predicted_calls"], 1, 0),
                _both(cell["step_s"], cell["predicted_step_s"], 1e-3, 0) + " ({:.0f} to {:.0f})".format(*_ms(cell["step_s_spread"])),
                _both(cell["exposed_s"], cell["predicted_exposed_s"], 1e-3, 0),
            )
            for cell in cells
        ],
        note=(
            f"{_exact(cells)} {_ABOUT[cells[0]['backend']]} Predicted times rest on two timed all-reduces; an exposed time that is less "
            "than the spread of its step means nothing."
        ),
    )


def _exact(cells: list[dict[str, Any]]) -> str:
    exact = sum(cell["payload_bytes"] == cell["predicted_payload_bytes"] for cell in cells)
    ratios = [cell["wire_bytes"] / cell["predicted_wire_bytes"] for cell in cells if cell["wire_bytes"] is not None]
    wire = f"; wire bytes are {min(ratios):.3f} to {max(ratios):.3f} of the prediction" if ratios else _NO_WIRE
    return f"Payload equals the prediction to the byte in {exact} of {len(cells)} cells{wire}."


def _depth_table(cells: list[dict[str, Any]]) -> Table:
    return Table(
        title="ZeRO-3 with everything shared: what a step gathers, by depth",
        columns=("layers", "world", "rows", "all_gather MB", "calls", "if gathered at every use, MB"),
        rows=[
            (
                str(cell["layers"]),
                str(cell["world"]),
                str(cell["micro_batch"]),
                f"{cell['payload_by_collective']['all_gather'] / 1e6:.3f}",
                str(cell["calls_by_collective"]["all_gather"]),
                f"{cell['gathered_if_at_every_use'] / 1e6:.3f}",
            )
            for cell in sorted(cells, key=lambda cell: (cell["world"], cell["layers"]))
        ],
        note="Gathered once a micro-batch, not once a use (forward and backward pass of every layer), by ds_configs/zero3.json as shipped.",
    )


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1e3 * one for one in seconds]


def _both(counted: float | None, predicted: float, unit: float, digits: int) -> str:
    return f"{'-' if counted is None else f'{counted / unit:.{digits}f}'} / {predicted / unit:.{digits}f}"
