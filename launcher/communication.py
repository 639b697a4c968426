"""What a step of training sends, by arithmetic alone: the communication model.

P weights in n tensors, in parameter groups of P_g weights (decayed or not); W ranks; A micro-batches a step; s bytes a weight in the
engine's precision; gradients travel in fp32. Up(x, m) is x rounded up to a multiple of m. One rank gives to the collectives in a step:

    stage 0   all_reduce      4 P  +  4
    stage 1   all_reduce      4 P  +  2 x 4            all_gather      s Up(P_g, 2 W) / W  for each group
    stage 2   all_reduce    A 4 P  +  2 x 4            all_gather      as stage 1
    stage 3   reduce_scatter A 4 sum Up(n_i, W)        all_gather    A s sum Up(n_i, W) / W   over the tensors above the threshold
              all_reduce    2 x 8                                      s sum Up(n_i, W) / W   over the others, trained or not, after
                                                                                              the step
    LAMB      all_reduce    8 n at stages 1 to 3, for the norms of whole weights
    bf16      all_reduce    1 at stages 1 and 2

The small terms are DeepSpeed's votes on overflow and norm. A shared weight is one tensor, whatever the number of layers that use it: its
gradient is summed before it is sent, and at stage 3 it is gathered once a micro-batch, as long as all weights fit
`stage3_max_live_parameters`; the tensors at or below `stage3_param_persistence_threshold` stay whole between the steps. Calls are
predicted exactly where a bucket of the JSON holds all weights; more buckets are more calls with the same bytes.

On the wire, each rank sends of b payload bytes (ring algorithms; Patarasuk and Yuan 2009):

    all_reduce      2 (W - 1) / W b
    all_gather        (W - 1) b            b is the rank's own part
    reduce_scatter    (W - 1) / W b        with NCCL; gloo sums everything everywhere: 2 (W - 1) / W b

A transfer takes wire bytes / link + calls x latency. Without overlap all of it is exposed. With overlap a gradient can leave as soon as its
last use in the backward pass is done: an unshared layer's then, a shared one's only when the first layer that uses it is done.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Literal

from remask.launcher.config import RunConfig
from remask.launcher.engine import read_ds_config
from remask.model.config import EncoderConfig

Backend = Literal["nccl", "gloo"]

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_VOTES = {0: (1, 4), 1: (2, 4), 2: (2, 4), 3: (2, 8)}
"""By stage: how many small all-reduces a step has, and their bytes."""
_STAGE_0_BUCKET = 500_000_000  # elements, DeepSpeed's own; no JSON says it


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Of one rank in one optimizer step, by collective."""

    calls: Counter[str] = field(default_factory=Counter)
    payload: Counter[str] = field(default_factory=Counter)
    """Bytes."""

    def add(self, collective: str, calls: int, payload: int) -> None:
        self.calls[collective] += calls
        self.payload[collective] += payload

    def wire(self, world: int, backend: Backend) -> float:
        """Bytes that the rank sends to others."""
        share = (world - 1) / world
        factors = {"all_reduce": 2 * share, "all_gather": world - 1, "reduce_scatter": (1 if backend == "nccl" else 2) * share}
        return sum(factors[name] * amount for name, amount in self.payload.items())


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Sizes of the trained tensors, each once, by parameter group."""

    groups: tuple[tuple[int, ...], ...]
    frozen: tuple[int, ...] = ()
    """Tensors that are not trained, such as a pooler that no task reads."""

    @property
    def sizes(self) -> list[int]:
        return [size for group in self.groups for size in group]

    @property
    def total(self) -> int:
        return sum(self.sizes)


def weights_of(config: RunConfig) -> Weights:
    """Of the model that the config describes, heads included; nothing is allocated."""
    import torch

    from remask.launcher.build import freeze_unread
    from remask.launcher.optimizer import parameter_groups
    from remask.model.heads import PretrainingModel

    task = config.data.sentence_task != "none"
    with torch.device("meta"):
        model = PretrainingModel(config.model, sentence_task=task)
    freeze_unread(model, task)
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    groups = parameter_groups(trained, config.optimizer)
    return Weights(
        groups=tuple(tuple(weight.numel() for weight in group["params"]) for group in groups),
        frozen=tuple(weight.numel() for weight in model.parameters() if not weight.requires_grad),
    )


def predict(config: RunConfig, weights: Weights, world: int, accumulation: int) -> Sent:
    """What one of `world` ranks gives to the collectives in a step of `accumulation` micro-batches."""
    stage, size, sent = config.engine.zero_stage, _BYTES[config.engine.precision], Sent()
    zero = read_ds_config(config.engine)["zero_optimization"]
    votes, bytes_each = _VOTES[stage]
    sent.add("all_reduce", votes, votes * bytes_each)
    if config.engine.precision != "fp32" and stage in (1, 2):
        sent.add("all_reduce", 1, 1)
    if config.optimizer.name == "lamb" and stage > 0:
        sent.add("all_reduce", len(weights.groups), 8 * len(weights.sizes))
    if stage == 3:
        _add_stage_3(sent, weights, world, accumulation, size, zero)
        return sent
    times = accumulation if stage == 2 else 1
    bucket = zero["reduce_bucket_size"] if stage else _STAGE_0_BUCKET
    sent.add("all_reduce", times * ceil(weights.total / bucket), times * 4 * weights.total)
    if stage:
        for group in weights.groups:
            sent.add("all_gather", 1, size * _up(sum(group), 2 * world) // world)
    return sent


def _add_stage_3(sent: Sent, weights: Weights, world: int, accumulation: int, size: int, zero: dict[str, int]) -> None:
    threshold = zero["stage3_param_persistence_threshold"]
    kept = [n for n in (*weights.sizes, *weights.frozen) if n <= threshold]
    cut = [n for n in weights.sizes if n > threshold]
    padded = sum(_up(n, world) for n in weights.sizes)
    sent.add("reduce_scatter", accumulation * ceil(weights.total / zero["reduce_bucket_size"]), accumulation * 4 * padded)
    # The words' table is asked for first, and alone; what comes after it is fetched ahead, bucket by bucket.
    alone = cut[:1] if cut and cut[0] == weights.sizes[0] else []
    ahead = ceil((sum(cut) - sum(alone)) / zero["stage3_prefetch_bucket_size"])
    gathered = sum(_up(n, world) for n in cut) // world
    sent.add("all_gather", accumulation * (len(alone) + ahead), accumulation * size * gathered)
    sent.add("all_gather", len(kept), size * sum(_up(n, world) for n in kept) // world)


def _up(number: int, multiple: int) -> int:
    return ceil(number / multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class Link:
    """Between machines, each way. A ring enters and leaves every machine once, so it is the machine's bandwidth that counts."""

    name: str
    gbit: float
    latency_us: float
    """Of one hop, from the call to the first byte."""

    def seconds(self, wire_bytes: float, calls: int = 0, world: int = 2) -> float:
        """A collective's latency grows with the depth of a tree of all ranks, once up and once down."""
        return wire_bytes * 8e-9 / self.gbit + calls * 2 * log2(world) * self.latency_us * 1e-6


