"""Which weights are decayed and at which rate they learn."""

import pytest
import torch

from remask.launcher.errors import UserError
from remask.launcher.optimizer import OptimizerConfig, parameter_groups
from remask.model.config import EncoderConfig
from remask.model.heads import PretrainingModel


def groups_of(config: OptimizerConfig) -> dict[str, dict[str, float]]:
    model = PretrainingModel(EncoderConfig(vocab_size=50, hidden=16, layers=2, heads=2, ffn=24, sharing="all"), sentence_task=True)
    groups = parameter_groups(model.named_parameters(), config)
    torch.optim.AdamW(groups)  # takes them as they are, each weight once
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters())) > 20
    return {name: {"lr": group["lr"], "decay": group["weight_decay"]} for group in groups for name in group["names"]}


def test_biases_and_norms_are_not_decayed() -> None:
    found = groups_of(OptimizerConfig(lr=1e-3, weight_decay=0.01))
    for name, values in found.items():
        assert values == {"lr": 1e-3, "decay": 0.0 if name.endswith("bias") or "norm" in name else 0.01}, name


def test_rates_are_scaled_by_the_first_pattern_that_fits() -> None:
    found = groups_of(
        OptimizerConfig(lr=1e-3, lr_scales=(("encoder.embeddings.words.*", 0.5), ("encoder.embeddings.*", 0.1), ("*.bias", 2.0)))
    )
    assert found["encoder.embeddings.words.weight"] == {"lr": 5e-4, "decay": 0.01}
    assert found["encoder.embeddings.norm.bias"] == {"lr": 1e-4, "decay": 0.0}
    assert found["encoder.pooler.bias"] == {"lr": 2e-3, "decay": 0.0}
    assert found["encoder.pooler.weight"] == {"lr": 1e-3, "decay": 0.01}


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"no weight is called 'embeddings\.\*'"):
        groups_of(OptimizerConfig(lr_scales=(("embeddings.*", 0.1),)))
    with pytest.raises(ValueError, match=r"lr_scales: -1\.0 was given for a"):
        OptimizerConfig(lr_scales=(("a", -1.0),))
