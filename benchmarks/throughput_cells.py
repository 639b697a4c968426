"""One cell of the throughput sweep: its contestants started rank by rank, told in turn to make steps, and what came of it."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

from remask.benchmarks.throughput_figures import Step, compare, summarise
from remask.benchmarks.throughput_team import Team
from remask.launcher import distributed
from remask.launcher.config import RunConfig, dump
from remask.launcher.errors import UserError
from remask.launcher.ranks import Place

Peer = Literal["hf_deepspeed", "hf_trainer"]

_TEXT_MB = 4


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long is measured."""

    steps: int
    """Of a round, timed."""
    warm_up: int
    """Steps before the first round."""
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One place of the sweep."""

    world: int
    preset: str
    config: RunConfig
    peers: tuple[Peer, ...] = ()


def run_cell(cell: Cell, timing: Timing, place: Place, meetings: Iterator[tuple[str, int]]) -> dict[str, Any]:
    """Figures of a cell, where its rank 0 is; elsewhere nothing."""
    reasons = {peer: why_not(peer, cell.config) for peer in cell.peers}
    names = ["remask", *(peer for peer, reason in reasons.items() if not reason)]
    places = [replace(place, world_size=cell.world)]
    if place.world_size == 1:
        places = [Place(rank=rank, world_size=cell.world, local_rank=rank) for rank in range(cell.world)]
    rounds: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        (file := Path(folder) / "config.yaml").write_text(dump(cell.config), encoding="utf-8")
        teams = {}
        for name in names:  # one after the other: what starts would slow those that measure the CPU
            team = stack.enter_context(Team(name, file, places, next(meetings)))
            try:
                rounds[name] = [team.ask(timing.warm_up)]
            except RuntimeError as error:
                if name == "remask":
                    raise
                reasons[cast("Peer", name)] = str(error).strip().splitlines()[-1]
            else:
                teams[name] = team
        for _ in range(timing.rounds):
            for name, team in list(teams.items()):
                try:
                    rounds[name].append(team.ask(1 + timing.steps))
                except RuntimeError as error:
                    if name == "remask":
                        raise
                    reasons[cast("Peer", name)] = str(error).strip().splitlines()[-1]
                    del teams[name], rounds[name]
    return _figures(cell, timing, rounds, reasons) if rounds["remask"][0] else {}


def _figures(cell: Cell, timing: Timing, rounds: dict[str, list[dict[str, Any]]], reasons: dict[Peer, str]) -> dict[str, Any]:
    config, found = cell.config, {}
    peak_flops = max(told[0]["peak_flops"] for told in rounds.values())  # of a CPU each has measured it, one perhaps while it was busy
    for name, told in rounds.items():
        steps = [[Step(**step) for step in one["steps"][1:]] for one in told[1:]]
        found[name] = summarise(steps, cell.world, peak_flops) | {"peak_bytes": told[-1]["peak_bytes"]}
    about = rounds["remask"][0]
    return {
        "world": cell.world,
        "zero_stage": config.engine.zero_stage,
        "micro_batch_tokens": config.engine.micro_batch_tokens,
        "batch_rows": config.data.batch_rows,
        "sequence_length": config.data.pack.sequence_length,
        "preset": cell.preset,
        "precision": config.engine.precision,
        "parameters": config.model.unique_parameters,
        "device": about["device"],
        "machines": about["hosts"],
        "rounds": timing.rounds,
        "warm_up_steps": timing.warm_up,
        "remask": found["remask"],
        "peers": [
            {"name": peer, "reason": reason, **(found[peer] | {"ratio": compare(found["remask"], found[peer])} if not reason else {})}
            for peer, reason in reasons.items()
        ],
    }


def why_not(peer: Peer, config: RunConfig) -> str:
    """Why a peer cannot run here, or nothing."""
    from remask.model.huggingface import choose_form

    if peer == "hf_trainer" and not find_spec("accelerate"):
        return "accelerate is not installed (pip install 'remask[peers]')"
    try:
        choose_form(config.model, config.data.sentence_task != "none", {"pad": 1, "cls": 0, "sep": 2})
    except ValueError as error:
        return str(error)
    return ""


def make_shards(config: RunConfig, data: Path, folder: Path) -> Path:
    """A few MB of English, with a byte-level BPE of the model's size."""
    from remask.benchmarks.prep import english_text, first_documents
    from remask.benchmarks.prep_contestants import documents_of
    from remask.data_prep.corpus import Source
    from remask.data_prep.prep import PrepConfig, prepare
    from remask.data_prep.tokenizer import train
    from remask.data_prep.workers import local_workers

    text = first_documents(english_text(data, folder), _TEXT_MB * 10**6, folder / "first.jsonl")
    vocabulary = train(documents_of(text), "bpe", config.model.vocab_size, lowercase=False)
    (folder / "tokenizer.json").write_text(vocabulary.text, encoding="utf-8")
    sources = (Source(name="text", paths=(str(text),)),)
    with local_workers(1) as workers:
        prepare(
            PrepConfig(sources=sources, tokenizer=folder / "tokenizer.json", pack=config.data.pack),
            folder / "shards",
            workers,
            lambda *_: None,
        )
    return folder / "shards"


def meetings_of(place: Place) -> Iterator[tuple[str, int]]:
    """Where the ranks of one contestant after the other meet; as ranks of a job, at ports that all of them can reckon."""
    while place.world_size == 1:
        yield "127.0.0.1", distributed.free_port()
    distributed.meet(place)
    port = int(os.environ["MASTER_PORT"])
    while True:
        port += 1
        if place.rank == 0:
            try:
                with socket.create_server(("", port)):
                    pass
            except OSError as error:
                raise UserError(f"port {port}: cannot be used ({error.strerror}); set MASTER_PORT below some free ones") from error
        yield os.environ["MASTER_ADDR"], port
