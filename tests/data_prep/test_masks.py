"""Masking: the fast code equals the readable one bit for bit, keeps its promises on any row, and draws what the papers say."""

from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remask.data_prep import masks_reference
from remask.data_prep.keys import row_keys
from remask.data_prep.masking import MaskingConfig, Strategy
from remask.data_prep.masks import FILL, INSIDE_PHRASE, PROTECTED, WORD_START, Masked, Masker
from remask.data_prep.similar import make_similar

VOCABULARY = 60
MASK_ID = 4
ORDINARY = np.arange(5, VOCABULARY, dtype=np.int32)
SIMILAR = make_similar(
    {(w,): [(w + 1 if w < 58 else 5,), (7,)] for w in range(5, 40)} | {(6, 9): [(8, 8), (9, 9)], (10, 11, 12): [(13, 14, 15)]}
)
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


def rows_of(
    lengths: list[int], seed: int, word_rate: float = 0.7, protected_rate: float = 0.05, phrase_rate: float = 0.1
) -> dict[str, Any]:
    """Rows of random tokens with random words, phrases and separators."""
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    size = int(offsets[-1])
    ids = rng.integers(5, VOCABULARY, size).astype(np.int32)
    marks = np.where(rng.random(size) < word_rate, WORD_START, 0).astype(np.uint8)
    marks |= np.where(rng.random(size) < phrase_rate, INSIDE_PHRASE, 0).astype(np.uint8)
    protected = rng.random(size) < protected_rate
    protected[offsets[:-1]] = True
    ids[protected], marks[protected] = 2, WORD_START | PROTECTED
    keys = row_keys(np.uint64(seed), np.arange(len(lengths)))
    return {"ids": ids, "offsets": offsets, "marks": marks, "keys": keys}


def masker_of(strategy: Strategy, **options: Any) -> Masker:
    return Masker(config=MaskingConfig(strategy=strategy, **options), mask_id=MASK_ID, ordinary=ORDINARY, similar=SIMILAR)


def rates_of(rows: dict[str, Any], rate: float = 0.15) -> np.ndarray:
    return np.full(len(rows["keys"]), rate)


@settings(max_examples=300)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=5),
    strategy=st.sampled_from(STRATEGIES),
    seed=st.integers(0, 2**32),
    rate=st.floats(0.01, 0.9),
    word_rate=st.sampled_from([0.1, 0.5, 0.8, 1.0]),
    protected_rate=st.sampled_from([0.0, 0.05, 0.6]),
    shares=st.sampled_from([(0.8, 0.1), (0.0, 1.0), (1.0, 0.0), (0.3, 0.3)]),
)
def test_the_fast_code_equals_the_reference(
    lengths: list[int], strategy: Strategy, seed: int, rate: float, word_rate: float, protected_rate: float, shares: tuple[float, float]
) -> None:
    rows = rows_of(lengths, seed, word_rate, protected_rate)
    masker = masker_of(strategy, mask_share=shares[0], random_share=shares[1])
    slow = masks_reference.mask(masker, **rows, rates=rates_of(rows, rate))
    fast = masker(**rows, rates=rates_of(rows, rate))
    assert len(fast.positions) or (rows["marks"] & PROTECTED).all()
    for name in ("inputs", "positions", "targets", "drawn"):
        assert getattr(fast, name).tolist() == getattr(slow, name).tolist(), name


def words_in(marks: np.ndarray, begin: int, end: int, phrases: bool) -> list[list[int]]:
    words: list[list[int]] = []
    for place in range(begin, end):
        first = place == begin or marks[place - 1] & PROTECTED
        if marks[place] & PROTECTED:
            continue
        if first or (marks[place] & WORD_START and not (phrases and marks[place] & INSIDE_PHRASE)):
            words.append([])
        words[-1].append(place)
    return words


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    strategy=st.sampled_from(STRATEGIES),
    seed=st.integers(0, 2**32),
    rate=st.floats(0.01, 0.6),
)
def test_promises_hold_on_any_rows(lengths: list[int], strategy: Strategy, seed: int, rate: float) -> None:
    rows = rows_of(lengths, seed)
    masked = masker_of(strategy)(**{**rows, "ids": rows["ids"].copy()}, rates=rates_of(rows, rate))
    ids, marks, offsets = rows["ids"], rows["marks"], rows["offsets"]
    assert masked.targets.tolist() == ids[masked.positions].tolist()
    assert not (marks[masked.positions] & PROTECTED).any(), "a protected token is never a target"
    untouched = np.ones(len(ids), dtype=bool)
    untouched[masked.positions] = False
    assert np.array_equal(masked.inputs[untouched], ids[untouched]), "what is no target stays"
    changed = masked.inputs[masked.positions]
    assert np.all(np.isin(changed, [*ORDINARY.tolist(), MASK_ID])), "random tokens are ordinary ones"
    for begin, end in pairwise(offsets):
        here = set(masked.positions[(masked.positions >= begin) & (masked.positions < end)].tolist())
        maskable = int(np.count_nonzero(~(marks[begin:end] & PROTECTED).astype(bool)))
        budget = max(1, int(rate * maskable + 0.5)) if maskable else 0
        if strategy == "token":
            assert len(here) == budget
            continue
        words = words_in(marks, int(begin), int(end), strategy == "phrase")
        assert all(here.issuperset(word) or here.isdisjoint(word) for word in words), "words are masked whole or not at all"
        assert bool(here) == bool(maskable)
        within = [word for word in words if here.issuperset(word)]
        assert len(here) <= budget or len(within) == 1, "only a first unit that is too long exceeds the budget"
        left = budget - len(here)
        if strategy not in ("whole-word", "phrase"):
            continue
        assert not [word for word in words if len(word) <= left and here.isdisjoint(word)], "what still fits is taken"


