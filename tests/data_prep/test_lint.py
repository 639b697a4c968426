"""The mask linter passes what our masker makes, and catches what went wrong in others for months."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from remask.data_prep.keys import row_keys
from remask.data_prep.lint import lint
from remask.data_prep.masking import MaskingConfig, Strategy
from remask.data_prep.masks import PROTECTED, WORD_START, Masked, Masker
from remask.data_prep.rows import Rows

VOCABULARY, MASK_ID, CLS, SEP = 500, 4, 2, 3
ORDINARY = np.arange(5, VOCABULARY, dtype=np.int32)


def rows_of(count: int = 300) -> Rows:
    rng = np.random.default_rng(2)
    lengths = rng.integers(60, 128, count)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    size = int(offsets[-1])
    ids = rng.integers(5, VOCABULARY, size).astype(np.int32)
    marks = (rng.random(size) < 0.7).astype(np.uint8) * np.uint8(WORD_START)
    for places, token in ((offsets[:-1], CLS), (offsets[1:] - 1, SEP)):
        ids[places], marks[places] = token, PROTECTED | WORD_START
    return Rows(
        ids=ids, offsets=offsets, marks=marks, segments=np.zeros_like(marks), labels=np.full(count, -1, dtype=np.int8), documents=None
    )


def masked_of(config: MaskingConfig, rows: Rows, epochs: int = 3, seed: int = 0) -> list[Masked]:
    masker = Masker(config=config, mask_id=MASK_ID, ordinary=ORDINARY)
    found = []
    for epoch in range(epochs):
        keys = row_keys(np.uint64(1000 * (seed + 1) + config.refresh_of(epoch)), np.arange(len(rows.labels)))
        found.append(masker(rows.ids.copy(), rows.offsets, rows.marks, keys, np.full(len(keys), config.rate)))
    return found


def verdicts(config: MaskingConfig, rows: Rows, masked: list[Masked]) -> dict[str, bool]:
    findings = lint(config, rows, masked, MASK_ID, ORDINARY)
    assert all(finding.expected and finding.observed and finding.how for finding in findings)
    return {re.sub(r" \d+ and \d+", "", finding.name): finding.ok for finding in findings}


@pytest.mark.parametrize("strategy", ["token", "whole-word", "ngram", "span", "phrase", "similar"])
@pytest.mark.parametrize("options", [{}, {"rate": 0.4, "mask_share": 0.5, "random_share": 0.5}, {"refresh": "never"}])
def test_our_masks_pass(strategy: Strategy, options: dict[str, object]) -> None:
    config = MaskingConfig(strategy=strategy, **options)  # type: ignore[arg-type]
    rows = rows_of()
    found = verdicts(config, rows, masked_of(config, rows))
    assert len(found) >= 8 and all(found.values()), found


def with_targets(rows: Rows, masked: Masked, positions: np.ndarray) -> Masked:
    """The same, with other places masked."""
    inputs = rows.ids.copy()
    tenth = np.arange(len(positions)) % 10
    inputs[positions] = np.select([tenth == 8, tenth == 9], [77, inputs[positions]], MASK_ID)
    drawn = np.ones(len(positions), dtype=np.int16)
    return replace(masked, inputs=inputs, positions=positions.astype(np.int32), targets=rows.ids[positions], drawn=drawn)


def drawn_with_replacement(rows: Rows, masked: Masked) -> Masked:
    rng = np.random.default_rng(len(masked.positions))
    positions = []
    for begin, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
        wanted = max(1, int(0.15 * (end - begin - 2) + 0.5))
        positions.append(np.unique(rng.integers(begin + 1, end - 1, wanted)))
    return with_targets(rows, masked, np.concatenate(positions))


def without_random_tokens(rows: Rows, masked: Masked) -> Masked:
    inputs = masked.inputs.copy()
    now = inputs[masked.positions]
    inputs[masked.positions] = np.where((now != MASK_ID) & (now != masked.targets), masked.targets, now)
    return replace(masked, inputs=inputs)


def with_cls_masked(rows: Rows, masked: Masked) -> Masked:
    positions = np.sort(np.append(masked.positions[1:], rows.offsets[7]))
    return with_targets(rows, masked, positions)


def with_a_special_token_as_random(rows: Rows, masked: Masked) -> Masked:
    inputs = masked.inputs.copy()
    inputs[masked.positions[5]] = SEP
    return replace(masked, inputs=inputs)


def with_a_row_unmasked(rows: Rows, masked: Masked) -> Masked:
    keep = (masked.positions < rows.offsets[3]) | (masked.positions >= rows.offsets[4])
    return with_targets(rows, masked, masked.positions[keep])


def with_one_random_token(rows: Rows, masked: Masked) -> Masked:
    inputs = masked.inputs.copy()
    now = inputs[masked.positions]
    inputs[masked.positions] = np.where((now != MASK_ID) & (now != masked.targets), 99, now)
    return replace(masked, inputs=inputs)


def with_targets_twice(rows: Rows, masked: Masked) -> Masked:
    again = np.repeat(masked.positions, 1 + (np.arange(len(masked.positions)) == 3))
    return replace(masked, positions=again, targets=rows.ids[again], drawn=np.ones(len(again), dtype=np.int16))


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        (with_one_random_token, "different random tokens"),
        (with_targets_twice, "targets that come twice"),
        (drawn_with_replacement, "rate"),
        (without_random_tokens, "mask/random/kept"),
        (with_cls_masked, "protected tokens masked"),
        (with_a_special_token_as_random, "random tokens that are not ordinary"),
        (with_a_row_unmasked, "rows without a target"),
    ],
)
def test_faults_are_caught(fault: Callable[[Rows, Masked], Masked], caught_by: str) -> None:
    config, rows = MaskingConfig(), rows_of()
    masked = masked_of(config, rows)
    assert all(verdicts(config, rows, masked).values())
    assert not verdicts(config, rows, [fault(rows, each) for each in masked])[caught_by]


def test_replacement_is_caught_for_whole_words_too() -> None:
    config, rows = MaskingConfig(strategy="whole-word"), rows_of()
    masked = masked_of(config, rows)
    some_lost = []
    for each in masked:
        units = np.cumsum((rows.marks & WORD_START) != 0)[each.positions]
        keep = ~np.isin(units, np.unique(units)[::14])  # what drawing with replacement loses at 15%
        some_lost.append(with_targets(rows, each, each.positions[keep]))
    assert not verdicts(config, rows, some_lost)["rate"]


def test_an_epoch_that_does_not_arrive_is_caught() -> None:
    config, rows = MaskingConfig(), rows_of()
    static = masked_of(MaskingConfig(refresh="never"), rows)
    assert not verdicts(config, rows, static)["overlap of epochs"]
    assert not verdicts(MaskingConfig(refresh="never"), rows, masked_of(config, rows))["overlap of epochs"]
    first, second, _ = masked_of(config, rows)
    assert not verdicts(config, rows, [first, second, first])["overlap of epochs"], "an epoch that comes back"
    assert not verdicts(MaskingConfig(refresh="copies", copies=2), rows, masked_of(config, rows))["overlap of epochs"]
    assert verdicts(MaskingConfig(refresh="copies", copies=2), rows, [first, second, first])["overlap of epochs"]


@pytest.mark.parametrize("strategy", ["ngram", "span", "similar"])
def test_runs_of_other_lengths_are_caught_whatever_the_masker_says_it_drew(strategy: Strategy) -> None:
    config, rows = MaskingConfig(strategy=strategy), rows_of()
    singles = masked_of(MaskingConfig(strategy="whole-word"), rows)
    rng = np.random.default_rng(3)
    told = []
    for each in singles:
        lengths = rng.choice(len(config.words_together), len(each.drawn), p=config.words_together) + 1
        told.append(replace(each, drawn=np.where(each.drawn > 0, lengths, 0).astype(np.int16)))
    assert not verdicts(config, rows, told)["words in a run"]


@pytest.mark.parametrize("strategy", ["token", "whole-word", "ngram", "span", "similar"])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_few_rows_raise_no_false_alarm(strategy: Strategy, count: int) -> None:
    rows = rows_of(count)
    for rate in (0.05, 0.15):
        for seed in range(20):
            config = MaskingConfig(strategy=strategy, rate=rate)
            found = verdicts(config, rows, masked_of(config, rows, seed=seed))
            assert all(found.values()), (seed, found)


@pytest.mark.parametrize("strategy", ["whole-word", "ngram", "span"])
def test_word_pieces_masked_alone_are_caught(strategy: Strategy) -> None:
    rows = rows_of()
    alone = masked_of(MaskingConfig(), rows)
    found = verdicts(MaskingConfig(strategy=strategy), rows, alone)
    assert not found["words masked in part"]
    if strategy != "whole-word":
        assert not found["words in a run"], "all runs are one long"
