"""RunConfig, and where it comes from: presets, files that build on them, and overrides from the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from remask.data_prep.data import DataConfig
from remask.data_prep.masking import MaskingConfig
from remask.launcher import strict_yaml
from remask.launcher.checkpoint import CheckpointConfig
from remask.launcher.decode import COMMAND_LINE, decode, encode, join, nearest
from remask.launcher.engine import EngineConfig
from remask.launcher.errors import UserError
from remask.launcher.guard import GuardConfig
from remask.launcher.metrics import MetricsConfig
from remask.launcher.optimizer import OptimizerConfig
from remask.launcher.schedule import ScheduleConfig
from remask.model.config import EncoderConfig

_MAX_CHAIN = 10


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All that a run is: two runs with equal configs on the same shards see the same batches, masks and losses."""

    seed: int = 1
    """Source of every random choice: order, masks, initial weights, dropout."""
    data: DataConfig = field(default_factory=DataConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    model: EncoderConfig = field(default_factory=EncoderConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: {self.seed} was given, it must be from 0 to 2^63 - 1")
        longest, positions, short = self.data.pack.sequence_length, self.model.positions, self.schedule.short_length
        if longest > positions:
            raise ValueError(f"data.pack.sequence_length: {longest} was given, it must be at most model.positions ({positions})")
        if self.schedule.short_fraction and short > longest:
            raise ValueError(f"schedule.short_length: {short} was given, it must be at most data.pack.sequence_length ({longest})")
        if self.data.short_sets and not self.schedule.short_fraction:
            raise ValueError("data.short_sets: given without schedule.short_fraction, which says how long to train on them")
        task, mode = self.data.sentence_task, self.data.pack.mode
        if task != "none" and not mode.endswith("-pair"):
            raise ValueError(f"data.sentence_task: {task} was given, it needs data.pack.mode segment-pair or sentence-pair, not {mode}")
        if task != "none" and self.model.type_vocab < 2:
            raise ValueError(f"model.type_vocab: {self.model.type_vocab} was given, data.sentence_task {task} needs 2")


def preset_names() -> list[str]:
    """The shipped presets."""
    folder = resources.files("remask.launcher") / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """The config of a preset (`albert-base`) or a YAML file (`my/run.yaml`): its bases, the file, the overrides, each over the last."""
    raw, origins = _read_chain(_locate(name_or_path, None))
    _merge(raw, overrides or {}, COMMAND_LINE, origins)
    return decode(RunConfig, raw, lambda path: _origin(path, origins))


def dump(config: RunConfig) -> str:
    """The whole config as YAML; `load` of it gives an equal config."""
    return strict_yaml.write(encode(config))


def _locate(name_or_path: str, building: Path | Traversable | None) -> Path | Traversable:
    """A preset's name or a file's path; a path in `base:` is relative to the file that says it."""
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        return building.parent / name_or_path if isinstance(building, Path) else Path(name_or_path)
    if name_or_path not in preset_names():
        who = f"{building}: base" if building else "preset"
        raise UserError(f"{who}: {name_or_path!r} is no preset; {nearest(name_or_path, preset_names())} (a file's name must end in .yaml)")
    return resources.files("remask.launcher") / "presets" / f"{name_or_path}.yaml"


def _read_chain(file: Path | Traversable) -> tuple[dict[str, Any], dict[str, str]]:
    """The file's values laid over its bases', and for each key path the file that set it last."""
    layers: list[tuple[str, dict[str, Any]]] = []
    following: Path | Traversable | None = file
    while following is not None:
        raw = _read_mapping(following)
        if len(layers) == _MAX_CHAIN:
            chain = " on ".join(name for name, _ in layers[:4])
            raise UserError(f"{file}: base: more than {_MAX_CHAIN} files build on each other ({chain} …); is it a circle?")
        layers.append((str(following), raw))
        base = raw.pop("base", None)
        if base is not None and not isinstance(base, str):
            raise UserError(f"{following}: base: {base!r} was given, it must be a preset's name or a file's path")
        following = None if base is None else _locate(base, following)
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {"": str(file)}
    for name, raw in reversed(layers):
        _merge(merged, raw, name, origins)
    return merged, origins


def _read_mapping(file: Path | Traversable) -> dict[str, Any]:
    try:
        raw = strict_yaml.read(file.read_bytes())
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read ({error.strerror}); give a preset's name ({', '.join(preset_names())}) or a YAML file"
        ) from error
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    if not isinstance(raw, dict):
        held = "nothing" if raw is None else type(raw).__name__
        raise UserError(f"{file}: the file holds {held}, it must hold a mapping such as 'base: bert-base'")
    return raw


def _merge(into: dict[str, Any], layer: Mapping[str, Any], name: str, origins: dict[str, str], path: str = "") -> None:
    for key, value in layer.items():
        origins[join(path, key)] = name
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value, name, origins, join(path, key))
        elif isinstance(value, dict):
            into[key] = {}
            _merge(into[key], value, name, origins, join(path, key))
        else:
            into[key] = value


def _origin(path: str, origins: Mapping[str, str]) -> str:
    """The file that set this key, or the nearest part of the path that a file did set."""
    while path not in origins:
        path = path.rpartition(".")[0]
    return origins[path]
