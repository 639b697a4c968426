"""Duplicates: the first stays, whatever the passes; near ones as the theory says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.data_prep import duplicates
from remask.data_prep.duplicates import mark_duplicates
from remask.data_prep.minhash import band_keys, bands_for

keys = st.lists(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1]), max_size=12), max_size=5)


@given(keys, st.sampled_from([1, 3, 1 << 24]))
def test_all_but_the_first_of_equal_documents_are_marked(items: list[list[int]], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_MAX_HASHES", at_once)
        marks = mark_duplicates([np.array(item, dtype=np.uint64).reshape(-1, 1) for item in items])
    seen: set[int] = set()
    for item, mark in zip(items, marks, strict=True):
        for key, marked in zip(item, mark.tolist(), strict=True):
            assert marked == (key in seen)
            seen.add(key)


def test_a_shared_key_makes_a_near_duplicate_and_an_equal_hash_an_exact_one() -> None:
    scan = np.array([[1, 10, 20], [2, 11, 20], [1, 10, 20], [3, 12, 21]], dtype=np.uint64)
    assert [mark.tolist() for mark in mark_duplicates([scan[:3], scan[3:]])] == [[0, 2, 1], [0]]


def similarity(a: list[str], b: list[str]) -> float:
    runs = [{tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (a, b)]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


@pytest.mark.parametrize("edits", [1, 4, 8, 20])
def test_near_duplicates_are_found_as_often_as_the_theory_says(edits: int) -> None:
    """1 - (1 - s^rows)^bands, over pairs of documents in which some words were changed."""
    random = np.random.default_rng(edits)
    bands, rows = bands_for(0.8)
    expected = found = 0.0
    for _ in range(300):
        words = [f"w{i}" for i in random.integers(0, 5000, 300)]
        changed = list(words)
        for place in random.choice(300, edits, replace=False):
            changed[place] = f"x{place}"
        expected += 1 - (1 - similarity(words, changed) ** rows) ** bands
        keys = [band_keys(" ".join(text).encode(), 0.8) for text in (words, changed)]
        found += bool((keys[0] == keys[1]).any())
    assert abs(found - expected) < 4 * np.sqrt(300 * 0.25)
    assert edits > 4 or found > 100


def test_case_and_punctuation_do_not_matter_and_short_or_chinese_texts_have_keys_too() -> None:
    assert np.array_equal(band_keys(b"The quick, brown fox jumps over it.", 0.8), band_keys(b"the QUICK brown fox: jumps over it", 0.8))
    texts = ["one", "two", "one two", "今天天气很好", "今天天气很坏", "", "!!!", "--- ***", "..."]
    found = {tuple(band_keys(text.encode(), 0.8).tolist()) for text in texts}
    assert len(found) == len(texts)