def many_rows(strategy: Strategy, **options: Any) -> tuple[dict[str, Any], Masked]:
    rows = rows_of([512] * 400, 7, word_rate=0.75, protected_rate=0.005, phrase_rate=0.0)
    return rows, masker_of(strategy, **options)(**rows, rates=rates_of(rows))


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """How likely a deviation at least as large is by chance, for counts that should be in these proportions."""
    expected = expected / expected.sum() * observed.sum()
    deviation = ((observed - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(observed) - 1) / 2), torch.tensor(deviation / 2)))


@pytest.mark.parametrize(
    ("strategy", "paper"),
    [
        ("ngram", [6 / 11, 3 / 11, 2 / 11]),
        ("span", [0.2 * 0.8**n / (1 - 0.8**10) for n in range(10)]),
        ("similar", [0.4, 0.3, 0.2, 0.1]),
    ],
)
def test_run_lengths_are_those_of_the_papers(strategy: Strategy, paper: list[float]) -> None:
    _, masked = many_rows(strategy)
    lengths = masked.drawn[(masked.drawn > 0) & (masked.drawn != FILL)]
    observed = np.bincount(lengths, minlength=len(paper) + 1)[1:]
    assert observed.sum() > 4000
    assert chi_square(observed, np.array(paper)) > 0.001
    assert np.count_nonzero(masked.drawn == FILL) < 0.02 * observed.sum()
    if strategy == "span":
        assert np.average(np.arange(1, 11), weights=paper) == pytest.approx(3.8, abs=0.05), "the paper's mean"


@pytest.mark.parametrize("strategy", ["token", "whole-word", "ngram", "phrase"])
def test_eighty_ten_ten_is_drawn_for_each_token(strategy: Strategy) -> None:
    _, masked = many_rows(strategy)
    now = masked.inputs[masked.positions]
    kept, masks = np.count_nonzero(now == masked.targets), np.count_nonzero(now == MASK_ID)
    by_chance = 0.1 / len(ORDINARY)  # a random token can be the one that stood there
    observed = np.array([masks, len(now) - masks - kept, kept])
    assert chi_square(observed, np.array([0.8, 0.1 - by_chance, 0.1 + by_chance])) > 0.001


def test_a_span_is_masked_made_random_or_kept_as_a_whole() -> None:
    _, masked = many_rows("span")
    starts = np.flatnonzero(masked.drawn > 0)
    kinds = []
    for begin, end in zip(starts, [*starts[1:], len(masked.drawn)], strict=True):
        now, then = masked.inputs[masked.positions[begin:end]], masked.targets[begin:end]
        if np.all(now == MASK_ID):
            kinds.append("mask")
        else:
            assert MASK_ID not in now
            kinds.append("kept" if np.array_equal(now, then) else "random")
    observed = np.array([kinds.count(kind) for kind in ("mask", "random", "kept")])
    assert chi_square(observed, np.array([0.8, 0.1, 0.1])) > 0.001


def test_a_similar_word_has_as_many_tokens_and_no_mask_is_seen() -> None:
    _, masked = many_rows("similar")
    assert MASK_ID not in masked.inputs
    singles = [(int(then), int(masked.inputs[place])) for place, then in zip(masked.positions, masked.targets, strict=True) if then < 40]
    followed = sum(now in (then + 1, 7) for then, now in singles) / len(singles)
    assert followed > 0.4, "words of one token are most often replaced by one of their two similar words"


def test_every_place_is_masked_equally_often() -> None:
    """No place of a row is favoured: over many rows, masks per place follow the binomial distribution."""
    for strategy in ("token", "whole-word"):
        rows = rows_of([64] * 20_000, 3, word_rate=1.0, protected_rate=0.0)
        masked = masker_of(strategy)(**rows, rates=rates_of(rows))  # type: ignore[arg-type]
        observed = np.bincount(masked.positions % 64, minlength=64)
        assert observed[0] == 0, "the first token is protected"
        assert chi_square(observed[1:], np.ones(63)) > 0.001
