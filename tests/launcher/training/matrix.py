"""Run by every rank: our engine against a plain torch loop over many combinations, in one process group; rank 0 prints what differs.

python matrix.py '{"worlds": …}' with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set
"""

import json
import os
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from remask.launcher import distributed, ranks
from remask.launcher.build import build_model
from remask.launcher.config import RunConfig, load
from remask.launcher.optimizer import parameter_groups
from remask.launcher.training.engine import Engine
from remask.model.optimizers import Lamb

STEPS, ROWS, VOCABULARY = 20, 8, 600
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
SMALL = {"hidden": 64, "layers": 2, "heads": 2, "ffn": 128}


def batch_of(step: int) -> list[dict[str, Tensor]]:
    """Rows of different lengths with targets and labels, each a micro-batch of its own."""
    draw = torch.Generator().manual_seed(step)
    rows = []
    for _ in range(ROWS):
        length = int(torch.randint(6, 24, (), generator=draw))
        positions = torch.randperm(length, generator=draw)[: 1 + length // 6].sort().values
        rows.append(
            {
                "ids": torch.randint(0, VOCABULARY, (length,), generator=draw),
                "positions": positions,
                "targets": torch.randint(0, 4, (len(positions),), generator=draw),  # few, so that 20 steps learn something
                "labels": torch.randint(-1, 2, (1,), generator=draw),
            }
        )
    return rows


def join(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    lengths = torch.tensor([0, *(len(row["ids"]) for row in rows)])
    offsets = lengths.cumsum(0)
    joined = {name: torch.cat([row[name] for row in rows]) for name in ("ids", "targets", "labels")}
    joined["positions"] = torch.cat([row["positions"] + start for row, start in zip(rows, offsets, strict=False)])
    return {**joined, "offsets": offsets.to(torch.int32)}


def total(losses: dict[str, Any], counts: dict[str, int]) -> Tensor:
    return sum((part.sum / counts[name] for name, part in losses.items()), torch.zeros(()))


def counts_of(rows: list[dict[str, Tensor]]) -> dict[str, int]:
    return {"masked_tokens": sum(len(row["targets"]) for row in rows), "sentence": sum(int(row["labels"] >= 0) for row in rows)}


def rate_at(step: int) -> float:
    return min(1.0, (step + 1) / 5)


def train_plainly(config: RunConfig) -> tuple[list[float], dict[str, Tensor]]:
    """Whole batches, torch's optimizers, no DeepSpeed, no recomputation."""
    model = build_model(config.model, replace(config.engine, activation_checkpointing=0.0), sentence_task=True, seed=7).train()
    groups = parameter_groups(model.named_parameters(), config.optimizer)
    options = {name: getattr(config.optimizer, name) for name in ("lr", "betas", "eps", "weight_decay")}
    optimizer = (torch.optim.AdamW if config.optimizer.name == "adamw" else Lamb)(groups, **options)
    peaks = [group["lr"] for group in optimizer.param_groups]
    losses = []
    for step in range(STEPS):
        rows = batch_of(step)
        loss = total(model(**join(rows)), counts_of(rows))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_norm or float("inf"))
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * rate_at(step)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: weight.detach().clone() for name, weight in model.named_parameters()}


def train_by_engine(config: RunConfig, accumulation: int, place: ranks.Place) -> tuple[list[float], dict[str, Tensor]]:
    model = build_model(config.model, config.engine, sentence_task=True, seed=7).train()
    engine = Engine(config, model, place)
    losses = []
    for step in range(STEPS):
        rows = batch_of(step)
        counts = counts_of(rows)
        mine = rows[place.rank :: place.world_size]
        size = max(1, len(mine) // accumulation)
        pieces = [mine[first : first + size] for first in range(0, len(mine), size)]
        seen = torch.zeros(())
        for number, piece in enumerate(pieces, start=1):
            loss = total(engine.losses(join(piece)), counts)
            engine.backward(loss * place.world_size, last=number == len(pieces))
            seen += loss.detach()
        torch.distributed.all_reduce(seen)
        assert engine.step(rate_at(step), lambda _: True).applied
        losses.append(seen.item())
    return losses, engine.whole_weights()


def cell_config(asked: dict[str, Any], preset: str, sharing: str, stage: int, checkpointing: float, optimizer: str) -> RunConfig:
    shape = {} if asked.get("own_shape") else SMALL
    offload, ds_config = asked.get("offload", False), asked.get("ds_configs", {}).get(str(stage))
    overrides: dict[str, Any] = {
        "model": {"vocab_size": VOCABULARY, "sharing": sharing} | shape | NO_DROPOUT,
        "optimizer": {"name": optimizer, "lr": 1e-3 if optimizer == "adamw" else 5e-3, "clip_norm": 1.0},
        "engine": {"zero_stage": stage, "activation_checkpointing": checkpointing, "offload": offload, "ds_config": ds_config},
        "data": {"batch_rows": ROWS},
    }
    return load(preset, overrides)


def main() -> None:
    asked = json.loads(sys.argv[1])
    place = ranks.place_of(os.environ)
    torch.set_num_threads(1)
    distributed.start(place, seconds=120)
    plain: dict[Any, Any] = {}
    for preset, optimizer, sharing, stage, accumulation, checkpointing in product(
        asked["presets"], asked["optimizers"], asked["sharings"], asked["stages"], asked["accumulations"], asked["checkpointings"]
    ):
        config = cell_config(asked, preset, sharing, stage, checkpointing, optimizer)
        if (preset, optimizer, sharing) not in plain:
            plain[preset, optimizer, sharing] = train_plainly(config)
        losses, weights = plain[preset, optimizer, sharing]
        our_losses, our_weights = train_by_engine(config, accumulation, place)
        if place.rank == 0:
            assert set(our_weights) == set(weights) and len(losses) == STEPS and losses[-1] < losses[0]
            found = {
                "cell": [preset, optimizer, sharing, stage, accumulation, checkpointing],
                "losses": max(abs(a - b) for a, b in zip(losses, our_losses, strict=True)),
                "weights": max(float((weights[name] - our_weights[name]).abs().max()) for name in weights),
                "moved": losses[0] - losses[-1],
            }
            sys.stdout.write(f"CELL {json.dumps(found)}\n")


if __name__ == "__main__":
    main()
