"""Checkpoints of a run: written aside by all ranks, synced, hashed, and made visible by one rename; read by any number of ranks.

Beside what `model_folder.py` writes a checkpoint has

state.json                    where the run stood, its whole config, the shards it read, and what wrote it
optimizer-00000.safetensors   moments of weights, a file a rank: `exp_avg/NAME/BEGIN` for a part of a flattened weight

Nothing in it is pickled, and nothing depends on the number of ranks or the ZeRO stage that wrote it.
"""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.data_prep.files import hash_of
from remask.launcher.checkpoint import CheckpointConfig
from remask.launcher.errors import UserError
from remask.launcher.model_folder import CHECKPOINTS, StoredModel, write_model_files
from remask.launcher.sealed import SEAL, check_seal, seal, sync
from remask.launcher.training.peers import Peers
from remask.launcher.training.state import RunState

if TYPE_CHECKING:
    from torch import Tensor

    from remask.launcher.training.engine import Engine

log = logging.getLogger(__name__)

_FORMAT = 1
_STATE = "state.json"
_NEEDED = (_STATE, "model.json", "model.safetensors", "tokenizer.json")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One that was found whole."""

    folder: Path
    state: RunState
    config: dict[str, Any]
    """Of the run that wrote it, as plain values."""
    data: dict[str, str]
    """Hashes of the shard sets' manifests, by how they are used."""
    micro_batch_tokens: int


class Store:
    """The checkpoints of one run. `save`, `choose` and `load_into` must be called by every rank."""

    def __init__(self, run: Path, config: CheckpointConfig, peers: Peers) -> None:
        self.folder, self.config, self.peers = run / CHECKPOINTS, config, peers
        self.rank = peers.place.rank

    def newest(self) -> list[Path]:
        """Those that can be seen, the newest first."""
        return _checkpoints_in(self.folder)

    def save(self, engine: "Engine", state: RunState, about: dict[str, Any], model: "Callable[[dict[str, Tensor]], StoredModel]") -> str:
        """What went wrong, on every rank alike; nothing if the checkpoint stands. `model` is made of the whole weights, on rank 0."""
        folder = self.folder / f"step-{state.step:08d}"
        partial = self.folder / f".{folder.name}.partial"
        if self.peers.tell(self.rank == 0 and folder.exists()):
            return ""
        if error := self.peers.tell(self._attempt(lambda: _make_empty(partial)) if self.rank == 0 else ""):
            return str(error)
        name = f"optimizer-{self.rank:05d}.safetensors"
        digests: dict[str, str] = {}
        error = self._attempt(lambda: digests.update({name: _write_moments(partial / name, engine, self.peers)}))
        weights = engine.whole_weights()
        outcomes = self.peers.collect((error, digests))
        if errors := [error for error, _ in outcomes if error]:
            self.remove_leftovers()
            return str(errors[0])
        known = {name: digest for _, digests in outcomes for name, digest in digests.items()}

        def finish() -> None:
            write_model_files(partial, model(weights))
            (partial / _STATE).write_text(json.dumps({"format": _FORMAT, "state": state.to_json(), **about}, indent=1), encoding="utf-8")
            seal(partial, known)
            for path in [*partial.iterdir(), partial]:
                sync(path)
            partial.rename(folder)
            sync(self.folder)

        error = str(self.peers.tell(self._attempt(finish) if self.rank == 0 else ""))
        if error:
            self.remove_leftovers()
        elif self.rank == 0 and (problem := self._attempt(lambda: self._remove_old(state.step))):
            log.warning("an old checkpoint could not be removed (%s)", problem)
        return str(error)

    def choose(self, fits: Callable[[Checkpoint], str]) -> Checkpoint | None:
        """The newest whole checkpoint of this run, on every rank alike, or None if there is none at all; `fits` says what is foreign.

        Newer ones that are damaged or foreign are named and set aside. UserError if none is whole: then nothing is changed.
        """
        chosen, refused = self.peers.tell(self._search(fits) if self.rank == 0 else None)
        if chosen is None and refused:
            raise UserError(
                f"{next(iter(refused.values()))}; no whole checkpoint is left in {self.folder}; give another --out to begin anew"
            )
        if self.rank == 0:
            for folder, why in refused.items():
                log.warning("%s; it is set aside as %s, and an older one is used", why, _set_aside(folder).name)
        return None if chosen is None else read_checkpoint(chosen, checked=True)

    def _search(self, fits: Callable[[Checkpoint], str]) -> tuple[Path | None, dict[Path, str]]:
        """The newest that is whole and fits, and what is wrong with the newer ones."""
        refused: dict[Path, str] = {}
        for folder in self.newest():
            try:
                if why := fits(read_checkpoint(folder)):
                    raise UserError(f"{folder}: is of another run ({why})")
                return folder, refused
            except UserError as error:
                refused[folder] = str(error)
        return None, refused

    def load_into(self, engine: "Engine", checkpoint: Checkpoint) -> None:
        """Weights, moments and loss scale as they were."""
        from safetensors.torch import load_file

        engine.set_weights(load_file(checkpoint.folder / "model.safetensors"))
        engine.optimizer.steps = checkpoint.state.optimizer_steps
        engine.set_loss_scaler(checkpoint.state.loss_scaler)
        engine.optimizer.forget()
        if engine.optimizer.steps:
            _read_moments(checkpoint.folder, engine)

    def remove_leftovers(self) -> None:
        """What a killed or failed save or removal has left."""
        if self.rank == 0:
            for leftover in [*self.folder.glob(".step-*.partial"), *self.folder.glob(".step-*.removed")]:
                shutil.rmtree(leftover, ignore_errors=True)

    def _attempt(self, work: Callable[[], None]) -> str:
        """A disk that is full on one rank is told to all, instead of leaving them waiting."""
        try:
            work()
        except (OSError, UserError) as error:
            return f"rank {self.rank}: {error}"
        return ""

    def _remove_old(self, newest: int) -> None:
        """All but the last ones and those that are kept for ever; a name goes first, so that nothing half removed is ever seen."""
        every = self.config.keep_every_steps
        for folder in self.newest()[self.config.keep_last :]:
            step = _step_of(folder)
            if step < newest and not (every and step % every == 0):
                removed = folder.rename(folder.with_name(f".{folder.name}.removed"))
                shutil.rmtree(removed, ignore_errors=True)


