"""The DeepSpeed engine's settings, and the JSON that it is started with."""

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from remask.launcher.decode import nearest
from remask.launcher.errors import UserError

ZeroStage = Literal[0, 1, 2, 3]

# What the run's config decides; a JSON that said it, too, would be a second truth.
_FILLED = {
    "train_batch_size": "data.batch_rows",
    "train_micro_batch_size_per_gpu": "engine.micro_batch_tokens",
    "gradient_accumulation_steps": "engine.micro_batch_tokens",
    "gradient_clipping": "optimizer.clip_norm",
    "optimizer": "optimizer",
    "scheduler": "schedule",
    "fp16": "engine.precision",
    "bf16": "engine.precision",
    "amp": "engine.precision",
    "torch_autocast": "engine.precision",
}
# DeepSpeed knows neither our optimizer nor that it may run on a CPU.
_NEEDED = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
# What else a JSON may say, and how: DeepSpeed ignores a key that it does not know, and stumbles over some values.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "communication_data_type": ("fp32", "fp16", "bf16"),
    "wall_clock_breakdown": (True, False),
    "memory_breakdown": (True, False),
    "dump_state": (True, False),
}
_OTHER_KEYS = ("zero_optimization", "steps_per_print", *_NEEDED)
# These lay out the shards in ways that our optimizer and checkpoints do not follow.
_REFUSED_LAYOUTS = ("zero_hpz_partition_size", "mics_shard_size", "zenflow")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How the step is spread over devices and in which numbers it is computed."""

    zero_stage: ZeroStage = 1
    """0 replicates all; 1 splits the optimizer's state over the devices, 2 also gradients, 3 also weights: less memory, more traffic."""
    offload: bool = False
    """With stage 3: weights and the optimizer's state rest in the host's memory; fits what else would not, and is much slower."""
    ds_config: str | None = None
    """Your own DeepSpeed JSON instead of the shipped one of the stage; it must not set what this config sets."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Number format of the forward and backward pass; fp32 on CPU."""
    micro_batch_tokens: int | None = None
    """Tokens that a device takes at once, None to find what fits; changes memory and speed, never the result's batch."""
    activation_checkpointing: float = 0.0
    """Share of the layers whose activations are computed again in the backward pass: less memory, up to a third more time."""
    kernels: Literal["auto", "triton", "vendor", "torch"] = "auto"
    """What computes the operations around the matrix products: auto takes the fastest that can be had (remask doctor tells which),
    the others pin our Triton kernels, NVIDIA's packages, or plain torch. Results agree within rounding."""
    compile: bool = False
    """torch.compile for the layers: fuses what stands between the matrix products on a GPU; the first step takes a minute or more."""
    cpu_threads: int | None = None
    """Threads that a rank computes with on a CPU, None: its share of the cores. Another number sums in another order: equal results to
    the last bit need the same one."""
    loader_threads: int = 1
    """Threads that make batches ahead; 0 makes each when it is asked for."""
    timeout_seconds: float = 600.0
    """A rank that gives no sign of life for so long is named and the run ends."""

    def __post_init__(self) -> None:
        if self.micro_batch_tokens is not None and self.micro_batch_tokens < 1:
            raise ValueError(f"micro_batch_tokens: {self.micro_batch_tokens} was given, it must be at least 1, or null to find what fits")
        if not 0 <= self.activation_checkpointing <= 1:
            raise ValueError(f"activation_checkpointing: {self.activation_checkpointing} was given, it must be from 0 to 1")
        if self.cpu_threads is not None and self.cpu_threads < 1:
            raise ValueError(f"cpu_threads: {self.cpu_threads} was given, it must be at least 1, or null")
        if not 0 <= self.loader_threads <= 64:
            raise ValueError(f"loader_threads: {self.loader_threads} was given, it must be from 0 to 64")
        if not 1 <= self.timeout_seconds <= 86400:
            raise ValueError(f"timeout_seconds: {self.timeout_seconds} was given, it must be from 1 to 86400")
        if self.offload and self.zero_stage != 3:
            raise ValueError(f"offload: true was given with zero_stage {self.zero_stage}; it needs zero_stage 3")
        if self.precision != "fp32" and self.zero_stage == 0:
            # DeepSpeed 0.19.8 runs bf16 there through another optimizer wrapper: a loss gap of 0.07 after 12 steps.
            raise ValueError(
                f"precision: {self.precision} was given with zero_stage 0, where DeepSpeed drifts; use zero_stage 1, 2 or 3, or fp32"
            )


