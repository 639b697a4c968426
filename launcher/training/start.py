"""A run from its command to its end: the parts put together, resumed where it can be, and what is said when it ends."""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.data_prep.data import DataConfig
from remask.data_prep.errors import InputError
from remask.data_prep.files import locked
from remask.data_prep.loader import Loader, open_loader
from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.tokenizer import load as load_tokenizer
from remask.launcher import distributed, logs
from remask.launcher.config import RunConfig, load
from remask.launcher.errors import UserError
from remask.launcher.ranks import Place
from remask.launcher.training import run_folder
from remask.launcher.training.signals import ending_by_signals, noticing_signals
from remask.launcher.training.state import RunState
from remask.launcher.training.store import Checkpoint, Store, newest_whole, weights_digest

if TYPE_CHECKING:
    from remask.launcher.training.peers import Peers

log = logging.getLogger(__name__)

FAILED_EXIT, LOST_PEER_EXIT, INTERRUPTED_EXIT = 1, 3, 130
# How gloo and NCCL say that another rank is gone or silent.
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset",
    "Timed out",
    "timed out",
    "Broken pipe",
    "Connection refused",
    "ncclRemoteError",
)


def run(config: RunConfig, out: Path, resume: str, place: Place) -> int:
    """One rank's part; the exit code."""
    from remask.launcher.training.trainer import TrainingError

    with ExitStack() as stack:
        try:
            return _run(config, out, resume, place, stack)
        except TrainingError as error:
            if place.rank == 0:  # all ranks know it
                log.error("%s", error)
            return FAILED_EXIT
        except RuntimeError as error:
            if not any(sign in str(error) for sign in _LOST_PEER):
                raise
            log.error("rank %d: another rank is gone (%s); start the same command: it resumes", place.rank, str(error).splitlines()[0])
            logging.shutdown()
            os._exit(LOST_PEER_EXIT)  # a group with a dead member cannot be left in order


def _run(config: RunConfig, out: Path, resume: str, place: Place, stack: ExitStack) -> int:
    import torch

    from remask.launcher.build import build_model
    from remask.launcher.device import describe_device, keep_freed_memory
    from remask.launcher.training import memory
    from remask.launcher.training.engine import Engine
    from remask.launcher.training.evaluation import HeldOut
    from remask.launcher.training.heartbeat import Heartbeat
    from remask.launcher.training.peers import Peers
    from remask.launcher.training.records import Records
    from remask.launcher.training.telling import Window
    from remask.launcher.training.traffic import watch_collectives
    from remask.launcher.training.trainer import Trainer

    device = torch.device("cuda", place.local_rank) if torch.cuda.is_available() else torch.device("cpu")
    memory.check_precision(config, device.type)
    if (devices := torch.cuda.device_count()) > 1 and place.world_size == 1:
        log.warning("%d GPUs are here and one is used; torchrun --nproc-per-node %d -m remask.launcher.train … uses all", devices, devices)
    loaders, vocabulary = open_loaders(config, place)
    data = run_folder.hash_data(config.data)
    keep_freed_memory()
    distributed.meet(place)
    traffic = watch_collectives()
    # The heartbeat is to speak first: it knows which rank is silent.
    with ending_by_signals():
        distributed.start(place, seconds=1.5 * config.engine.timeout_seconds + 10)
    stop = stack.enter_context(noticing_signals())
    stack.callback(torch.distributed.destroy_process_group)
    peers = Peers(place, traffic)
    if problem := peers.tell(_take(out, stack) if place.rank == 0 else ""):
        raise UserError(problem)
    hosts = [str(host) for host in peers.collect(run_folder.host_name())]
    ranks_here = hosts.count(run_folder.host_name())
    if device.type == "cpu":
        torch.set_num_threads(config.engine.cpu_threads or _share_of_cores(ranks_here))

    store = Store(out, config.checkpoint, peers)
    checkpoint = _find_start(config, out, resume, store, peers, data)
    state = checkpoint.state if checkpoint else RunState(short=config.schedule.is_short(0.0))
    task = config.data.sentence_task != "none"
    model = build_model(config.model, config.engine, sentence_task=task, seed=config.seed)
    tokens = config.engine.micro_batch_tokens or (checkpoint.micro_batch_tokens if checkpoint else None)
    if tokens is None:
        tokens = memory.find_micro_batch(config, model, peers, device, ranks_here)
    engine = Engine(config, model, place)
    if checkpoint:
        store.load_into(engine, checkpoint)
        log.info("resumed at step %d from %s, micro-batches of %d tokens", state.step, checkpoint.folder, tokens)
        if (before := checkpoint.config["engine"]["precision"]) != config.engine.precision:
            log.warning("its steps so far were made in %s, the next ones are in %s", before, config.engine.precision)
    if place.rank == 0:
        run_folder.write_start(out, config, engine.ds_config, hosts)
    records = Records(out, place, tensorboard=config.metrics.tensorboard, resumed_step=state.step if checkpoint else None)
    stack.callback(records.close)
    trainer = Trainer(
        config=config,
        run=out,
        peers=peers,
        engine=engine,
        store=store,
        records=records,
        loaders=loaders,
        held_out=HeldOut(config.data, config.masking, config.metrics.evaluate_rows, peers),
        vocabulary=vocabulary,
        data=data,
        micro_batch_tokens=tokens,
        state=state,
        stop=stop,
        window=Window(place=place, device=describe_device(), traffic=traffic),
    )
    heartbeat = Heartbeat(out / "beats", place, traffic, lambda: trainer.state.step, config.engine.timeout_seconds)
    stack.callback(heartbeat.stop)
    heartbeat.start()
    end = trainer.train()
    if place.rank == 0:
        run_folder.write_end(out, {**end, "weights": weights_digest(store.newest()[0])})
        log.info("%s at step %d (%s); the run is in %s", end["end"], end["step"], end["why"], out)
    peers.tell(None)  # nobody leaves before the end is written down
    return INTERRUPTED_EXIT if end["interrupted"] else 0


