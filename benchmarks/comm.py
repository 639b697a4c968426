"""The communication lab: what does parameter sharing save on the wire?

Real steps of our engine over every sharing mode, ZeRO stage, number of ranks, accumulation and micro-batch. Each cell has payload bytes
and calls as they are counted at the torch.distributed call, bytes as the kernel counts them on each machine's cable (network namespaces
play the machines; needs root), the time of a step, and the exposed time: a step less the same step with its collectives replaced by moves
inside the rank. Beside each stands what `launcher/communication.py` predicts. Steps with and without wires take turns, so that a busy
machine slows both alike. Two machines joined by a slow link then make the same steps with and without sharing.

    remask bench comm --json comm.json
    srun remask bench comm --preset albert-xlarge --json comm.json     # the ranks of a cluster, one cell after the other

Counted by gloo on CPUs: gloo's reduce-scatter sums everything everywhere, which NCCL's does not; its wire bytes do not speak for NCCL's at
stage 3, payload bytes do.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from remask.benchmarks import comm_links, comm_papers
from remask.benchmarks.comm_cells import complete, configure, run_job, tables_of
from remask.benchmarks.machines import what_is_missing
from remask.benchmarks.record import check_target, write_record
from remask.launcher.cli import guard
from remask.launcher.config import RunConfig, dump
from remask.launcher.errors import UserError
from remask.launcher.options import parse_with_config
from remask.launcher.ranks import place_of

Sharing = Literal["none", "attention", "ffn", "all", "groups"]
_DEPTHS = (4, 12, 24)


@dataclass(frozen=True, kw_only=True)
class CommOptions:
    """Measure what training sends, and what parameter sharing saves of it.

    Alone it starts the ranks itself, on machines made of network namespaces where it is root; started by srun, torchrun or mpirun it
    measures the ranks at hand.

    Examples:
      remask bench comm --json comm.json
      remask bench comm --quick
      srun remask bench comm --preset albert-large --zero 1 3 --json comm.json
    """

    preset: str = str(Path(__file__).with_name("comm.yaml"))
    """Preset or YAML file whose shape is measured; if not given, a small ALBERT that two cores can do."""
    sharing: tuple[Sharing, ...] = ("none", "attention", "ffn", "all", "groups")
    """Sharing modes; groups shares everything within each half of the layers."""
    zero: tuple[int, ...] = ()
    """ZeRO stages to go through; if not given, all that go with the precision."""
    world: tuple[int, ...] = (2, 4)
    """Numbers of ranks to go through; under a launcher, its own."""
    accumulation: tuple[int, ...] = (1, 2)
    """Micro-batches of a step to go through."""
    micro_batch: tuple[int, ...] = (1, 2)
    """Rows of a micro-batch to go through; no byte depends on them, the time does."""
    length: int = 32
    """Tokens of a row."""
    links: tuple[float, ...] = (0.1, 1.0, 10.0)
    """Gbit/s of the link between two machines to go through, besides the unlimited one; empty leaves them out."""
    repeats: int = 5
    """Steps of each kind in a cell; medians are told."""
    quick: bool = False
    """Two ranks, one micro-batch size, three repeats: some four minutes on two cores."""
    json: Path | None = None
    """Write the figures here."""


def main(args: Sequence[str]) -> int:
    options, config = parse_with_config(CommOptions, args, "bench comm", preset=CommOptions.preset)
    check_target("comm", options.json)
    _check(options, config)
    began, place = time.monotonic(), place_of(os.environ)
    worlds = (place.world_size,) if place.world_size > 1 else (2,) if options.quick else options.world
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(dump(config), encoding="utf-8")
        cells: list[dict[str, Any]] = []
        for world in worlds:
            cells += complete(config, world, run_job(folder, world, plan(options, config), [], _repeats(options), place))
        if place.rank:
            return 0
        links = _links(options, config, folder) if place.world_size == 1 else comm_links.Links(why_none="measured under a launcher")
    papers = comm_papers.paper_rows()
    tables = [*tables_of(cells), *links.tables, *comm_papers.tables(papers)]
    for table in tables:
        print(f"{table}\n")
    if options.json:
        figures = {"cells": cells, **links.figures, "papers": papers}
        write_record(options.json, "comm", args, began, tables, figures)
    return 0


def plan(options: CommOptions, config: RunConfig) -> list[dict[str, Any]]:
    """The cells of one number of ranks: the sweep, and ZeRO-3 with everything shared at several depths."""
    rows = options.micro_batch[:1] if options.quick else options.micro_batch
    stages = options.zero or ((0, 1, 2, 3) if config.engine.precision == "fp32" else (1, 2, 3))
    named = ("sharing", "zero", "accumulation", "micro_batch")
    swept = [
        dict(zip(named, cell, strict=True)) | {"length": options.length, "layers": config.model.layers}
        for cell in product(options.sharing, stages, options.accumulation, rows)
    ]
    deep = {"sharing": "all", "zero": 3, "accumulation": 1, "micro_batch": rows[0], "length": options.length}
    return swept + [{**deep, "layers": layers} for layers in _DEPTHS if {**deep, "layers": layers} not in swept]


def _links(options: CommOptions, config: RunConfig, folder: Path) -> "comm_links.Links":
    if not options.links:
        return comm_links.Links(why_none="--links is empty")
    if missing := what_is_missing():
        return comm_links.Links(why_none=f"{missing}; machines that play a network need root and iproute2")
    return comm_links.measure(config, folder, options.links, _repeats(options))


def _repeats(options: CommOptions) -> int:
    return min(3, options.repeats) if options.quick else options.repeats


def _check(options: CommOptions, config: RunConfig) -> None:
    for name, allowed in (("zero", range(4)), ("world", range(2, 65)), ("accumulation", range(1, 65)), ("micro_batch", range(1, 4097))):
        if wrong := [value for value in getattr(options, name) if value not in allowed]:
            flag = name.replace("_", "-")
            raise UserError(f"remask bench comm: --{flag}: {wrong[0]} was given, it must be from {allowed[0]} to {allowed[-1]}")
    for name in ("sharing", "world", "accumulation", "micro_batch"):
        if not getattr(options, name):
            raise UserError(f"remask bench comm: --{name.replace('_', '-')}: nothing was given; give one or more, or leave it out")
    if options.repeats < 1 or not 1 <= options.length <= config.model.positions:
        raise UserError(
            f"remask bench comm: --repeats {options.repeats} --length {options.length}: at least 1 repeat, and from 1 to "
            f"{config.model.positions} tokens, the model's positions"
        )
    for cell in plan(options, config):
        try:
            configure(config, cell)
        except ValueError as error:
            raise UserError(f"remask bench comm: sharing {cell['sharing']}, stage {cell['zero']}: {error}") from error
    if any(not 0.001 <= link <= 1000 for link in options.links):
        raise UserError(
            f"remask bench comm: --links: {' '.join(map(str, options.links))} was given, each must be from 0.001 to 1000 Gbit/s"
        )


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