def read_checkpoint(folder: Path, checked: bool = False) -> Checkpoint:
    """What a checkpoint says of itself, after every digest in it was checked; UserError if one differs."""
    if not checked:
        check_seal(folder, _NEEDED)
    try:
        told = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        if told["format"] != _FORMAT:
            raise UserError(f"{folder}: written in format {told['format']}, this remask reads {_FORMAT}; use the one that wrote it")
        return Checkpoint(
            folder=folder,
            state=RunState.from_json(told["state"]),
            config=dict(told["config"]),
            data=dict(told["data"]),
            micro_batch_tokens=int(told["micro_batch_tokens"]),
        )
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{folder}: not a checkpoint that remask train wrote ({type(error).__name__}: {error})") from error


def weights_digest(folder: Path) -> str:
    """Of a whole checkpoint's weights: equal for equal weights."""
    return str(json.loads((folder / SEAL).read_text(encoding="utf-8"))["model.safetensors"])


def _checkpoints_in(folder: Path) -> list[Path]:
    """The newest first; copies under other names are their makers' own."""
    return sorted((entry for entry in folder.glob("step-*") if entry.name.removeprefix("step-").isdecimal()), key=_step_of, reverse=True)


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _make_empty(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def newest_whole(run: Path) -> Checkpoint:
    """Of another run, whose damaged ones are named and left alone; or the checkpoint itself. UserError if there is none."""
    folders = _checkpoints_in(run / CHECKPOINTS)
    if not run.is_dir():
        raise UserError(f"--resume {run}: no such folder; give auto, never, a run's folder or one of its checkpoints")
    for folder in folders[:-1]:
        try:
            return read_checkpoint(folder)
        except UserError as error:
            log.warning("%s; an older one is used", error)
    return read_checkpoint(folders[-1] if folders else run)


def _set_aside(folder: Path) -> Path:
    """Under a name that is no checkpoint's; nothing is removed that a person may still want to look at."""
    for number in range(1000):
        aside = folder.with_name(f"damaged-{folder.name}" + (f".{number}" if number else ""))
        if not aside.exists():
            return folder.rename(aside)
    raise UserError(f"{folder}: cannot be set aside; remove the damaged-* folders beside it")


def _write_moments(file: Path, engine: "Engine", peers: Peers) -> str:
    """The file's digest. Where every rank has all of them, each writes its share."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    mine: dict[str, Tensor] = {}
    for number, (segment, moments) in enumerate(engine.optimizer.moments()):
        if engine.stage > 0 or number % peers.place.world_size == peers.place.rank:
            mine |= {f"{kind}/{segment.name}/{segment.begin}": moment.detach().cpu() for kind, moment in moments.items()}
    try:
        save_file({name: moment.clone() for name, moment in mine.items()}, file)
    except SafetensorError as error:  # its form of an OSError
        raise UserError(f"{file}: cannot be written ({error})") from error
    sync(file)
    return hash_of(file)


def _read_moments(folder: Path, engine: "Engine") -> None:
    """Each segment from the parts that it overlaps, whoever wrote them."""
    from contextlib import ExitStack

    import torch
    from safetensors import safe_open

    with ExitStack() as files:
        parts: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        for path in sorted(folder.glob("optimizer-*.safetensors")):
            file = files.enter_context(safe_open(path, framework="pt"))
            for key in file.keys():  # noqa: SIM118 (no mapping)
                kind, name, begin = key.split("/")
                parts.setdefault((kind, name), []).append((int(begin), file.get_slice(key)))
        for segment, moments in list(engine.optimizer.moments()):
            for kind, moment in moments.items():
                filled = 0
                for begin, part in parts.get((kind, segment.name), []):
                    low, high = max(segment.begin, begin), min(segment.end, begin + part.get_shape()[0])
                    if low < high:
                        moment[low - segment.begin : high - segment.begin] = part[low - begin : high - begin].to(moment.device)
                        filled += high - low
                if filled != len(segment.values):
                    raise UserError(f"{folder}: {segment.name}: {filled} of {len(segment.values)} values of {kind} are in it")
            engine.optimizer.restore(segment, {kind: torch.clone(moment) for kind, moment in moments.items()})