def read_ds_config(engine: EngineConfig) -> dict[str, Any]:
    """The DeepSpeed JSON of a stage, shipped or the user's own, without what the launcher fills."""
    if engine.ds_config is None:
        name = f"zero{engine.zero_stage}{'-offload' if engine.offload else ''}.json"
        shipped: dict[str, Any] = json.loads(resources.files("remask.ds_configs").joinpath(name).read_text(encoding="utf-8"))
        return shipped
    try:
        own = json.loads(Path(engine.ds_config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"engine.ds_config: {engine.ds_config}: cannot be read ({error}); copy one of ds_configs/ and edit it") from error
    if not isinstance(own, dict) or not isinstance(own.get("zero_optimization"), dict):
        raise UserError(f"engine.ds_config: {engine.ds_config}: has no zero_optimization; copy one of ds_configs/ and edit it")
    _check_own(own, engine)
    return {**own, **_NEEDED}


def fill_ds_config(engine: EngineConfig, *, batch_rows: int, clip_norm: float | None, world: int) -> dict[str, Any]:
    """The JSON as DeepSpeed gets it. Micro-batches are cut by tokens, so DeepSpeed is told which is a batch's last one, not how many there
    are; clipping is always said, for DeepSpeed clips at 1.0 when it is not."""
    filled = read_ds_config(engine)
    filled["train_batch_size"] = batch_rows
    filled["train_micro_batch_size_per_gpu"] = batch_rows // world
    filled["gradient_accumulation_steps"] = 1
    filled["gradient_clipping"] = clip_norm or 0.0
    if engine.precision != "fp32":
        filled[engine.precision] = {"enabled": True}
    return filled


def _check_own(own: dict[str, Any], engine: EngineConfig) -> None:
    where = f"engine.ds_config: {engine.ds_config}"
    for key, ours in _FILLED.items():
        if key in own:
            raise UserError(f"{where}: sets {key}, which the run's config says ({ours}); remove it from the JSON")
    for key, needed in _NEEDED.items():
        if own.get(key, needed) is not needed:
            raise UserError(f"{where}: {key} is {own[key]!r}, our optimizer needs {json.dumps(needed)}; remove it from the JSON")
    for key, value in own.items():
        if key not in (known := (*_ALLOWED, *_OTHER_KEYS)):
            raise UserError(f"{where}: {key!r} is nothing that such a JSON may say here; {nearest(key, list(known))}")
        allowed = [json.dumps(one) for one in _ALLOWED.get(key, (value,))]
        if json.dumps(value) not in allowed:
            raise UserError(f"{where}: {key} is {json.dumps(value)}; allowed: {', '.join(allowed)}")
    if type(lines := own.get("steps_per_print", 1)) is not int or lines < 1:
        raise UserError(f"{where}: steps_per_print is {json.dumps(lines)}, it must be a number of steps from 1 on")
    zero = own["zero_optimization"]
    if zero.get("stage") != engine.zero_stage or not isinstance(zero["stage"], int):
        raise UserError(f"{where}: has stage {zero.get('stage')!r}, engine.zero_stage is {engine.zero_stage}; make them equal")
    for key in _REFUSED_LAYOUTS:
        if zero.get(key):
            raise UserError(f"{where}: sets {key}, which remask's optimizer and checkpoints do not follow; remove it")
    for key in ("offload_optimizer", "offload_param"):
        given = zero.get(key, {})
        device = given.get("device", "none") if isinstance(given, dict) else given
        if device not in ("none", "cpu") or (device == "cpu") != engine.offload:
            asked = f"engine.offload is {json.dumps(engine.offload)}"
            raise UserError(f"{where}: {key} to {device!r}, {asked}; only stage 3 offloads here, only to cpu, and both must say it")
    _let_deepspeed_read(zero, where)


def _let_deepspeed_read(zero: dict[str, Any], where: str) -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from pydantic import ValidationError

    try:
        DeepSpeedZeroConfig(**zero)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}: zero_optimization.{key}: {first['input']!r} was given: {first['msg']}") from error
