"""Which part of which weight this rank's optimizer steps: under ZeRO flat shards hold pieces of many weights, end to end.

Everything that speaks of weights by name rests on this: LAMB's norms of whole weights, and checkpoints that any number of ranks can read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Values `begin` and on of a flattened weight, in fp32, as a view of the shard that holds them."""

    name: str
    begin: int
    values: Tensor
    at: int
    """Where it begins in the shard."""

    @property
    def end(self) -> int:
        return self.begin + len(self.values)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One flat tensor that DeepSpeed hands to the optimizer, the same on all ranks in names and order."""

    flat: Tensor
    group: int
    """Number of its parameter group."""
    names: tuple[str, ...]
    """Weights that have a part in it on any rank."""
    segments: tuple[Segment, ...]
    """The parts on this rank."""


def find_shards(engine: Any, names: Mapping[Parameter, str], rank: int) -> list[Shard]:
    """Of a DeepSpeed engine. RuntimeError if a segment is not what its weight holds: DeepSpeed has changed its layout."""
    stage = engine.zero_optimization_stage()
    find = {0: _whole_weights, 1: _of_flat_groups, 2: _of_flat_groups, 3: _of_sub_groups}[stage]
    shards = list(find(engine, names, rank))
    _check(shards, {name: _begin_of(weight, stage, rank) for weight, name in names.items()})
    return shards


def _whole_weights(engine: Any, names: Mapping[Parameter, str], _: int) -> Iterator[Shard]:
    for number, group in enumerate(engine.optimizer.param_groups):
        for weight in group["params"]:
            segment = Segment(name=names[weight], begin=0, values=weight.detach().view(-1), at=0)
            yield Shard(flat=weight, group=number, names=(segment.name,), segments=(segment,))


def _of_flat_groups(engine: Any, names: Mapping[Parameter, str], rank: int) -> Iterator[Shard]:
    """Stages 1 and 2: a group's weights end to end, cut into equal parts; a cut goes through a weight."""
    zero = engine.optimizer
    for number, (weights, offsets) in enumerate(zip(zero.round_robin_bit16_groups, zero.round_robin_bit16_offsets, strict=True)):
        flat = zero.single_partition_of_fp32_groups[number]
        low, high = rank * len(flat), (rank + 1) * len(flat)
        segments = []
        for weight, offset in zip(weights, offsets, strict=True):
            begin, end = max(offset, low), min(offset + weight.numel(), high)
            if begin < end:
                values = flat.detach()[begin - low : end - low]
                segments.append(Segment(name=names[weight], begin=begin - offset, values=values, at=begin - low))
        yield Shard(flat=flat, group=number, names=tuple(names[weight] for weight in weights), segments=tuple(segments))


def _of_sub_groups(engine: Any, names: Mapping[Parameter, str], rank: int) -> Iterator[Shard]:
    """Stage 3: every weight is cut into equal parts, and a rank's parts lie end to end; the last ones may be padding."""
    zero = engine.optimizer
    for number, weights in enumerate(zero.fp16_groups):
        flat, at, segments = zero.fp32_partitioned_groups_flat[number], 0, []
        for weight in weights:
            size = weight.partition_numel()
            begin = rank * size
            if length := min(max(weight.ds_numel - begin, 0), size):
                segments.append(Segment(name=names[weight], begin=begin, values=flat.detach()[at : at + length], at=at))
            at += size
        group = zero.sub_group_to_group_id[number]
        yield Shard(flat=flat, group=group, names=tuple(names[weight] for weight in weights), segments=tuple(segments))


def _begin_of(weight: Parameter, stage: int, rank: int) -> tuple[int, Tensor]:
    """What this rank has of a weight, flattened, and where that begins in it."""
    if stage < 3:
        return 0, weight.detach().view(-1)
    part: Tensor = weight.ds_tensor.detach().view(-1)  # type: ignore[attr-defined]
    return rank * len(part), part


def _check(shards: list[Shard], held: Mapping[str, tuple[int, Tensor]]) -> None:
    for segment in (segment for shard in shards for segment in shard.segments):
        begin, values = held[segment.name]
        if not torch.equal(segment.values.to(values), values[segment.begin - begin : segment.end - begin]):
            raise RuntimeError(f"{segment.name}: DeepSpeed's shard holds something else than this weight; use the pinned version")
