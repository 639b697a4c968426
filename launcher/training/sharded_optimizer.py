"""The optimizer that DeepSpeed steps: it hands each shard's segments to AdamW or LAMB as the weights' parts that they are.

So LAMB scales a weight's update by norms of the whole weight, summed over the ranks that hold its parts, whatever the ZeRO stage; DeepSpeed
by itself would let it take a flat shard of many weights for one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from remask.launcher.optimizer import OptimizerConfig
from remask.launcher.training.segments import Segment, Shard
from remask.model.kernels.choose import LADDERS, Choice

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(kw_only=True)
class _Attached:
    """A shard with the group that stands for it in the inner optimizer."""

    shard: Shard
    group: dict[str, Any]


class ShardedOptimizer(Optimizer):
    """DeepSpeed takes the groups, replaces their weights by its shards, and calls `step`; what `attach` made does the work.

    `may_step` is asked before anything changes; when it says no, the step leaves weights and moments as they are.
    """

    def __init__(self, groups: list[dict[str, Any]], config: OptimizerConfig, choice: Choice) -> None:
        super().__init__(groups, {"lr": config.lr})
        self.config, self._choice = config, choice
        self.steps = 0
        """Optimizer steps that were made, which undo the moments' start at 0."""
        self.may_step: Callable[[], bool] = lambda: True
        self._base_rates = [group["lr"] for group in self.param_groups]
        self._attached: dict[Tensor, _Attached] = {}

    def attach(self, shards: Sequence[Shard], sharded: bool, device: torch.device) -> None:
        """After DeepSpeed has cut the weights. `sharded` if other ranks hold other parts; collectives work on the device."""
        self._device = device
        config, options = self.config, {}
        if config.name == "lamb" and sharded:
            options["sum_over_ranks"] = self._sum_over_ranks
        build = _without_whole_weights(self._choice).load() if options else self._choice.load()
        # Every torch optimizer wants one tensor; a rank may have none, when its whole shard is padding.
        groups = [
            {"params": [segment.values for segment in shard.segments], "weight_decay": self.param_groups[shard.group]["weight_decay"]}
            for shard in shards
        ]
        self._inner: Optimizer = build(
            groups or [{"params": []}], lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, **options
        )
        pairs = zip(shards, self._inner.param_groups, strict=True)
        self._attached = {shard.flat: _Attached(shard=shard, group=group) for shard, group in pairs}

    def set_rate(self, share: float) -> None:
        """The learning rate, as a share of its peak; each group keeps its own factor."""
        for group, rate in zip(self.param_groups, self._base_rates, strict=True):
            group["lr"] = rate * share

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 (torch's own signature)
        """DeepSpeed calls this once for each shard at stages 1 to 3, once for all weights at stage 0."""
        if not self.may_step():
            return
        for group in self.param_groups:
            for flat in group["params"]:
                self._step_shard(self._attached[flat], group["lr"])

    def _step_shard(self, attached: _Attached, rate: float) -> None:
        gradient = attached.shard.flat.grad
        if gradient is None:
            raise RuntimeError(f"DeepSpeed steps {attached.shard.names[0]} without a gradient")
        for segment in attached.shard.segments:
            segment.values.grad = gradient.view(-1)[segment.at : segment.at + len(segment.values)]
        attached.group["lr"] = rate
        self._stepping = attached.shard
        self._inner.param_groups = [attached.group]
        if attached.shard.segments:
            self._inner.step()
        elif self.config.name == "lamb":  # the others wait for this rank's share of the norms
            self._sum_over_ranks(torch.zeros(0, 2, device=gradient.device))
        for segment in attached.shard.segments:
            segment.values.grad = None

    def _sum_over_ranks(self, norms: Tensor) -> Tensor:
        """Squared norms of this rank's segments (segments, 2) -> of the whole weights that they are parts of."""
        import torch.distributed

        shard = self._stepping
        places = {name: place for place, name in enumerate(shard.names)}
        rows = torch.tensor([places[segment.name] for segment in shard.segments], dtype=torch.int64, device=norms.device)
        whole = torch.zeros(len(shard.names), 2, dtype=norms.dtype, device=norms.device)
        whole[rows] = norms
        summed = whole.to(self._device)  # offloaded shards lie on the host
        torch.distributed.all_reduce(summed)
        return summed.to(norms.device)[rows]

    def moments(self) -> Iterator[tuple[Segment, dict[str, Tensor]]]:
        """Each segment's moments, views where they are; zeros before the first step."""
        for attached in self._attached.values():
            for segment in attached.shard.segments:
                state = self._inner.state[segment.values]
                yield segment, {name: state[name] if name in state else torch.zeros_like(segment.values) for name in MOMENTS}

    def forget(self) -> None:
        """As before the first step."""
        self._inner.state.clear()

    def restore(self, segment: Segment, moments: dict[str, Tensor]) -> None:
        """Moments of a segment as they were after `self.steps` steps, which must be set before."""
        step: Any = torch.tensor(float(self.steps)) if isinstance(self._inner, torch.optim.AdamW) else self.steps
        self._inner.state[segment.values] = {"step": step, **{name: moment.to(segment.values) for name, moment in moments.items()}}
        for attached in self._attached.values():
            attached.group["step"] = self.steps  # where Apex and Transformer Engine keep it


def _without_whole_weights(choice: Choice) -> Choice:
    """Apex's LAMB takes a part for the whole weight: the next rung instead."""
    if choice.rung != "apex":
        return choice
    return Choice(operation=choice.operation, rung=list(LADDERS[choice.operation])[-1], reason="apex: takes shards for whole weights")
