"""Training throughput: tokens a second, MFU, memory and where a step's time goes, over ZeRO stages, micro-batches and numbers of ranks.

A cell of the sweep is the real path: shards through the loader and the masks into our engine under DeepSpeed, the trainer's step without
evaluations and saves. The first steps are dropped, and the first one of every round, for caches go cold while others have their turn.

    remask bench throughput --json throughput.json
    torchrun --nproc-per-node 8 -m remask.benchmarks.throughput --preset bert-large --shards shards --micro-batch-tokens 32768
    sbatch slurm/throughput.sbatch; remask bench throughput --merge cells/*.json --json throughput.json

Alone it starts the ranks of each cell on this machine; started as ranks by torchrun, srun or mpirun it is those, and a cell with fewer
ranks than there are uses the first ones. Every rank has one micro-batch a step, so more ranks make larger batches.

MFU = FLOPs of forward and backward pass over real tokens, all ranks / (seconds x the sum of all devices' peak FLOP/s). FLOPs are counted
by model/flops.py: three times the forward pass, attention by the rows' own lengths, scores at the targets only. The peak is a GPU's data
sheet's, or what this CPU's matrix product reached on the rank's threads just before. Memory is the most that one rank held: of the GPU
what torch had given out, of a CPU the whole process. Peers: Hugging Face's model under the same DeepSpeed, and Hugging Face's Trainer.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

from remask.benchmarks.record import check_target, write_record
from remask.benchmarks.throughput_cells import Cell, Peer, Timing, make_shards, meetings_of, run_cell
from remask.benchmarks.throughput_figures import tables_of
from remask.launcher.cli import guard
from remask.launcher.config import RunConfig
from remask.launcher.engine import ZeroStage
from remask.launcher.errors import UserError
from remask.launcher.options import parse_with_config
from remask.launcher.ranks import Place, place_of

_VERB = "bench throughput"


@dataclass(frozen=True, kw_only=True)
class ThroughputOptions:
    """Measure training throughput over ZeRO stages, micro-batches and numbers of ranks, next to Hugging Face's.

    Any part of the run's config can be given, such as --model.layers 24 or --engine.precision bf16.
    """

    preset: str = "roberta-tiny"
    """Preset or YAML file of the model, see remask presets."""
    shards: tuple[Path, ...] = ()
    """Folders that remask prep has made; without them a small set is made from the text of --data, on one machine only."""
    data: Path = Path("../shared/data")
    """Folder with en.jsonl.gz; without it the documentation of the installed packages is harvested."""
    zero: tuple[ZeroStage, ...] = ()
    """ZeRO stages; if not given, all that go with the precision."""
    world: tuple[int, ...] = ()
    """Numbers of ranks; if not given 1 and 2, or all that were started."""
    micro_batch_tokens: tuple[int, ...] = (2048,)
    """Tokens that a rank takes at once, at least a row."""
    steps: int = 10
    """Timed steps of a round."""
    warm_up: int = 3
    """Steps before the first round."""
    repeats: int = 3
    """Rounds; contestants take turns."""
    peers: tuple[Peer, ...] = ("hf_deepspeed", "hf_trainer")
    """Who runs beside us; nobody if --peers has no name behind it."""
    peers_at: Literal["first", "every"] = "first"
    """Beside the first stage of each number of ranks and micro-batch, or beside every cell."""
    cell: int | None = None
    """Only this cell of the sweep, counted from 1: a task of a job array."""
    merge: tuple[Path, ...] = ()
    """Measure nothing: put the cells of these JSON files together."""
    quick: bool = False
    """Stages 0 and 2 on 2 ranks, 2 rounds of 5 steps."""
    json: Path | None = None
    """Write the figures here."""


def cells_of(options: ThroughputOptions, config: RunConfig) -> list[Cell]:
    """The sweep in its order. UserError for what cannot be run."""
    allowed = (0, 1, 2, 3) if config.engine.precision == "fp32" else (1, 2, 3)
    stages, found = cast("tuple[ZeroStage, ...]", options.zero or allowed), []
    length = config.data.pack.sequence_length
    for world, tokens, (number, stage) in product(options.world, options.micro_batch_tokens, enumerate(stages)):
        if tokens < length or world < 1:
            raise UserError(
                f"remask {_VERB}: --micro-batch-tokens {tokens} --world {world}: at least a row ({length} tokens) and 1 rank are needed"
            )
        rows = world * (tokens // length)
        try:
            engine = replace(config.engine, zero_stage=stage, micro_batch_tokens=tokens)
            made = replace(config, engine=engine, data=replace(config.data, batch_rows=rows))
        except ValueError as error:
            raise UserError(f"remask {_VERB}: engine.{error}") from error
        if made.data.lanes % world:
            raise UserError(f"remask {_VERB}: --world: {world} was given, it must divide data.lanes ({made.data.lanes})")
        found.append(
            Cell(world=world, preset=options.preset, config=made, peers=options.peers if options.peers_at == "every" or number == 0 else ())
        )
    return found


def main(args: Sequence[str]) -> int:
    began = time.monotonic()
    options, config = parse_with_config(ThroughputOptions, args, _VERB, preset=ThroughputOptions.preset)
    check_target("throughput", options.json)
    if options.merge:
        return _tell(options, args, began, *merge(options.merge))
    place = place_of(os.environ)
    options = _completed(options, place)
    config = replace(config, schedule=replace(config.schedule, short_fraction=0.0), data=replace(config.data, short_sets=()))
    cells = cells_of(options, config)
    if options.cell is not None:
        if not 1 <= options.cell <= len(cells):
            raise UserError(f"remask {_VERB}: --cell: {options.cell} was given, the sweep has cells 1 to {len(cells)}")
        cells = cells[options.cell - 1 : options.cell]
    found = _run_all(cells, options, place)
    return _tell(options, args, began, found, {}) if place.rank == 0 else 0


def _run_all(cells: Sequence[Cell], options: ThroughputOptions, place: Place) -> list[dict[str, Any]]:
    timing = Timing(steps=options.steps, warm_up=options.warm_up, rounds=options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        shards = options.shards or (make_shards(cells[0].config, options.data, Path(folder)),)
        read = [replace(cell, config=_reading(cell.config, shards)) for cell in cells]
        meetings, found = meetings_of(place), []
        for number, cell in enumerate(read, start=1):
            if place.rank >= cell.world:  # the others' cell
                continue
            if place.rank == 0:
                print(f"cell {number} of {len(cells)}: {cell.world} ranks, stage {cell.config.engine.zero_stage}", file=sys.stderr)
            found.append(run_cell(cell, timing, place, meetings))
    return found


def _reading(config: RunConfig, shards: Sequence[Path]) -> RunConfig:
    """With these shards, after all checks that need no ranks: what is wrong is better said here than by each of them."""
    import torch

    from remask.launcher.training.memory import check_precision
    from remask.launcher.training.start import open_loaders

    config = replace(config, data=replace(config.data, sets=tuple(str(folder) for folder in shards)))
    check_precision(config, "cuda" if torch.cuda.is_available() else "cpu")
    open_loaders(config, Place())
    return config


def _completed(options: ThroughputOptions, place: Place) -> ThroughputOptions:
    """With the defaults that depend on where we are, and checked."""
    if options.quick:
        options = replace(options, steps=min(options.steps, 5), repeats=min(options.repeats, 2), warm_up=min(options.warm_up, 2))
        options = replace(options, zero=options.zero or (0, 2), world=options.world or (2,))
    for name in ("steps", "warm_up", "repeats"):
        if getattr(options, name) < 1:
            raise UserError(f"remask {_VERB}: --{name.replace('_', '-')}: {getattr(options, name)} was given, it must be at least 1")
    if place.world_size == 1:
        return replace(options, world=options.world or (1, 2))
    if not options.shards:
        raise UserError(
            f"remask {_VERB}: --shards: missing; {place.world_size} ranks were started, which read one set that all of them see"
        )
    if wrong := [world for world in options.world if world > place.world_size]:
        raise UserError(f"remask {_VERB}: --world: {wrong[0]} was given, {place.world_size} ranks were started")
    return replace(options, world=options.world or (place.world_size,))


def merge(files: Sequence[Path]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The cells of several records in the order of a sweep, and what they were measured on."""
    cells: list[dict[str, Any]] = []
    origins: dict[str, list[Any]] = {name: [] for name in ("commit", "versions", "hardware")}
    for file in files:
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            if record["benchmark"] != "throughput" or not record["cells"]:
                raise ValueError
            cells += [{"command": record["command"], "time": record["time"], **cell} for cell in record["cells"]]
            for name, values in origins.items():
                values += [record[name]] if record[name] not in values else []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"remask {_VERB}: --merge: {file}: is no record that remask {_VERB} has written") from error
    commits = {"commit": ", ".join(origins["commit"]), "versions": origins["versions"][0], "hardware": origins["hardware"][0]}
    differ = {f"all_{name}": values for name, values in origins.items() if len(values) > 1}
    return sorted(cells, key=lambda cell: (cell["preset"], cell["world"], cell["micro_batch_tokens"], cell["zero_stage"])), commits | differ


def _tell(options: ThroughputOptions, args: Sequence[str], began: float, cells: list[dict[str, Any]], figures: dict[str, Any]) -> int:
    first = cells[0]
    devices = ", ".join(sorted({cell["device"] for cell in cells}))
    about = (
        f"{', '.join(sorted({cell['preset'] for cell in cells}))} ({first['parameters']:,} parameters, rows of {first['sequence_length']}, "
        f"{first['precision']}), each rank on {devices}; {first['rounds']} rounds, {first['warm_up_steps']} steps of warm-up dropped."
    )
    tables = tables_of(cells, about + (" Quick: few stages and steps." if options.quick else ""))
    for table in tables:
        print(f"{table}\n")
    if options.json:
        write_record(options.json, "throughput", args, began, tables, {"cells": cells, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
