"""A run from its command to its end: the parts put together, resumed where it can be, and what is said when it ends."""

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from remask.data_prep.data import DataConfig
from remask.data_prep.errors import InputError
from remask.data_prep.files import locked
from remask.data_prep.loader import Loader, open_loader
from remask.data_prep.manifest import NAME as MANIFEST
from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.tokenizer import load as load_tokenizer
from remask.launcher import distributed, logs
from remask.launcher.config import RunConfig
from remask.launcher.errors import UserError
from remask.launcher.model_folder import CHECKPOINTS
from remask.launcher.ranks import Place
from remask.launcher.training import preflight, run_folder
from remask.launcher.training.resume import find_start
from remask.launcher.training.signals import StopRequest, ending_by_signals, noticing_signals
from remask.launcher.training.state import RunState
from remask.launcher.training.store import Store, weights_digest

if TYPE_CHECKING:
    import torch

    from remask.launcher.training.heartbeat import Heartbeat
    from remask.launcher.training.peers import Peers
    from remask.launcher.training.traffic import Traffic
    from remask.launcher.training.trainer import Trainer

log = logging.getLogger(__name__)

_Opened = tuple[dict[bool, Loader], Vocabulary]

FAILED_EXIT, LOST_PEER_EXIT, INTERRUPTED_EXIT = 1, 3, 130
_MOST_NAMED = 4
_FOLDERS = ("beats", CHECKPOINTS, "incidents", "metrics", "tensorboard")
_LEAST_MEETING_SECONDS = 300.0  # machines may be slow to start, however short the timeout of their steps
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