def when_ready(model: EncoderConfig, head_share: float) -> list[tuple[float, int]]:
    """(share of the backward pass after which its gradient is whole, parameters) of each unique part, by the layer map.

    The head with its `head_share` of the work comes first, then the layers from the last to the first, half of each for its feed-forward
    part and half for its attention; the tables are last, and the head reads the words' table too.
    """
    done: dict[tuple[str, int], float] = {}
    layer_share = (1 - head_share) / model.layers
    for passed, (attention, ffn) in enumerate(reversed(model.layer_map)):
        begin = head_share + passed * layer_share
        done["ffn", ffn] = begin + layer_share / 2
        done["attention", attention] = begin + layer_share
    sizes = {"ffn": model.ffn_parameters, "attention": model.attention_parameters}
    parts = [(share, sizes[kind]) for (kind, _), share in done.items()]
    return sorted([*parts, (1.0, model.unique_parameters - sum(size for _, size in parts))])


def exposed_seconds(ready: Iterable[tuple[float, float]], backward_s: float, bytes_per_s: float) -> float:
    """Time that the transfers of (ready at this share of the backward pass, bytes) go on after its end, one after the other."""
    clock = 0.0
    for share, amount in sorted(ready):
        clock = max(clock, share * backward_s) + amount / bytes_per_s
    return clock - backward_s
