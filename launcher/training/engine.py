"""DeepSpeed's engine around a model: the forward and backward passes of micro-batches, and one optimizer step for all of them."""

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from remask.launcher.config import RunConfig
from remask.launcher.distributed import device_of
from remask.launcher.engine import fill_ds_config
from remask.launcher.optimizer import parameter_groups
from remask.launcher.ranks import Place
from remask.launcher.training.segments import Segment, Shard, find_shards
from remask.launcher.training.sharded_optimizer import ShardedOptimizer
from remask.model.heads import Loss, PretrainingModel
from remask.model.kernels.choose import Machine, choose_kernels, look_around

log = logging.getLogger(__name__)

_HOST = Machine(device="cpu", architecture=0, packages=())


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What became of an optimizer step."""

    norm: float
    """Of the gradient of all weights, before clipping; inf where it is not finite."""
    applied: bool


class Engine:
    """A model under DeepSpeed, with the optimizer that is exact at every stage."""

    def __init__(self, config: RunConfig, model: PretrainingModel, place: Place) -> None:
        import deepspeed

        self.config, self.model, self.place = config, model, place
        self.stage = config.engine.zero_stage
        self.device = device_of(place)
        names = {weight: name for name, weight in model.named_parameters() if weight.requires_grad}
        groups = parameter_groups([(name, weight) for weight, name in names.items()], config.optimizer)
        # What is offloaded is stepped on the host.
        choices = choose_kernels(_HOST) if config.engine.offload else choose_kernels(look_around(), config.engine.kernels)
        choice = choices[config.optimizer.name]
        self.optimizer = ShardedOptimizer([{**group, "names": None} for group in groups], config.optimizer, choice)
        if self.stage == 3:
            _tell_who_reads(model)
        self.ds_config = fill_ds_config(
            config.engine, batch_rows=config.data.batch_rows, clip_norm=config.optimizer.clip_norm, world=place.world_size
        )
        self._engine, *_ = deepspeed.initialize(model=model, optimizer=self.optimizer, config=self.ds_config)
        self.shards: list[Shard] = find_shards(self._engine, names, place.rank)
        self.optimizer.attach(self.shards, sharded=self.stage > 0, device=self.device)
        self.weights = {name: weight for weight, name in names.items()}

    def losses(self, micro_batch: dict[str, Tensor]) -> dict[str, Loss]:
        """Parts of the loss of a micro-batch, as the model's forward names its arguments."""
        losses: dict[str, Loss] = self._engine(**{name: values.to(self.device, non_blocking=True) for name, values in micro_batch.items()})
        return losses

    def backward(self, loss: Tensor, last: bool) -> None:
        """Of one micro-batch; with the last one the gradients are summed over the ranks, divided by their number."""
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, rate: float, may_step: Callable[[float], bool]) -> StepOutcome:
        """One optimizer step at a share of the peak rate, unless the gradient is not finite or `may_step`, asked by its norm, says no."""
        self.optimizer.set_rate(rate)
        own_norm = self._norm_at_stage_0() if self.stage == 0 else None
        verdicts: list[bool] = []

        def ask() -> bool:
            if not verdicts:
                verdicts.append(may_step(self._norm(own_norm)))
            return verdicts[0]

        self.optimizer.may_step = ask
        self._engine.step()
        if not verdicts:  # DeepSpeed found the gradient not finite and stepped nothing
            verdicts.append(may_step(float("inf")))
        self.optimizer.steps += verdicts[0]
        return StepOutcome(norm=self._norm(own_norm), applied=verdicts[0])

    def _norm(self, own: float | None) -> float:
        norm = float(self._engine.optimizer._global_grad_norm) if own is None else own
        overflow = own is None and bool(self._engine.optimizer.overflow)
        return norm if norm >= 0 and norm != float("inf") and not overflow else float("inf")

    def _norm_at_stage_0(self) -> float:
        """DeepSpeed clips there without telling the norm."""
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        return float(norm) if torch.isfinite(norm) else float("inf")

    def loss_scaler(self) -> dict[str, Any]:
        """With fp16: what the loss is multiplied by so that small gradients are not lost, and when that changes."""
        if self.config.engine.precision != "fp16":
            return {}
        return {name: value for name, value in vars(self._engine.optimizer.loss_scaler).items() if isinstance(value, (int, float))}

    def set_loss_scaler(self, settings: dict[str, Any]) -> None:
        """As `loss_scaler` told it."""
        if settings:
            vars(self._engine.optimizer.loss_scaler).update(settings)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Without dropout and gradients. At stage 3 all ranks must still make the same calls."""
        self._engine.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._engine.train()

    def score(self, micro_batch: dict[str, Tensor]) -> Tensor:
        """Scores over the vocabulary at the positions, on every rank the same call."""
        import deepspeed

        arguments = {name: values.to(self.device) for name, values in micro_batch.items()}
        hidden, _ = self.model.encode(**arguments, segments=None, documents=None)
        head, words = self.model.masked_tokens, self.model.encoder.embeddings.words.weight
        with deepspeed.zero.GatheredParameters([head.bias, words], enabled=self.stage == 3):
            return head.score(hidden, words).float().cpu()

    def whole_weights(self) -> dict[str, Tensor]:
        """The fp32 weights, on rank 0; elsewhere nothing. Each is put together from its segments, bit by bit."""
        found: dict[str, Tensor] = {}
        mine: dict[str, list[Segment]] = {}
        for segment in (segment for shard in self.shards for segment in shard.segments):
            mine.setdefault(segment.name, []).append(segment)
        for name, weight in self.weights.items():
            shape = weight.ds_shape if self.stage == 3 else weight.shape  # type: ignore[attr-defined]
            device = self.shards[0].flat.device
            whole = torch.zeros(math.prod(shape), dtype=torch.float32, device=device)
            for segment in mine.get(name, []):
                whole[segment.begin : segment.end] = segment.values
            if self.stage > 0 and self.place.world_size > 1:
                on_device = whole.view(torch.int32).to(self.device)  # as integers, for -0.0 + 0.0 is 0.0
                torch.distributed.reduce(on_device, dst=0)
                whole = on_device.view(torch.float32)
            if self.place.rank == 0:
                found[name] = whole.view(shape).cpu()
        return found

    def set_weights(self, weights: dict[str, Tensor]) -> None:
        """Masters and the model's own, from whole fp32 weights on every rank."""
        for segment in (segment for shard in self.shards for segment in shard.segments):
            segment.values.copy_(weights[segment.name].view(-1)[segment.begin : segment.end])
        if self.stage == 3:
            zero = self._engine.optimizer
            for number in range(len(zero.fp16_groups)):
                zero._reassign_or_swap_out_partitioned_parameters(number)
            if kept := zero.persistent_parameters:  # small weights, which are whole on every rank
                kept[0].all_gather(kept)
        elif self.stage > 0:
            self._engine.optimizer.update_lp_params()


def _tell_who_reads(model: PretrainingModel) -> None:
    """DeepSpeed gathers a module's own weights when it is called; these are read by others."""
    import deepspeed

    embeddings = model.encoder.embeddings
    for part in (embeddings.words, embeddings.positions, embeddings.types, embeddings.norm):
        for weight in part.parameters():
            deepspeed.zero.register_external_parameter(embeddings, weight)
    deepspeed.zero.register_external_parameter(model.masked_tokens, embeddings.words.weight)
