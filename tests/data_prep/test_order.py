"""The order of rows: every row once an epoch, any place found by arithmetic, and neighbours spread as by a full permutation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.data_prep.keys import key_of, mixed, number, numbers, row_keys
from remask.data_prep.mixture import Mixture
from remask.data_prep.order import Order, permute


@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_a_keyed_permutation_reaches_every_place(size: int, key: int) -> None:
    assert sorted(permute(i, size, np.uint64(key)) for i in range(size)) == list(range(size))


@given(
    block_rows=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    lanes=st.sampled_from([1, 2, 6, 48, 3072]),
    window=st.integers(1, 5),
    seed=st.integers(0, 2**62),
)
def test_every_row_stands_once_in_an_epoch(block_rows: list[int], lanes: int, window: int, seed: int) -> None:
    order = Order(block_rows=np.array(block_rows), lanes=lanes, window_blocks=window, seed=seed)
    epochs, blocks, rows = order.locate(np.arange(2 * order.rows))
    everything = sorted((block, row) for block, count in enumerate(block_rows) for row in range(count))
    for epoch in (0, 1):
        here = epochs == epoch
        assert sorted(zip(blocks[here].tolist(), rows[here].tolist(), strict=True)) == everything


def test_a_rank_reads_its_lanes_front_to_back() -> None:
    """Its next rows lie in windows that it has open, so a rank touches few blocks at a time."""
    order = Order(block_rows=np.full(960, 64), lanes=48, window_blocks=4, seed=1)
    stream = np.arange(0, order.rows, 16)  # rank 0 of 16
    _, blocks, _ = order.locate(stream)
    assert len(set(blocks.tolist())) <= 960 // 16 + 3 * 2 * 4, "its own blocks, and windows that it shares at the ends of its three lanes"
    open_at_once = [len(set(blocks[i : i + 3 * 64].tolist())) for i in range(0, len(blocks) - 192, 192)]
    assert max(open_at_once) <= 3 * 2 * 4


def neighbours_in_one_batch(place_of: np.ndarray, batch: int) -> float:
    """Share of the pairs of rows next to each other in the corpus that fall into one batch."""
    return float(np.mean(place_of[1:] // batch == place_of[:-1] // batch))


def test_neighbours_are_spread_as_by_a_full_permutation() -> None:
    """Of 409,600 rows, neighbours meet in one batch of 4,096 as often as by chance (1 in 100), and in one of 256 twice as often (1 in 800):
    the longer and the shorter stretches go to lanes of their own."""
    order = Order(block_rows=np.full(800, 512), lanes=3072, window_blocks=8, seed=3)
    _, blocks, rows = order.locate(np.arange(order.rows))
    place_of = np.empty(order.rows, dtype=np.int64)
    place_of[blocks * 512 + rows] = np.arange(order.rows)
    full = np.argsort(np.random.default_rng(1).permutation(order.rows))
    for batch, most in ((256, 2.2), (4096, 1.1)):
        ours, theirs = neighbours_in_one_batch(place_of, batch), neighbours_in_one_batch(full, batch)
        assert theirs == pytest.approx(batch / order.rows, rel=0.2)
        assert ours <= most * batch / order.rows
    distances = [np.abs(np.diff(places)).mean() / order.rows for places in (place_of, full)]
    assert distances[1] == pytest.approx(1 / 3, rel=0.02), "two random places are a third of the line apart"
    assert distances[0] == pytest.approx(1 / 3, rel=0.02)
    runs = np.abs(np.diff(blocks)) == 0
    assert runs.mean() < 0.003, "rows that follow each other in the stream come from other blocks"


def test_a_place_far_out_is_found_without_walking_there() -> None:
    """160 GB of text: 80 million rows in 156,250 blocks; only the blocks of one epoch are ever looked at."""
    order = Order(block_rows=np.full(156_250, 512), lanes=3072, window_blocks=8, seed=3)
    far = 7 * order.rows + 12_345_678
    epochs, blocks, rows = order.locate(np.arange(far, far + 3072))
    assert set(epochs.tolist()) == {7} and len(set(blocks.tolist())) > 2900 and rows.max() < 512
    assert len(order._lines) == 1
    again = Order(block_rows=order.block_rows, lanes=3072, window_blocks=8, seed=3).locate(np.arange(far + 100, far + 200))
    assert np.array_equal(again[1], blocks[100:200]) and np.array_equal(again[2], rows[100:200])


@given(weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=5), lanes=st.sampled_from([1, 8, 48]), seed=st.integers(0, 2**40))
def test_a_mixture_gives_each_set_its_share_and_its_own_stream_without_gaps(weights: list[float], lanes: int, seed: int) -> None:
    mixture = Mixture(weights=tuple(weights), lanes=lanes, seed=seed)
    depth = 2000
    sets, own = mixture.locate(np.arange(depth * lanes))
    for number_, weight in enumerate(weights):
        share = np.mean(sets == number_)
        assert abs(share - weight / sum(weights)) < 0.002
        for lane in range(min(lanes, 3)):
            mine = own[(sets == number_) & (np.arange(depth * lanes) % lanes == lane)]
            assert mine.tolist() == (lane + lanes * np.arange(len(mine))).tolist(), "its lane, row after row"


def test_the_compiled_hash_and_numpys_are_one() -> None:
    key = key_of(5, 6)
    assert [int(number(key, n)) for n in range(100)] == numbers(key, np.arange(100, dtype=np.uint64)).tolist()
    assert key_of(1, 2) != key_of(2, 1) != key_of(1, 2, 0)


def test_no_two_rows_have_the_same_key() -> None:
    """The map from rows to keys is a bijection of 64 bits; here it is inverted on a sample from 300 million rows and at the ends."""
    rows = np.concatenate((np.random.default_rng(1).integers(0, 300_000_000, 1_000_000), [0, 1, 2**31, 2**62]))
    key = key_of(7, 4, 0, 3)
    keys = row_keys(key, rows)
    assert len(set(keys.tolist())) == len(set(rows.tolist()))
    x = keys.copy()
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, None)):
        undone = x.copy()
        for _ in range(64 // shift + 1):
            undone = x ^ (undone >> np.uint64(shift))
        x = undone if factor is None else undone * np.uint64(pow(factor, -1, 2**64))
    assert np.array_equal(mixed(x), keys)
    assert np.array_equal(((x - key) * np.uint64(pow(0xD1B54A32D192ED03, -1, 2**64))).astype(np.int64), rows)
