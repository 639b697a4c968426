"""`--micro-batch auto`: as many rows as fit on every rank, found by a real pass."""

from typing import Any

import pytest
import torch
from launcher.training.pretended import PretendedPeers

from remask.launcher.build import build_model
from remask.launcher.config import RunConfig, load
from remask.launcher.errors import UserError
from remask.launcher.training import memory
from remask.model.heads import PretrainingModel

LENGTH, ROWS = 32, 64
CPU = torch.device("cpu")
Found = tuple[RunConfig, PretrainingModel]


@pytest.fixture
def small() -> Found:
    shape = {"vocab_size": 200, "hidden": 32, "heads": 2, "layers": 2, "ffn": 64, "positions": LENGTH, "embedding": 16}
    config = load("albert-tiny", {"model": shape, "data": {"batch_rows": ROWS, "pack": {"sequence_length": LENGTH}}})
    return config, build_model(config.model, config.engine, sentence_task=True, seed=1)


def give(free: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free_bytes", lambda device: int(free))


def let_run_out_above(rows: int, model: PretrainingModel) -> list[int]:
    """The allocator's own error, for more rows than these; the rows of every pass."""
    tried: list[int] = []

    def ask_for_too_much(module: torch.nn.Module, args: Any, arguments: dict[str, torch.Tensor]) -> None:
        tried.append(len(arguments["offsets"]) - 1)
        if tried[-1] > rows:
            torch.empty(1 << 55, dtype=torch.uint8)

    model.register_forward_pre_hook(ask_for_too_much, with_kwargs=True)
    return tried


def test_what_the_free_memory_holds_is_taken_and_never_more_than_a_ranks_share_of_the_batch(
    small: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, model = small
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    for world, ranks_here in ((1, 1), (4, 2)):
        needed = memory.estimate_memory(config, trained, world)
        give(ranks_here * (needed.states + 5.5 * LENGTH * needed.activations_per_token) / 0.85, monkeypatch)
        assert memory.find_micro_batch(config, model, PretendedPeers(world), CPU, ranks_here) == 5 * LENGTH
        give(1e12, monkeypatch)
        assert memory.find_micro_batch(config, model, PretendedPeers(world), CPU, ranks_here) == ROWS // world * LENGTH
    assert all(weight.grad is None for weight in model.parameters()), "the trial must leave nothing behind"


def test_rows_are_halved_until_a_real_pass_has_the_memory(small: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    config, model = small
    give(1e12, monkeypatch)
    tried = let_run_out_above(10, model)
    assert memory.find_micro_batch(config, model, PretendedPeers(1), CPU, 1) == 8 * LENGTH
    assert tried == [64, 32, 16, 8]


def test_the_rank_that_has_least_decides(small: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    config, model = small
    give(1e12, monkeypatch)
    fewer = PretendedPeers(2, lambda rows, rank: rows - 29)
    assert memory.find_micro_batch(config, model, fewer, CPU, 1) == 3 * LENGTH


def test_a_row_that_does_not_fit_ends_the_run_and_another_error_is_not_hidden(small: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    config, model = small
    give(1e12, monkeypatch)
    let_run_out_above(0, model)
    with pytest.raises(UserError, match=rf"not even one row of {LENGTH} tokens fits: .* GB are free here; raise engine\.zero_stage"):
        memory.find_micro_batch(config, model, PretendedPeers(1), CPU, 1)
    config, model = small[0], build_model(config.model, config.engine, sentence_task=True, seed=1)
    model.register_forward_pre_hook(lambda *_: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        memory.find_micro_batch(config, model, PretendedPeers(1), CPU, 1)
