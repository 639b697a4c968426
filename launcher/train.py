"""`remask train`: pretraining, the same under torchrun, deepspeed, srun, mpirun and alone."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from remask.launcher import ranks
from remask.launcher.config import RunConfig, dump
from remask.launcher.engine import fill_ds_config
from remask.launcher.errors import UserError
from remask.launcher.options import parse_with_config
from remask.launcher.ranks import Place


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Train an encoder on shards that remask prep has made.

    Runs alone or as one of many ranks, whoever starts them; a run that was interrupted, by a signal, a crash or a time limit, goes on
    exactly where its newest whole checkpoint stands when the same command is started again, also with another number of ranks.
    SIGTERM and SIGUSR1 end it after the step with a checkpoint and exit code 0.

    Examples:
      remask train --preset albert-base --data shards --out run
      torchrun --nproc-per-node 8 -m remask.launcher.train --preset albert-base --data shards --out run
      deepspeed --module remask.launcher.train --preset albert-base --data shards --out run
      srun python -m remask.launcher.train --preset albert-base --data shards --out run
    """

    out: Path
    """The run's folder: config, metrics, checkpoints, incidents."""
    data: tuple[Path, ...] = ()
    """Folders that remask prep has made; short for data.sets."""
    preset: str = "albert-base"
    """Preset or YAML file, see remask presets; a run's own config.yaml works, too."""
    resume: str = "auto"
    """auto goes on from the run's newest whole checkpoint, never refuses to; a path starts a new run folder from that checkpoint."""
    micro_batch: str | None = None
    """Tokens a device takes at once, or auto to find what fits; short for engine.micro_batch_tokens."""
    dry_run: bool = False
    """Only print the resolved config, the DeepSpeed JSON, the environment and the memory that a rank needs."""
    local_rank: Annotated[int | None, tyro.conf.arg(aliases=["--local_rank"])] = None
    """Given by the deepspeed launcher; not needed otherwise."""


def main(args: Sequence[str]) -> int:
    """train an encoder on prepared shards, exactly resumable"""
    options, config = parse_with_config(TrainOptions, args, "train", preset=TrainOptions.preset)
    config = _with_shorthands(options, config)
    check_sets(config, "train")
    ranks.refuse_half_a_place(os.environ)
    place = ranks.place_of(os.environ)
    if options.dry_run:
        if place.rank == 0:
            _show_plan(config, place)
        return 0
    fill_ds_config(config.engine, batch_rows=config.data.batch_rows, clip_norm=config.optimizer.clip_norm, world=place.world_size)
    from remask.launcher.training.start import run

    code = run(config, options.out, options.resume, place)
    if place.rank == 0 and code == 0:
        print(f"the run is in {options.out}")
    return code


def _with_shorthands(options: TrainOptions, config: RunConfig) -> RunConfig:
    if options.data:
        try:
            config = replace(config, data=replace(config.data, sets=tuple(str(folder) for folder in options.data)))
        except ValueError as error:
            raise UserError(f"remask train: --data: {error}") from error
    if options.micro_batch is not None:
        if options.micro_batch != "auto" and not (options.micro_batch.isdecimal() and int(options.micro_batch)):
            raise UserError(f"remask train: --micro-batch: {options.micro_batch!r} was given, it must be auto or a number of tokens")
        tokens = None if options.micro_batch == "auto" else int(options.micro_batch)
        config = replace(config, engine=replace(config.engine, micro_batch_tokens=tokens))
    return config


def check_sets(config: RunConfig, verb: str) -> None:
    """A run's config must name its shards."""
    if not config.data.sets:
        raise UserError(f"remask {verb}: --data: missing; give the folder that remask prep has made")
    if config.schedule.short_fraction and not config.data.short_sets:
        raise UserError(
            f"data.short_sets: missing, schedule.short_fraction is {config.schedule.short_fraction}; prepare the corpus also with "
            f"--pack.sequence-length {config.schedule.short_length} and name that folder, or give --schedule.short-fraction 0"
        )


def _show_plan(config: RunConfig, place: Place) -> None:
    import torch

    from remask.launcher.communication import weights_of
    from remask.launcher.training.memory import check_precision, estimate_memory
    from remask.launcher.training.run_folder import describe_environment, hash_data, host_name
    from remask.launcher.training.start import open_loaders

    world = place.world_size
    check_precision(config, "cuda" if torch.cuda.is_available() else "cpu")
    open_loaders(config, place)
    parameters = weights_of(config).total
    memory = estimate_memory(config, parameters, world)
    print("# config.yaml")
    print(dump(config).rstrip())
    filled = fill_ds_config(config.engine, batch_rows=config.data.batch_rows, clip_norm=config.optimizer.clip_norm, world=world)
    files = {"ds_config.json": filled, "environment.json": describe_environment([host_name()]), "data.json": hash_data(config.data)}
    for name, value in files.items():
        print(f"\n# {name}\n{json.dumps(value, indent=2)}")
    row = config.data.pack.sequence_length
    print(f"\n# memory of one of {world} ranks")
    for name in ("weights", "gradients", "master", "moments"):
        print(f"{name:<12} {getattr(memory, name) / 1e9:10.3f} GB")
    print(f"{'sum':<12} {memory.states / 1e9:10.3f} GB")
    print(f"{'activations':<12} {memory.activations_per_token * row / 1e9:10.3f} GB at most for each row of {row} tokens in a micro-batch")
    print(f"{parameters:,} trained parameters, {config.schedule.steps:,} steps of {config.data.batch_rows:,} rows")


if __name__ == "__main__":  # torchrun -m, deepspeed --module, srun python -m
    from remask.launcher import cli

    sys.exit(cli.main(["train", *sys.argv[1:]]))
