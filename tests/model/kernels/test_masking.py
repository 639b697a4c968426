"""Masks on the device against the loader's, bit for bit."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from remask.data_prep.masking import MaskingConfig
from remask.data_prep.masks import Masker
from remask.model.kernels import masking


def rows_of(rng: np.random.Generator, lengths: list[int]) -> dict[str, Any]:
    offsets = np.array([0, *np.cumsum(lengths)], dtype=np.int32)
    size = int(offsets[-1])
    marks = (rng.random(size) < 0.6).astype(np.uint8) | (2 * (rng.random(size) < 0.1)).astype(np.uint8)
    marks[offsets[:-1]] = 3
    return {
        "ids": rng.integers(5, 900, size).astype(np.int32), "offsets": offsets, "marks": marks,
        "keys": rng.integers(0, 2**64, len(lengths), dtype=np.uint64), "rates": np.full(len(lengths), 0.15),
    }  # fmt: skip


def compare(module: Any, strategy: Any, device: str, seed: int, lengths: list[int], rate: float = 0.15) -> int:
    rows = rows_of(np.random.default_rng(seed), lengths)
    rows["rates"][:] = rate
    masker = Masker(config=MaskingConfig(strategy=strategy), mask_id=4, ordinary=np.arange(5, 900, dtype=np.int32))
    wanted = masker(**{name: values.copy() for name, values in rows.items()})
    tensors = {name: torch.from_numpy(values.view(np.int64) if name == "keys" else values).to(device) for name, values in rows.items()}
    mask_below, random_below = (int(threshold) for threshold in masker.thresholds)
    how = {"mask_below": mask_below, "random_below": random_below, "mask_id": 4, "ordinary": torch.arange(5, 900, device=device)}
    if strategy == "token":
        found = module.mask_tokens(*tensors.values(), how)
    else:
        found = module.mask_spans(*tensors.values(), how, torch.from_numpy(masker.run_thresholds.astype(np.int64)).to(device))
    for mine, other in zip(found, (wanted.inputs, wanted.positions, wanted.targets), strict=True):
        assert mine.cpu().tolist() == other.tolist(), "other masks"
    return len(wanted.positions)


@pytest.mark.parametrize("strategy", ["token", "span"])
@pytest.mark.parametrize("seed", range(3))
def test_masks_are_the_loaders(strategy: str, seed: int, device: str) -> None:
    assert compare(masking, strategy, device, seed, [40, 3, 17, 64, 1, 2, 33]) > 15


@pytest.mark.parametrize("strategy", ["token", "span"])
@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9])
def test_masks_are_the_loaders_at_any_rate(strategy: str, rate: float, device: str) -> None:
    """At high rates runs find no place any more and single words fill the budget."""
    assert compare(masking, strategy, device, 7, [30, 8, 21], rate) > 2


def test_a_row_that_cannot_be_masked_stays_as_it_is(device: str) -> None:
    for strategy in ("token", "span"):
        assert compare(masking, strategy, device, 1, [1, 1]) == 0


@pytest.mark.parametrize(
    ("right", "wrong"), [("0xBF58476D1CE4E5B9", "0xBF58476D1CE4E5B7"), ("(places == _below(length", "(places + 1 == _below(length")]
)
def test_a_broken_hash_is_noticed(right: str, wrong: str, broken: Callable[[ModuleType, str, str], ModuleType], device: str) -> None:
    with pytest.raises(AssertionError, match="other masks"):
        compare(broken(masking, right, wrong), "token", device, 0, [40, 33])


@pytest.mark.parametrize(("right", "wrong"), [("misses += 1 - placed", "misses += 1"), ("end - start > left", "end - start > left + 1")])
def test_broken_spans_are_noticed(right: str, wrong: str, broken: Callable[[ModuleType, str, str], ModuleType], device: str) -> None:
    with pytest.raises(AssertionError, match="other masks"):
        for seed in range(3):
            compare(broken(masking, right, wrong), "span", device, seed, [64, 60, 63], rate=0.5)


def test_rows_that_do_not_fit_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="a row of 3000 tokens was given, at most 2048"):
        compare(masking, "token", device, 0, [3000])
