"""AdamW and LAMB over many tensors at once, or over the segments of a flat shard, which are views of it.

A table tells for each block of values which tensor it is of, so one launch goes over all of them. LAMB makes moments and updates first,
and the squared norms of weights and updates by tensor, which under ZeRO are summed over the ranks; then it applies them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.optim import Optimizer

from remask.model.optimizers import SumOverRanks, trust_ratios

BLOCK = 2048


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How tensors of given sizes are cut into blocks; the same as long as the sizes are."""

    decays: Tensor
    """(tensors,) fp32: weight decay of each."""
    sizes: Tensor
    """(tensors,) int64."""
    blocks: Tensor
    """(blocks, 2) int64: tensor, and where the block begins in it."""
    first_blocks: Tensor
    """(tensors + 1,) int64: of each tensor's blocks."""


def lay_out(sizes: Sequence[int], decays: Sequence[float], device: torch.device | str) -> Layout:
    """Tensors without a value are allowed, for a shard that holds none of a weight."""
    counts = [triton.cdiv(size, BLOCK) for size in sizes]
    blocks = [(number, i * BLOCK) for number, count in enumerate(counts) for i in range(count)]
    return Layout(
        decays=torch.tensor(decays, dtype=torch.float32, device=device),
        sizes=torch.tensor(sizes, dtype=torch.int64, device=device),
        blocks=torch.tensor(blocks, dtype=torch.int64, device=device).reshape(-1, 2),
        first_blocks=torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int64, device=device),
    )


def addresses_of(*kinds: Sequence[Tensor]) -> Tensor:
    """(tensors, 5) int64: of weight, gradient, mean, square and, for LAMB, update. Whoever asks keeps the tensors alive."""
    if any(not tensor.is_contiguous() or tensor.dtype != torch.float32 for kind in kinds for tensor in kind):
        raise ValueError("every tensor must be contiguous and fp32")
    rows = [[tensor.data_ptr() for tensor in row] + [0] * (5 - len(row)) for row in zip(*kinds, strict=True)]
    return torch.tensor(rows, dtype=torch.int64, device=kinds[0][0].device)


def cut_flat(flat: Tensor, boundaries: Sequence[int]) -> list[Tensor]:
    """The segments of a flat shard, `boundaries[i]` to `boundaries[i + 1]`, as views."""
    return [flat[begin:end] for begin, end in pairwise(boundaries)]


@triton.jit
def _moments(addresses, sizes, blocks, old1, new1, old2, new2, BLOCK: tl.constexpr):
    """Of this program's block: its tensor, the places inside it, weights, and the new moments, which are stored."""
    tensor = tl.load(blocks + 2 * tl.program_id(0))
    places = tl.load(blocks + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCK)
    inside = places < tl.load(sizes + tensor)
    at = addresses + 5 * tensor
    weight = tl.load(tl.load(at).to(tl.pointer_type(tl.float32)) + places, mask=inside, other=0)
    gradient = tl.load(tl.load(at + 1).to(tl.pointer_type(tl.float32)) + places, mask=inside, other=0)
    means = tl.load(at + 2).to(tl.pointer_type(tl.float32)) + places
    squares = tl.load(at + 3).to(tl.pointer_type(tl.float32)) + places
    mean = old1 * tl.load(means, mask=inside, other=0) + new1 * gradient
    square = old2 * tl.load(squares, mask=inside, other=0) + new2 * gradient * gradient
    tl.store(means, mean, mask=inside)
    tl.store(squares, square, mask=inside)
    return tensor, places, inside, weight, mean, square


@triton.jit(do_not_specialize=["lr"])
def adamw_blocks(addresses, sizes, blocks, decays, lr, old1, new1, old2, new2, eps, mean_scale, square_scale, BLOCK: tl.constexpr):
    tensor, places, inside, weight, mean, square = _moments(addresses, sizes, blocks, old1, new1, old2, new2, BLOCK)
    weight *= 1 - lr * tl.load(decays + tensor)
    weight -= lr * (mean * mean_scale) / (tl.sqrt(square * square_scale) + eps)
    tl.store(tl.load(addresses + 5 * tensor).to(tl.pointer_type(tl.float32)) + places, weight, mask=inside)


@triton.jit
def lamb_blocks(addresses, sizes, blocks, decays, norms, old1, new1, old2, new2, eps, mean_scale, square_scale, BLOCK: tl.constexpr):
    """norms (blocks, 2): squared, of weights and of updates."""
    tensor, places, inside, weight, mean, square = _moments(addresses, sizes, blocks, old1, new1, old2, new2, BLOCK)
    update = (mean * mean_scale) / (tl.sqrt(square * square_scale) + eps) + tl.load(decays + tensor) * weight
    update = tl.where(inside, update, 0.0)
    tl.store(tl.load(addresses + 5 * tensor + 4).to(tl.pointer_type(tl.float32)) + places, update, mask=inside)
    tl.store(norms + 2 * tl.program_id(0), tl.sum(weight * weight, 0))
    tl.store(norms + 2 * tl.program_id(0) + 1, tl.sum(update * update, 0))