@dataclass(frozen=True, kw_only=True)
class _Group:
    """All ranks of the run, once they have met."""

    peers: "Peers"
    traffic: "Traffic"
    hosts: list[str]
    """Of every rank."""
    device: "torch.device"
    """Of this one."""
    stop: StopRequest

    @property
    def ranks_here(self) -> int:
        return self.hosts.count(self.hosts[self.peers.place.rank])

    @property
    def others(self) -> str:
        mine = self.peers.place.rank
        named = [f"rank {rank} on {host}" for rank, host in enumerate(self.hosts) if rank != mine]
        return ", ".join(named[:_MOST_NAMED]) + (f" or one of {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else "")


def run(config: RunConfig, out: Path, resume: str, place: Place) -> int:
    """One rank's part; the exit code."""
    from remask.launcher.training.trainer import TrainingError

    group: _Group | None = None
    with ExitStack() as stack:
        try:
            opened = _try_to_open(config, place)  # before anybody waits for anybody
            group = _meet(config, place, stack)
            loaders, vocabulary = _agree_on_shards(group, opened)
            if problem := group.peers.tell(_take(out, stack) if place.rank == 0 else ""):
                raise UserError(problem)
            preflight.check_shared(out, group.peers, group.hosts)
            alive = _show_life(config, out, group, stack)
            preflight.check(config, out, group.peers, loaders, group.hosts, group.device)
            trainer = _assemble(config, out, resume, group, loaders, vocabulary, stack)
            alive.step = lambda: trainer.state.step
            return _train(trainer, group, out)
        except TrainingError as error:
            if place.rank == 0:  # all ranks know it
                log.error("%s", error)
            return FAILED_EXIT
        except RuntimeError as error:
            if not any(sign in str(error) for sign in _LOST_PEER):
                raise
            why = str(error).splitlines()[0]
            if group is None:
                where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
                log.error("rank %d: the %d ranks did not meet at %s (%s); were all started?", place.rank, place.world_size, where, why)
            else:
                log.error("rank %d: %s is gone (%s); start the same command: it resumes", place.rank, group.others, why)
            logging.shutdown()
            os._exit(LOST_PEER_EXIT)  # a group with a dead member cannot be left in order


def _agree_on_shards(group: _Group, opened: _Opened | InputError) -> _Opened:
    """What every rank has opened. If only one machine does not see the shards, all must hear of it, or they would wait for it."""
    told = group.peers.collect(str(opened) if isinstance(opened, InputError) else "")
    if isinstance(opened, InputError) or any(told):
        named = (one if told.count(one) == len(told) else f"{host}: {one}" for host, one in zip(group.hosts, told, strict=True) if one)
        raise UserError("; ".join(dict.fromkeys(named)))
    return opened


def _try_to_open(config: RunConfig, place: Place) -> _Opened | InputError:
    try:
        return open_loaders(config, place)
    except InputError as error:
        if place.world_size == 1:
            raise
        return error


def _meet(config: RunConfig, place: Place, stack: ExitStack) -> _Group:
    """Join the others; the group is left when the stack is closed."""
    import torch

    from remask.launcher.device import keep_freed_memory
    from remask.launcher.training.memory import check_precision
    from remask.launcher.training.peers import Peers
    from remask.launcher.training.traffic import watch_collectives

    device = distributed.device_of(place)
    check_precision(config, device.type)
    if (devices := torch.cuda.device_count()) > 1 and place.world_size == 1:
        log.warning("%d GPUs are here and one is used; torchrun --nproc-per-node %d -m remask.launcher.train … uses all", devices, devices)
    keep_freed_memory()
    distributed.meet(place)
    traffic = watch_collectives()
    with ending_by_signals():
        distributed.start(place, seconds=max(config.engine.timeout_seconds, _LEAST_MEETING_SECONDS))
    stop = stack.enter_context(noticing_signals())
    stack.callback(torch.distributed.destroy_process_group)
    peers = Peers(place, traffic)
    distributed.limit_waiting(config.engine.timeout_seconds)
    hosts = [str(host) for host in peers.collect(run_folder.host_name())]
    group = _Group(peers=peers, traffic=traffic, hosts=hosts, device=device, stop=stop)
    if device.type == "cpu":
        torch.set_num_threads(config.engine.cpu_threads or share_of_cores(group.ranks_here))
    return group


def _assemble(
    config: RunConfig, out: Path, resume: str, group: _Group, loaders: dict[bool, Loader], vocabulary: Vocabulary, stack: ExitStack
) -> "Trainer":
    """The run as it was left, or from nothing."""
    from remask.launcher.build import build_model
    from remask.launcher.device import describe_device
    from remask.launcher.training import memory
    from remask.launcher.training.engine import Engine
    from remask.launcher.training.evaluation import HeldOut
    from remask.launcher.training.records import Records
    from remask.launcher.training.telling import Window
    from remask.launcher.training.trainer import Trainer

    peers, data = group.peers, run_folder.hash_data(config.data)
    store = Store(out, config.checkpoint, peers)
    checkpoint = find_start(config, out, resume, store, peers, data)
    state = checkpoint.state if checkpoint else RunState(short=config.schedule.is_short(0.0))
    task = config.data.sentence_task != "none"
    model = build_model(config.model, config.engine, sentence_task=task, seed=config.seed)
    tokens = config.engine.micro_batch_tokens or (checkpoint.micro_batch_tokens if checkpoint else None)
    if tokens is None:
        tokens = memory.find_micro_batch(config, model, peers, group.device, group.ranks_here)
    engine = Engine(config, model, peers.place)
    distributed.limit_waiting(config.engine.timeout_seconds)  # DeepSpeed has made groups of its own
    if checkpoint:
        store.load_into(engine, checkpoint)
        log.info("resumed at step %d from %s, micro-batches of %d tokens", state.step, checkpoint.folder, tokens)
        if (before := checkpoint.config["engine"]["precision"]) != config.engine.precision:
            log.warning("its steps so far were made in %s, the next ones are in %s", before, config.engine.precision)
    if peers.place.rank == 0:
        run_folder.write_start(out, config, engine.ds_config, group.hosts)
    records = Records(out, peers.place, tensorboard=config.metrics.tensorboard, resumed_step=state.step if checkpoint else None)
    stack.callback(records.close)
    return Trainer(
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
        stop=group.stop,
        window=Window(place=peers.place, device=describe_device(), traffic=group.traffic),
    )


def _show_life(config: RunConfig, out: Path, group: _Group, stack: ExitStack) -> "Heartbeat":
    """From here to the end; the heartbeat speaks before a collective gives up, for it knows which rank is silent."""
    from remask.launcher.training.heartbeat import Heartbeat

    heartbeat = Heartbeat(out / "beats", group.peers.place, group.traffic, config.engine.timeout_seconds)
    stack.callback(heartbeat.stop)
    heartbeat.start()
    return heartbeat


def _train(trainer: "Trainer", group: _Group, out: Path) -> int:
    """To the end, and the end written down."""
    end = trainer.train()
    if group.peers.place.rank == 0:
        run_folder.write_end(out, {**end, "weights": weights_digest(trainer.store.newest()[0])})
        log.info("%s at step %d (%s); the run is in %s", end["end"], end["step"], end["why"], out)
    group.peers.tell(None)  # nobody leaves before the end is written down
    return INTERRUPTED_EXIT if end["interrupted"] else 0


def _take(out: Path, stack: ExitStack) -> str:
    """Be the only run in the folder; what stands against it."""
    if (out / MANIFEST).exists():
        return f"{out}: holds shards; choose another folder with --out"
    for name in _FOLDERS:
        if (out / name).exists() and not (out / name).is_dir():
            return f"{out / name}: a file is where a run keeps a folder; move it away, or choose another folder with --out"
    try:
        stack.enter_context(locked(out))
        logs.also_to(out / "train.log")
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"{out}: cannot be written ({error.strerror}); choose another folder with --out"
    return ""


def share_of_cores(ranks_here: int) -> int:
    """The same whoever starts the ranks, for the order of sums depends on it; torchrun alone would set 1."""
    if given := os.environ.get("SLURM_CPUS_PER_TASK", ""):
        return int(given)
    return max(1, len(os.sched_getaffinity(0)) // ranks_here)


def open_loaders(config: RunConfig, place: Place) -> _Opened:
    """The loader of each phase by whether its rows are short, and the shards' vocabulary; all that can be checked is."""
    schedule, data = config.schedule, config.data
    if config.masking.final_rate and (schedule.tokens or schedule.hours or schedule.short_fraction):
        raise UserError(
            "masking.final_rate: was given with schedule.tokens, hours or short_fraction; the rate follows the rows of a run that is "
            "reckoned in steps and has one phase; leave one of them out"
        )
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
