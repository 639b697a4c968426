"""Packing against a plain reference, and what it must never do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.data_prep.cuts import cut
from remask.data_prep.pack import PackConfig, Packing

MODES: list[Packing] = ["full-sentences", "doc-sentences", "segment-pair", "sentence-pair"]
streams = st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=8), min_size=1, max_size=12)


def stream_of(documents: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    sentences = np.cumsum([length for document in documents for length in document])
    return sentences, sentences[np.cumsum([len(document) for document in documents]) - 1]


def plain_rows(documents: list[list[int]], budget: int, across: bool) -> list[int]:
    """Row lengths, written for reading: sentences are added while they fit, and a long one is split, with no single token left."""
    rows, open_row = [], 0
    for document in documents:
        for sentence in document:
            pieces = [budget] * ((sentence - 1) // budget) + [(sentence - 1) % budget + 1]
            if len(pieces) > 1 and pieces[-1] == 1:
                pieces[-2:] = [budget - 1, 2]
            for piece in pieces:
                if open_row and open_row + piece > budget:
                    rows.append(open_row)
                    open_row = 0
                open_row += piece
        if not across and open_row:
            rows.append(open_row)
            open_row = 0
    return [*rows, open_row] if open_row else rows


@given(streams)
def test_full_and_doc_sentences_equal_the_plain_way(documents: list[list[int]]) -> None:
    for mode in ("full-sentences", "doc-sentences"):
        config = PackConfig(mode=mode, sequence_length=50)
        rows = cut(*stream_of(documents), config, 0, last=True)
        assert np.diff(rows.offsets).tolist() == plain_rows(documents, 48, across=mode == "full-sentences")


@given(streams, st.sampled_from(MODES), st.floats(0, 1), st.integers(0, 2**40))
def test_no_token_is_lost_and_no_row_is_too_long(documents: list[list[int]], mode: Packing, short: float, first_row: int) -> None:
    config = PackConfig(mode=mode, sequence_length=40, short_probability=short)
    sentences, ends = stream_of(documents)
    rows = cut(sentences, ends, config, first_row, last=True)
    lengths = np.diff(rows.offsets)
    assert rows.offsets[0] == 0 and rows.offsets[-1] == sentences[-1]
    assert lengths.min() > 0 and lengths.max() <= config.row_budget
    assert np.all(rows.splits < lengths)
    if mode != "full-sentences":
        assert set(ends.tolist()) <= set(rows.offsets.tolist())
    if not mode.endswith("pair"):
        assert not rows.splits.any()
    inside = rows.splits[rows.splits > 0] + rows.offsets[:-1][rows.splits > 0]
    longest = config.row_budget // 2 if mode == "sentence-pair" else config.row_budget
    assert all(split in sentences or ((sentences > split).any() and longest <= 90) for split in inside)


@given(streams, st.sampled_from(MODES), st.integers(0, 5))
def test_rows_do_not_depend_on_where_the_stream_was_interrupted(documents: list[list[int]], mode: Packing, rows_per_block: int) -> None:
    config = PackConfig(mode=mode, sequence_length=40, short_probability=0.3)
    sentences, ends = stream_of(documents)
    whole = cut(sentences, ends, config, 0, last=True)
    half = ends[len(ends) // 2]
    first = cut(sentences[sentences <= half], ends[ends <= half], config, 0, last=False)
    kept = min(rows_per_block, len(first.splits))
    done = first.offsets[kept]
    second = cut(sentences[sentences > done] - done, ends[ends > done] - done, config, kept, last=True)
    assert np.concatenate((first.offsets[: kept + 1], second.offsets[1:] + done)).tolist() == whole.offsets.tolist()
    assert np.concatenate((first.splits[:kept], second.splits)).tolist() == whole.splits.tolist()


def test_the_share_of_short_rows_is_what_was_asked_for() -> None:
    sentences = np.arange(1, 200_001, dtype=np.int64)
    rows = cut(sentences, sentences[-1:], PackConfig(sequence_length=102, short_probability=0.1), 0, last=True)
    short = np.mean(np.diff(rows.offsets) < 100)
    assert len(rows.splits) > 2000
    assert abs(short - 0.1) < 4 * np.sqrt(0.1 * 0.9 / len(rows.splits))


def test_every_row_can_be_short() -> None:
    sentences = np.arange(1, 20_001, dtype=np.int64)
    rows = cut(sentences, sentences[-1:], PackConfig(sequence_length=102, short_probability=1.0), 0, last=True)
    assert 40 < np.diff(rows.offsets).mean() < 60


def test_segment_pairs_split_at_any_sentence_alike() -> None:
    sentences = np.arange(10, 100_001, 10, dtype=np.int64)
    rows = cut(sentences, sentences[-1:], PackConfig(mode="segment-pair", sequence_length=53), 0, last=True)
    places, counts = np.unique(rows.splits, return_counts=True)
    assert places.tolist() == [10, 20, 30, 40]
    assert np.all(np.abs(counts - len(rows.splits) / 4) < 4 * np.sqrt(len(rows.splits) * 3 / 16))


@pytest.mark.parametrize(
    ("change", "said"),
    [({"sequence_length": 7}, "from 8 to 65536"), ({"short_probability": 2.0}, "from 0 to 1"), ({"seed": -1}, "from 0 to")],
)
def test_impossible_settings_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PackConfig(**change)  # type: ignore[arg-type]
