"""The config's engine settings reach the model that is built."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from remask.launcher.build import build_model
from remask.launcher.engine import EngineConfig
from remask.launcher.errors import UserError
from remask.model.chunked_head import chunked_target_loss
from remask.model.config import EncoderConfig
from remask.model.operations import REFERENCE

CONFIG = EncoderConfig(vocab_size=50, hidden=16, layers=4, heads=2, ffn=24, positions=16)
ENGINE = EngineConfig(zero_stage=0, precision="fp32")


def build(**options: Any) -> Any:
    return build_model(CONFIG, replace(ENGINE, **options), sentence_task=True, seed=3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU gets other kernels")
def test_kernels_are_chosen_and_can_be_pinned() -> None:
    assert build().masked_tokens.operations.target_loss is chunked_target_loss
    assert build(kernels="torch").masked_tokens.operations == REFERENCE
    with pytest.raises(UserError, match=r"engine\.kernels: triton was given, but triton: no GPU"):
        build(kernels="triton")


def test_layers_are_recomputed_and_compiled_as_asked() -> None:
    plain, asked = build(), build(activation_checkpointing=0.5, compile=True)
    assert not plain.encoder.recomputed and plain.encoder.ffns[0]._compiled_call_impl is None
    assert len(asked.encoder.recomputed) == 2 and asked.encoder.ffns[0]._compiled_call_impl is not None


def test_one_seed_gives_one_model() -> None:
    first, second = (build().state_dict() for _ in range(2))
    assert len(first) > 20 and all(torch.equal(first[name], second[name]) for name in first)
    other = build_model(CONFIG, ENGINE, sentence_task=True, seed=4).state_dict()
    assert not torch.equal(first["encoder.pooler.weight"], other["encoder.pooler.weight"])


def test_a_foreign_apex_is_named_and_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "apex.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        build()
    assert f"{tmp_path / 'apex.py'} is not NVIDIA's and is ignored" in caplog.text