@triton.jit
def sum_norms(first_blocks, norms, totals):
    """A program for each tensor sums up its blocks, in their order; totals (tensors, 2)."""
    tensor = tl.program_id(0)
    both = tl.arange(0, 2)
    total = tl.zeros((2,), dtype=tl.float32)
    for block in range(tl.load(first_blocks + tensor), tl.load(first_blocks + tensor + 1)):
        total += tl.load(norms + 2 * block + both)
    tl.store(totals + 2 * tensor + both, total)


@triton.jit(do_not_specialize=["lr"])
def apply_updates(addresses, sizes, blocks, ratios, lr, BLOCK: tl.constexpr):
    tensor = tl.load(blocks + 2 * tl.program_id(0))
    places = tl.load(blocks + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCK)
    inside = places < tl.load(sizes + tensor)
    weights = tl.load(addresses + 5 * tensor).to(tl.pointer_type(tl.float32)) + places
    updates = tl.load(addresses + 5 * tensor + 4).to(tl.pointer_type(tl.float32)) + places
    weight = tl.load(weights, mask=inside, other=0) - lr * tl.load(ratios + tensor) * tl.load(updates, mask=inside, other=0)
    tl.store(weights, weight, mask=inside)


class _Fused(Optimizer):
    """What both have in common: state beside every weight, under the names that torch's Adam gives it, and the layout of each group."""

    needs_updates = False

    def __init__(self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._updates: dict[Tensor, Tensor] = {}
        """Room for LAMB's updates; no state, since every step writes them anew."""

    def _batches(self) -> Iterator[tuple[dict[str, Any], Layout, Tensor, int]]:
        """The weights of a group that have made equally many steps: the group, their layout and addresses, and which step this is."""
        for group in self.param_groups:
            by_step: dict[int, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    if not state:
                        state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
                    if self.needs_updates and weight not in self._updates:
                        self._updates[weight] = torch.empty_like(weight)
                    state["step"] += 1
                    by_step.setdefault(int(state["step"]), []).append(weight)
            for step, weights in by_step.items():
                kinds = [[self.state[weight][name] for weight in weights] for name in ("exp_avg", "exp_avg_sq")]
                if self.needs_updates:
                    kinds.append([self._updates[weight] for weight in weights])
                gradients = [weight.grad for weight in weights if weight.grad is not None]
                addresses = addresses_of(weights, gradients, *kinds)
                yield group, self._layout_of(weights, group["weight_decay"]), addresses, step

    def _layout_of(self, weights: list[Tensor], decay: float) -> Layout:
        sizes = tuple(weight.numel() for weight in weights)
        if (sizes, decay) not in self._layouts:
            self._layouts[sizes, decay] = lay_out(sizes, [decay] * len(sizes), weights[0].device)
        return self._layouts[sizes, decay]


class AdamW(_Fused):
    """As torch.optim.AdamW, in one launch a group."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 (torch's own signature)
        for group, layout, addresses, step in self._batches():
            step_adamw(layout, addresses, step, group["lr"], group["betas"], group["eps"])


class Lamb(_Fused):
    """As `model/optimizers.py`'s, in three launches a group."""

    needs_updates = True

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float,
        sum_over_ranks: SumOverRanks | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay)
        self.sum_over_ranks = sum_over_ranks

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 (torch's own signature)
        for group, layout, addresses, step in self._batches():
            norms = prepare_lamb(layout, addresses, step, group["betas"], group["eps"])
            finish_lamb(layout, addresses, norms if self.sum_over_ranks is None else self.sum_over_ranks(norms), group["lr"])


def step_adamw(layout: Layout, addresses: Tensor, step: int, lr: float, betas: tuple[float, float], eps: float) -> None:
    """As torch.optim.AdamW."""
    adamw_blocks[(len(layout.blocks),)](
        addresses, layout.sizes, layout.blocks, layout.decays, lr, *_shares(betas), eps, *_scales(step, betas), BLOCK=BLOCK
    )


def prepare_lamb(layout: Layout, addresses: Tensor, step: int, betas: tuple[float, float], eps: float) -> Tensor:
    """Moments and updates; squared norms of weights and updates (tensors, 2), of this shard's share, to be summed over the ranks."""
    norms = torch.empty(len(layout.blocks), 2, dtype=torch.float32, device=addresses.device)
    totals = torch.zeros(len(layout.sizes), 2, dtype=torch.float32, device=addresses.device)
    lamb_blocks[(len(layout.blocks),)](
        addresses, layout.sizes, layout.blocks, layout.decays, norms, *_shares(betas), eps, *_scales(step, betas), BLOCK=BLOCK
    )
    sum_norms[(len(layout.sizes),)](layout.first_blocks, norms, totals)
    return totals


def finish_lamb(layout: Layout, addresses: Tensor, norms: Tensor, lr: float) -> None:
    """The weights move by their updates, each scaled by its trust ratio."""
    apply_updates[(len(layout.blocks),)](addresses, layout.sizes, layout.blocks, trust_ratios(norms), lr, BLOCK=BLOCK)


def _shares(betas: tuple[float, float]) -> tuple[float, float, float, float]:
    """Of the old and the new in each moment, taken from 1 here: in fp32, 1 - 0.999 is wrong in the fifth digit."""
    return betas[0], 1 - betas[0], betas[1], 1 - betas[1]


def _scales(step: int, betas: tuple[float, float]) -> tuple[float, float]:
    """What undoes the moments' start at 0, at the step that is made, from 1."""
    return 1 / (1 - betas[0] ** step), 1 / (1 - betas[1] ** step)
