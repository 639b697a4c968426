"""Where a run begins: at nothing, at its own newest whole checkpoint, or at another run's; two runs are never mixed up."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remask.launcher.config import RunConfig, load
from remask.launcher.errors import UserError
from remask.launcher.training import run_folder
from remask.launcher.training.peers import Peers
from remask.launcher.training.store import Checkpoint, Store, newest_whole

log = logging.getLogger(__name__)


def find_start(config: RunConfig, out: Path, resume: str, store: Store, peers: Peers, data: dict[str, str]) -> Checkpoint | None:
    """The checkpoint to go on from, if any, on every rank alike; UserError if what is asked for would mix up two runs."""
    store.remove_leftovers()
    problem = peers.tell(_refuse_mixture(config, out, resume, store, data) if peers.place.rank == 0 else "")
    if problem:
        raise UserError(problem)
    ours = run_folder.plain(config)

    def fits(checkpoint: Checkpoint) -> str:
        if checkpoint.data != data:
            return "its shards were others"
        return "; ".join(run_folder.differences(ours, checkpoint.config))

    if resume not in ("auto", "never"):
        if not peers.tell(bool(store.newest())):
            return _branch(Path(resume), config, ours, fits)
        log.info("%s: has checkpoints of its own and goes on from them; %s was where it began", out, resume)
    return store.choose(fits) if resume != "never" else None


def _refuse_mixture(config: RunConfig, out: Path, resume: str, store: Store, data: dict[str, str]) -> str:
    if not store.newest():
        return ""
    if resume == "never":
        return f"--resume never: {out} holds a run with checkpoints; give another --out, or --resume auto to go on with it"
    if resume != "auto" and Path(resume).resolve().is_relative_to(out.resolve()):
        return f"--resume {resume}: lies in this run itself, which goes on from its newest; give another --out to go back to it there"
    try:
        theirs = run_folder.plain(load(str(out / "config.yaml")))
    except UserError as error:
        return f"{out}: holds checkpoints, but its config cannot be compared ({error}); give another --out"
    if changed := run_folder.differences(run_folder.plain(config), theirs):
        return (
            f"{out}: its run was started with another config ({changed[0]}); give the same options, "
            f"or another --out, with --resume {out} to begin from its weights"
        )
    if run_folder.read_data(out) != data:
        return f"{out}: its run was started with other shards than {', '.join(config.data.sets)}; give the same --data, or another --out"
    return ""


def _branch(source: Path, config: RunConfig, ours: dict[str, Any], fits: Callable[[Checkpoint], str]) -> Checkpoint:
    """Another run's checkpoint as the beginning of this one: the newest whole one of a run, or the one that is named."""
    checkpoint = newest_whole(source)
    for section, key in (("model", None), ("data", "sentence_task")):
        theirs, mine = checkpoint.config[section], ours[section]
        if (theirs != mine) if key is None else (theirs[key] != mine[key]):
            name = section if key is None else f"{section}.{key}"
            raise UserError(f"--resume {source}: its {name} is another one than this run's; give the same --preset and options")
    if why := fits(checkpoint):
        log.warning("%s: begins this run, though %s", checkpoint.folder, why)
    state, schedule = checkpoint.state, config.schedule
    if checkpoint.config["schedule"] != ours["schedule"]:  # the share of another budget; warm-up and steps since took alike of this one
        done = schedule.done_at(state.step, state.tokens, state.seconds)
        state.done_when_warm = done * schedule.warmup_steps / state.step if state.step >= max(schedule.warmup_steps, 1) else None
    return checkpoint
