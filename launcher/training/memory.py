"""What a rank needs of its device's memory, before anything is allocated; and the micro-batch that fits, tried out.

Activations are measured, not guessed: the model runs once on torch's meta device, which computes shapes only, and what autograd keeps
for the backward pass is summed up. Attention counts as if its weights were kept, which a GPU's fused kernels avoid: an upper bound.
"""

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.launcher.config import RunConfig
from remask.launcher.engine import EngineConfig
from remask.launcher.errors import UserError
from remask.launcher.training.peers import Peers
from remask.model.config import EncoderConfig

if TYPE_CHECKING:
    import torch

    from remask.model.heads import PretrainingModel

log = logging.getLogger(__name__)

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_SHARE = 0.85
"""Of the free memory that is given away; the rest is for buckets, temporary results and other processes."""
# More tokens at once make a step no faster and only the trial slower.
_MOST_TOKENS = {"cuda": 1 << 17, "cpu": 1 << 13}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of one rank, in bytes."""

    weights: int
    gradients: int
    master: int
    """fp32 copies that the optimizer steps."""
    moments: int
    activations_per_token: float

    @property
    def states(self) -> int:
        return self.weights + self.gradients + self.master + self.moments


def estimate_memory(config: RunConfig, parameters: int, world: int) -> Memory:
    """For so many trained parameters on one of so many ranks."""
    engine = config.engine
    stage, size = engine.zero_stage, _BYTES[engine.precision]

    def split(amount: int, from_stage: int) -> int:
        return -(-amount // world) if stage >= from_stage else amount

    has_master = engine.precision != "fp32" or stage in (1, 2) or engine.offload
    return Memory(
        weights=split(size * parameters, 3),
        gradients=split(size * parameters, 2),
        master=split(4 * parameters, 1) if has_master else 0,
        moments=split(8 * parameters, 1),
        activations_per_token=measure_activations(config.model, engine, config.data.pack.sequence_length, config.masking.rate),
    )


@cache
def measure_activations(model: EncoderConfig, engine: EngineConfig, length: int, target_share: float) -> float:
    """Bytes a token that autograd keeps for rows of this length."""
    import torch

    from remask.model.heads import PretrainingModel

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[engine.precision]
    with torch.device("meta"):
        built = PretrainingModel(model, sentence_task=False).to(dtype)
    built.encoder.recompute(engine.activation_checkpointing)
    few, many = (_bytes_kept(built, rows, length, target_share, "meta") for rows in (2, 4))
    return (many - few) / (2 * length)


def _bytes_kept(model: "PretrainingModel", rows: int, length: int, target_share: float, device: str) -> int:
    import torch

    kept: dict[int, int] = {}

    def note(tensor: "torch.Tensor") -> "torch.Tensor":
        if not isinstance(tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage.nbytes()
        return tensor

    arguments = _full_rows(rows, length, target_share, device)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        alive = model.train()(**arguments)  # storages must live until all are counted, or an address counts twice
    del alive
    return sum(kept.values())


def _full_rows(rows: int, length: int, target_share: float, device: Any) -> "dict[str, torch.Tensor]":
    import torch

    tokens = rows * length
    targets = max(1, int(target_share * tokens))
    return {
        "ids": torch.zeros(tokens, dtype=torch.int64, device=device),
        "offsets": torch.arange(0, tokens + 1, length, dtype=torch.int32),
        "positions": torch.linspace(0, tokens - 1, targets, device=device).to(torch.int64),
        "targets": torch.zeros(targets, dtype=torch.int64, device=device),
    }


def find_micro_batch(config: RunConfig, model: "PretrainingModel", peers: Peers, device: "torch.device", ranks_here: int) -> int:
    """Tokens that fit on every rank: estimated from the free memory, then tried with a real forward and backward pass of full rows."""
    import torch

    length, place = config.data.pack.sequence_length, peers.place
    parameters = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    memory = estimate_memory(config, parameters, place.world_size)
    free = _free_bytes(device) / (1 if device.type == "cuda" else ranks_here)
    fits = (_SHARE * free - memory.states) / max(memory.activations_per_token, 1.0)
    rows = min(int(fits / length), _MOST_TOKENS[device.type] // length, config.data.batch_rows // place.world_size)
    model.to(device)
    rows = max(rows, 1)
    while rows and not _runs(model, rows, length, config.masking.rate, device):
        rows //= 2
    model.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    least = int(min(numbers[0] for numbers in peers.gather([rows])))
    if not least:
        raise UserError(
            f"not even one row of {length} tokens fits: about {(memory.states + length * memory.activations_per_token) / 1e9:.1f} GB are "
            f"needed, {free / 1e9:.1f} GB are free here; raise engine.zero_stage or engine.activation_checkpointing"
        )
    log.info("micro-batches of %d tokens (%d full rows), found by trial; %.1f GB are free", least * length, least, free / 1e9)
    return least * length


def _runs(model: "PretrainingModel", rows: int, length: int, target_share: float, device: "torch.device") -> bool:
    import torch

    try:
        model.train()(**_full_rows(rows, length, target_share, device))["masked_tokens"].sum.backward()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return False
    except RuntimeError as error:
        if "allocate memory" not in str(error):  # of the CPU's allocator
            raise
        return False
    return True


def _free_bytes(device: "torch.device") -> int:
    import psutil
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    limit, used = (_number_in(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    return free if limit is None or used is None else min(free, limit - used)


def _number_in(file: Path) -> int | None:
    """What a container's limit says, where there is one."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def check_precision(config: RunConfig, device_type: str) -> None:
    """UserError for numbers that the device cannot compute in."""
    if config.engine.precision == "fp16" and device_type == "cpu":
        raise UserError("engine.precision: fp16 was given, which DeepSpeed does not run on a CPU; use fp32, or bf16 (slow here)")
