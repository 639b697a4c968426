"""The whole encoder trained with kernels on, next to plain torch."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from remask.model.config import EncoderConfig
from remask.model.heads import PretrainingModel
from remask.model.kernels import dropping, embedding, norm
from remask.model.kernels.choose import Machine, build_operations, choose_kernels
from remask.model.operations import REFERENCE
from remask.model.optimizers import Lamb, adamw

TINY: dict[str, Any] = {"vocab_size": 60, "hidden": 16, "layers": 2, "heads": 2, "ffn": 24, "positions": 16, "init_std": 0.1}


def kernels(device: str) -> Any:
    return choose_kernels(Machine(device=device, architecture=80, packages=("triton",)), pin="triton", interpreted=device == "cpu")


def losses(config: EncoderConfig, operations: Any, optimizer: Any, device: str, fraction: float = 0.0) -> list[float]:
    torch.manual_seed(1)
    model = PretrainingModel(config, sentence_task=True, operations=operations).to(device).train()
    model.encoder.recompute(fraction)
    made = optimizer(model.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01)
    found = []
    for step in range(3):
        torch.manual_seed(10 + step)
        ids, offsets, positions = torch.randint(5, 60, (24,)), torch.tensor([0, 9, 15, 24]), torch.tensor([2, 5, 11, 20])
        inputs = [tensor.to(device) for tensor in (ids, offsets, positions, ids[positions])]
        parts = model(*inputs, labels=torch.tensor([1, 0, -1], device=device))
        loss = sum(part.sum / part.counted for part in parts.values())
        made.zero_grad()
        loss.backward()
        made.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"norm": "pre", "activation": "gelu-tanh"}, {"embedding": 8, "sharing": "all", "z_loss": 1e-3}],
)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_three_steps_give_the_losses_of_plain_torch(options: dict[str, Any], optimizer: str, device: str) -> None:
    config = EncoderConfig(**TINY, **options, dropout=0.0, attention_dropout=0.0)
    choices = kernels(device)
    assert {choice.rung for choice in choices.values()} == {"triton"}
    fused = losses(config, build_operations(choices), choices[optimizer].load(), device)
    plain = losses(config, REFERENCE, {"adamw": adamw, "lamb": Lamb}[optimizer], device)
    assert max(plain) - min(plain) > 0.1, "nothing was learned"
    assert fused == pytest.approx(plain, rel=1e-4)


def test_a_shared_layer_draws_a_mask_of_its_own_at_every_use(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def record(rate: float) -> int:
        seeds.append(dropping.draw_seed(rate))
        return seeds[-1]

    for module in (norm, embedding):
        monkeypatch.setattr(module, "draw_seed", record)
    config = EncoderConfig(**{**TINY, "layers": 12}, sharing="all", dropout=0.1, attention_dropout=0.0)
    model = PretrainingModel(config, sentence_task=False, operations=build_operations(kernels(device))).to(device).train()
    for _ in range(2):
        model.encoder(torch.arange(5, 15, device=device), torch.tensor([0, 10]))
    assert len(seeds) == 2 * (1 + 2 * 12) and len(set(seeds)) == len(seeds)


def test_recomputed_layers_get_the_same_masks(device: str) -> None:
    config = EncoderConfig(**TINY, dropout=0.3, attention_dropout=0.0)
    operations = build_operations(kernels(device))
    kept, recomputed = (losses(config, operations, adamw, device, fraction) for fraction in (0.0, 1.0))
    assert kept == recomputed
    without = losses(replace(config, dropout=0.0), operations, adamw, device)
    assert without != kept, "dropout is off"
