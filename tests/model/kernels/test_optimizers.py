"""The fused optimizers against torch's AdamW and the plain LAMB, over lists of weights and over the segments of a flat shard."""

import weakref
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from remask.model import optimizers as plain
from remask.model.kernels import optimizers as fused

SIZES = [(1,), (7, 5), (3000,), (2048,), (64, 65)]


def train(make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer], device: str) -> list[Tensor]:
    """Weights after a few steps of given gradients; half of them are not decayed, one starts at 0."""
    torch.manual_seed(2)
    weights = [torch.randn(shape).to(device).requires_grad_() for shape in SIZES]
    weights[2].data.zero_()
    groups = [{"params": weights[:3], "weight_decay": 0.1}, {"params": weights[3:], "weight_decay": 0.0, "lr": 0.02}]
    optimizer = make(groups)
    for _ in range(4):
        for weight in weights:
            weight.grad = torch.randn(weight.shape).to(device)
        optimizer.step()
    return [weight.detach().cpu() for weight in weights]


def compare(found: list[Tensor], wanted: list[Tensor]) -> None:
    for number, (mine, other) in enumerate(zip(found, wanted, strict=True)):
        assert torch.allclose(mine, other, rtol=2e-6, atol=2e-7), f"weight {number}: {(mine - other).abs().max():.2g}"


OPTIONS: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.0}


def test_adamw_is_torchs(device: str) -> None:
    compare(
        train(lambda groups: fused.AdamW(groups, **OPTIONS), device), train(lambda groups: torch.optim.AdamW(groups, **OPTIONS), device)
    )


def test_lamb_is_the_plain_one(device: str) -> None:
    compare(train(lambda groups: fused.Lamb(groups, **OPTIONS), device), train(lambda groups: plain.Lamb(groups, **OPTIONS), device))


@pytest.mark.parametrize(("right", "wrong"), [("+ new2 * gradient", "+ new1 * gradient"), ("tl.load(ratios + tensor)", "1.0"),
                                              ("tl.sum(update * update, 0)", "tl.sum(update, 0)")])  # fmt: skip
def test_a_broken_step_is_noticed(right: str, wrong: str, broken: Callable[[ModuleType, str, str], ModuleType], device: str) -> None:
    with pytest.raises(AssertionError, match="weight"):
        compare(
            train(lambda groups: broken(fused, right, wrong).Lamb(groups, **OPTIONS), device),
            train(lambda groups: plain.Lamb(groups, **OPTIONS), device),
        )


@pytest.mark.parametrize(("right", "wrong"), [("weight *= 1 - lr *", "weight *= 1 + lr *"), ("mean * mean_scale", "mean")])
def test_a_broken_adamw_is_noticed(right: str, wrong: str, broken: Callable[[ModuleType, str, str], ModuleType], device: str) -> None:
    with pytest.raises(AssertionError, match="weight"):
        compare(
            train(lambda groups: broken(fused, right, wrong).AdamW(groups, **OPTIONS), device),
            train(lambda groups: torch.optim.AdamW(groups, **OPTIONS), device),
        )


@pytest.mark.parametrize("world", [1, 2, 3])
def test_shards_of_a_flat_buffer_give_the_unsharded_step(world: int, device: str) -> None:
    """As under ZeRO: every rank has a stretch of all weights end to end, cut anywhere; norms are summed over the ranks."""
    torch.manual_seed(4)
    sizes = [1, 35, 3000, 2048, 500]
    edges = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    flat, gradient = torch.randn(edges[-1]), torch.randn(edges[-1])
    decays = [0.1, 0.0, 0.1, 0.0, 0.1]
    weights = [part.clone().requires_grad_() for part in fused.cut_flat(flat, edges)]
    for weight, part in zip(weights, fused.cut_flat(gradient, edges), strict=True):
        weight.grad = part.clone()
    plain.Lamb([{"params": [weight], "weight_decay": decay} for weight, decay in zip(weights, decays, strict=True)], **OPTIONS).step()

    ranks, found = [], []
    for rank in range(world):
        low, high = rank * edges[-1] // world, (rank + 1) * edges[-1] // world
        boundaries = [min(max(edge, low), high) - low for edge in edges]
        own = [
            value[low:high].clone().to(device)
            for value in (flat, gradient, torch.zeros_like(flat), torch.zeros_like(flat), torch.zeros_like(flat))
        ]
        layout = fused.lay_out([end - begin for begin, end in pairwise(boundaries)], decays, device)
        addresses = fused.addresses_of(*(fused.cut_flat(value, boundaries) for value in own))
        ranks.append((own, layout, addresses, fused.prepare_lamb(layout, addresses, 1, OPTIONS["betas"], OPTIONS["eps"])))
    norms = torch.stack([norm for *_, norm in ranks]).sum(0)
    assert norms.shape == (5, 2) and (norms > 0).all()
    for own, layout, addresses, _ in ranks:
        fused.finish_lamb(layout, addresses, norms, OPTIONS["lr"])
        found.append(own[0].cpu())
    compare([torch.cat(found)], [torch.cat([weight.detach() for weight in weights])])
    if world > 1:  # each rank's own norms alone would give another step
        assert not torch.allclose(ranks[0][3], norms)


def test_other_precisions_and_strides_are_refused(device: str) -> None:
    weights = [torch.randn(4, 6, device=device).t()]
    with pytest.raises(ValueError, match="contiguous and fp32"):
        fused.addresses_of(weights, weights)


def test_a_step_keeps_no_gradient_alive_and_lays_out_once(device: str) -> None:
    weights = [torch.randn(3000, device=device, requires_grad=True)]
    optimizer = fused.Lamb(weights, **OPTIONS)
    for _ in range(3):
        weights[0].grad = torch.randn_like(weights[0])
        alive = weakref.ref(weights[0].grad)
        optimizer.step()
        optimizer.zero_grad()
        assert alive() is None
    assert len(optimizer._layouts) == 1


def test_a_run_goes_on_with_another_implementation(device: str) -> None:
    """State has torch's names: ours continues where torch's AdamW stopped."""
    gradients = [torch.randn(50, 3, device=device) for _ in range(4)]
    start = torch.randn(50, 3, device=device)
    found = []
    for second in (torch.optim.AdamW, fused.AdamW):
        weight = start.clone().requires_grad_()
        first = torch.optim.AdamW([weight], **OPTIONS)
        for gradient in gradients[:2]:
            weight.grad = gradient.clone()
            first.step()
        made = second([weight], **OPTIONS)
        made.load_state_dict(first.state_dict())
        for gradient in gradients[2:]:
            weight.grad = gradient.clone()
            made.step()
        found.append(weight.detach().cpu())
    compare(found[1:], found[:1])