def _take(out: Path, stack: ExitStack) -> str:
    """Be the only run in the folder; what stands against it."""
    try:
        stack.enter_context(locked(out))
        logs.also_to(out / "train.log")
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"{out}: cannot be written ({error.strerror}); choose another folder with --out"
    return ""


def _share_of_cores(ranks_here: int) -> int:
    """The same whoever starts the ranks, for the order of sums depends on it; torchrun alone would set 1."""
    if given := os.environ.get("SLURM_CPUS_PER_TASK", ""):
        return int(given)
    return max(1, len(os.sched_getaffinity(0)) // ranks_here)


def open_loaders(config: RunConfig, place: Place) -> tuple[dict[bool, Loader], Vocabulary]:
    """The loader of each phase by whether its rows are short, and the shards' vocabulary; all that can be checked is."""
    schedule, data = config.schedule, config.data
    total = sum(schedule.rows_at(step, False, data.batch_rows) for step in range(schedule.steps)) if config.masking.final_rate else None

    def opened(chosen: DataConfig) -> Loader:
        return open_loader(chosen, config.masking, config.seed, rank=place.rank, world=place.world_size, total_rows=total)

    loaders: dict[bool, Loader] = {False: opened(data)}
    if schedule.short_fraction:
        pack = replace(data.pack, sequence_length=schedule.short_length)
        rows = schedule.short_batch_rows or data.batch_rows
        loaders[True] = opened(replace(data, sets=data.short_sets, pack=pack, batch_rows=rows))
    for loader in loaders.values():
        manifest = loader.sets[0].manifest
        if manifest.vocab_size > config.model.vocab_size:
            raise UserError(
                f"model.vocab_size: {config.model.vocab_size} was given, the tokenizer of {loader.sets[0].folder} has "
                f"{manifest.vocab_size} entries; give --model.vocab-size {manifest.vocab_size}"
            )
        if manifest.tokenizer_hash != loaders[False].sets[0].manifest.tokenizer_hash:
            raise UserError(f"data.short_sets: {loader.sets[0].folder} was made with another tokenizer than data.sets; prepare it again")
    return loaders, load_tokenizer(loaders[False].sets[0].folder)


def _find_start(config: RunConfig, out: Path, resume: str, store: Store, peers: "Peers", data: dict[str, str]) -> Checkpoint | None:
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

    if resume not in ("auto", "never") and not peers.tell(bool(store.newest())):
        return _branch(Path(resume), ours, fits)
    return store.choose(fits) if resume != "never" else None


def _refuse_mixture(config: RunConfig, out: Path, resume: str, store: Store, data: dict[str, str]) -> str:
    if not store.newest():
        return ""
    if resume == "never":
        return f"--resume never: {out} holds a run with checkpoints; give another --out, or --resume auto to go on with it"
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


def _branch(source: Path, ours: dict[str, Any], fits: Callable[[Checkpoint], str]) -> Checkpoint:
    """Another run's checkpoint as the beginning of this one: the newest whole one of a run, or the one that is named."""
    checkpoint = newest_whole(source)
    for section, key in (("model", None), ("data", "sentence_task")):
        theirs, mine = checkpoint.config[section], ours[section]
        if (theirs != mine) if key is None else (theirs[key] != mine[key]):
            name = section if key is None else f"{section}.{key}"
            raise UserError(f"--resume {source}: its {name} is another one than this run's; give the same --preset and options")
    if why := fits(checkpoint):
        log.warning("%s: begins this run, though %s", checkpoint.folder, why)
    return checkpoint
