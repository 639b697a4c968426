"""Counted operations against what torch sees."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from remask.model.config import EncoderConfig
from remask.model.flops import count_flops
from remask.model.heads import PretrainingModel, sentence_loss


@pytest.mark.parametrize("lengths", [[12, 12, 12], [3, 17, 8, 17, 1]])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"embedding": 8, "sharing": "all"},
        {"embedding": 4, "sharing": "attention", "norm": "pre"},
        {"sharing": "ffn", "groups": 2},
    ],
)
def test_forward_and_backward_are_torchs(options: dict[str, Any], lengths: list[int]) -> None:
    config = EncoderConfig(vocab_size=70, hidden=16, layers=4, heads=4, ffn=40, positions=32, dropout=0.0, attention_dropout=0.0, **options)
    model = PretrainingModel(config, sentence_task=True)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    ids = torch.randint(5, 70, (int(offsets[-1]),))
    positions = torch.arange(0, len(ids), 5)
    counted = count_flops(config, lengths, len(positions), len(lengths))
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            scores, sentence = model.score(ids, offsets, positions)
        assert sentence is not None
        loss = torch.nn.functional.cross_entropy(scores, ids[positions]) + sentence_loss(sentence, torch.zeros(len(lengths))).sum
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    assert forward.get_total_flops() == counted.forward > 10_000
    assert backward.get_total_flops() == counted.backward
