"""The CPU's own dropout against plain torch with the same mask."""

import pytest
import torch

from remask.model.dropout import _drop, attend_with_dropout, dropout


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5])
def test_the_rate_and_the_mean_are_kept(rate: float) -> None:
    torch.manual_seed(1)
    values = torch.ones(1000, 999)
    kept = dropout(values, rate)
    share = (kept == 0).double().mean().item()
    error = (rate * (1 - rate) / values.numel()) ** 0.5
    assert abs(share - rate) < 5 * error + 1e-5
    assert kept.mean().item() == pytest.approx(1, abs=5 * error / (1 - rate) + 1e-5)
    # Each of the four numbers of a draw, and neighbours among them, are independent.
    zeros = (kept.flatten()[: 4 * 249_000] == 0).double().view(-1, 4)
    assert (zeros.mean(0) - rate).abs().max() < 10 * error
    covariance = torch.cov(zeros.T)
    assert (covariance - torch.eye(4) * rate * (1 - rate)).abs().max() < 10 * error


def test_a_rate_of_0_does_nothing() -> None:
    values = torch.randn(7, 3)
    assert dropout(values, 0.0) is values


def test_the_gradient_has_the_mask_of_the_forward_pass() -> None:
    values = torch.randn(50, 31, requires_grad=True)
    dropped = dropout(values, 0.3)
    dropped.backward(torch.full_like(dropped, 2.0))
    assert values.grad is not None and (dropped == 0).any()
    torch.testing.assert_close(values.grad, 2.0 * torch.where(dropped == 0, 0.0, dropped / values).detach())
    assert not torch.equal(dropout(values, 0.3), dropped), "the mask repeats"


@pytest.mark.parametrize("shape", [(2, 3, 9, 4), (1, 1, 1, 8)])
def test_attention_has_the_gradients_of_plain_torch_with_its_mask(shape: tuple[int, ...]) -> None:
    queries, keys, values = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    torch.manual_seed(5)
    mixed = attend_with_dropout(queries, keys, values, 0.4)
    upstream = torch.randn_like(mixed)
    found = torch.autograd.grad(mixed, (queries, keys, values), upstream)
    weights = torch.softmax(queries @ keys.mT / shape[-1] ** 0.5, dim=-1)
    torch.manual_seed(5)
    _, kept, scale = _drop(weights, 0.4)
    assert shape[2] == 1 or 0.2 < kept.double().mean() < 0.9
    wanted = (weights * kept * scale) @ values
    torch.testing.assert_close(mixed, wanted)
    for mine, plain in zip(found, torch.autograd.grad(wanted, (queries, keys, values), upstream), strict=True):
        torch.testing.assert_close(mine, plain)
