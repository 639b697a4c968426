"""Batches are a function of the stream position: the same for any ranks, workers and restarts; every row once an epoch."""

from collections import Counter
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from data_prep.loading import BATCH, LANES, PACK, digests_of, loader_of, make_set
from sample_corpus import DOCUMENTS

from remask.data_prep import manifest
from remask.data_prep.batch import Batch, join
from remask.data_prep.blocks import Blocks
from remask.data_prep.data import DataConfig
from remask.data_prep.errors import InputError
from remask.data_prep.loader import Loader, fixed_batches, make_masker, open_loader, row_maker
from remask.data_prep.masking import MaskingConfig
from remask.data_prep.pack import PackConfig


def test_three_epochs_are_the_same_for_any_world_size_and_workers(shards: Path) -> None:
    rows = loader_of(shards).orders[0].rows
    count = -(-3 * rows // BATCH)
    assert rows > 500 and rows % LANES != 0 and rows % BATCH != 0

    def make(rank: int, world: int) -> Loader:
        return loader_of(shards, rank=rank, world=world)

    expected = digests_of(make, 1, [0], batches=count)
    assert sorted(expected) == list(range(count * BATCH)) and len(set(expected.values())) == len(expected)
    for world, workers in product((1, 2, 3, 4, 8, 16), (0, 1, 4)):
        assert digests_of(make, world, [0], workers, count) == expected, (world, workers)
    rng = np.random.default_rng(1)
    seeks = rng.integers(0, 3 * rows - BATCH, 20).tolist()
    for world in (1, 3, 16):
        found = digests_of(make, world, seeks)
        assert len(found) > BATCH and found == {position: expected[position] for position in found}


def test_every_row_comes_once_an_epoch_also_when_the_batch_size_changes(shards: Path) -> None:
    loader = loader_of(shards)
    rows = loader.orders[0].rows
    seen: list[tuple[int, int]] = []
    position = 0
    for size in (48, 96, 3, 7, 480, 1000):
        while position < rows * (1 + len(seen) // rows) and len(seen) < 2 * rows:
            batch = loader.batch(position, size)
            seen.extend(zip(batch.epochs.tolist(), batch.row_ids.tolist(), strict=True))
            position += size
            if size != 48 or len(seen) > rows // 2:
                break
    while len(seen) < 2 * rows:
        batch = loader.batch(position, 100)
        seen.extend(zip(batch.epochs.tolist(), batch.row_ids.tolist(), strict=True))
        position += 100
    for epoch in (0, 1):
        assert sorted(row for e, row in seen if e == epoch) == list(range(rows))


def test_rows_are_those_of_the_shards_with_special_tokens_around_them(shards: Path) -> None:
    """Against plain webdataset: what the masks hide put back, parts in their order."""
    described = manifest.read(shards)
    expected = []
    for block in webdataset.WebDataset([str(shards / shard.name) for shard in described.train], shardshuffle=False).decode():
        bounds, splits = block["rows.npy"].tolist(), block["splits.npy"].tolist()
        for begin, end, split in zip(bounds[:-1], bounds[1:], splits, strict=True):
            text = block["ids.npy"][begin:end].tolist()
            expected.append((text[:split], text[split:]) if split else (text, []))
    cls, sep = described.specials["cls"], described.specials["sep"]
    loader = loader_of(shards)
    labels = Counter[int]()
    for batch in islice(loader.batches(workers=0), loader.orders[0].rows // BATCH):
        assert batch.swapped is not None and batch.stranger is None
        whole = batch.inputs.copy()
        whole[batch.positions] = batch.targets
        for row in range(len(batch)):
            first, second = expected[batch.row_ids[row]]
            label = int(batch.swapped[row])
            labels[label] += 1
            parts = [second, first] if label == 1 else [first, second]
            tokens = [cls, *parts[0], sep, *([*parts[1], sep] if parts[1] else [])]
            begin, end = batch.offsets[row], batch.offsets[row + 1]
            assert whole[begin:end].tolist() == tokens
            assert batch.segments[begin:end].tolist() == [0] * (len(parts[0]) + 2) + [1] * (len(tokens) - len(parts[0]) - 2)
            assert (label == -1) == (not second)
    assert abs(labels[0] - labels[1]) < 4 * np.sqrt(labels[0] + labels[1]), "half of the pairs are swapped"


@pytest.mark.parametrize(("refresh", "same"), [("never", {0, 1, 2, 3}), ("copies", {0, 2}), ("epoch", {0})])
def test_masks_change_when_refresh_says(shards: Path, refresh: Any, same: set[int]) -> None:
    loader = loader_of(shards, masking=MaskingConfig(refresh=refresh, copies=2), sentence_task="none")
    rows = loader.orders[0].rows
    masks: list[dict[int, list[int]]] = []
    for epoch in range(4):
        batch = loader.batch(epoch * rows, rows)
        assert set(batch.epochs.tolist()) == {epoch}
        places = np.searchsorted(batch.offsets, batch.positions, side="right") - 1
        inside = batch.positions - batch.offsets[places]
        masks.append({int(batch.row_ids[row]): inside[places == row].tolist() for row in range(len(batch))})
    assert {epoch for epoch in range(4) if masks[epoch] == masks[0]} == same


def test_a_mixture_keeps_its_shares_and_each_set_its_epochs(shards: Path, more_shards: Path) -> None:
    def make(rank: int, world: int) -> Loader:
        return loader_of(shards, more_shards, rank=rank, world=world, weights=(0.7, 0.3))

    loader = make(0, 1)
    batches = [loader.batch(i * BATCH) for i in range(60)]
    sets = np.concatenate([batch.sets for batch in batches])
    assert abs(np.count_nonzero(sets == 1) - 0.3 * len(sets)) < 20
    assert all(set(batch.sets.tolist()) == {0, 1} for batch in batches)
    small = loader.orders[1].rows
    rows = [(e, r) for batch in batches for s, e, r in zip(batch.sets, batch.epochs, batch.row_ids, strict=True) if s == 1]
    assert len(rows) == len(set(rows)), "no row of a set comes twice in one of its epochs"
    assert Counter(e for e, _ in rows)[0] == small, "and all do come"
    expected = digests_of(make, 1, [0], batches=20)
    assert digests_of(make, 3, [0], batches=20) == digests_of(make, 16, [0], 2, 20) == expected


def test_validation_rows_have_fixed_masks(shards: Path) -> None:
    data = DataConfig(sets=(str(shards),), pack=PACK, sentence_task="sop")
    blocks = Blocks(shards, "validation")
    masking = MaskingConfig()
    found = []
    for world in (1, 3):
        digests: dict[int, str] = {}
        for rank in range(world):
            for batch in fixed_batches(blocks, row_maker(blocks, data, masking), make_masker(blocks, masking), 8, rank, world):
                digests.update(batch.digests())
        found.append(digests)
    total = int(blocks.rows.sum())
    assert found[0] == found[1] and sorted(found[0]) == list(range(total)) and total > 3
    for world in (1, 3):
        some: dict[int, str] = {}
        for rank in range(world):
            maker, masker = row_maker(blocks, data, masking), make_masker(blocks, masking)
            for batch in fixed_batches(blocks, maker, masker, 2, rank, world, most_rows=3):
                some.update(batch.digests())
        assert sorted(some) == [0, total // 3, 2 * total // 3], "from all over the set"
        assert some.items() <= found[0].items()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"world": 5}, "data.lanes: 48 was given, it must be a multiple of the 5 ranks"),
        ({"batch_rows": 50, "world": 16}, "data.batch_rows: 50 was given, it must be a multiple of the 16 ranks"),
        ({"pack": PackConfig(mode="segment-pair", sequence_length=128)}, "packed with sequence_length 64, the run wants 128"),
        ({"masking": MaskingConfig(strategy="phrase")}, "no phrases are marked in it"),
        ({"masking": MaskingConfig(final_rate=0.5)}, "nobody says how many rows the training has"),
        ({"rank": 2, "world": 2}, "rank 2 was given"),
    ],
)
def test_what_does_not_fit_is_told_before_the_first_batch(shards: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        loader_of(shards, **options)


def test_micro_batches_and_the_padded_form_hold_the_same_rows(shards: Path) -> None:
    batch = loader_of(shards).batch(0)
    for pieces in (list(batch.micro_batches(most_rows=7)), list(batch.micro_batches(most_tokens=300))):
        assert len(pieces) > 3 and join(pieces).digests() == batch.digests()
    assert all(piece.tokens <= 300 for piece in batch.micro_batches(most_tokens=300))
    assert all(len(piece) == 1 for piece in batch.micro_batches(most_tokens=1))
    with pytest.raises(ValueError, match="at least 1"):
        next(batch.micro_batches(most_rows=0))
    with pytest.raises(ValueError, match="the longest row has"):
        batch.padded(pad_id=1, length=4)
    padded = batch.padded(pad_id=1, length=64)
    assert padded["input_ids"].shape == (BATCH, 64)
    assert padded["input_ids"][padded["attention_mask"] == 1].tolist() == batch.inputs.tolist()
    assert padded["labels"][padded["labels"] >= 0].tolist() == batch.targets.tolist()
    assert np.all(padded["input_ids"][padded["attention_mask"] == 0] == 1)
    tensors = batch.tensors()
    assert tensors["inputs"].tolist() == batch.inputs.tolist() and "stranger" not in tensors


def test_words_with_an_unknown_piece_are_not_masked_in_part(tmp_path: Path) -> None:
    from remask.data_prep import tokenizer

    vocabulary = tokenizer.train(iter(DOCUMENTS[:200]), "unigram", 200, lowercase=False)
    (tmp_path / "t.json").write_text(vocabulary.text)
    shards = make_set(tmp_path / "unknown", tmp_path / "t.json", [text.replace("masked", "mas\N{SNOWMAN}ked") for text in DOCUMENTS[:100]])
    loader = loader_of(shards)
    rows, masked = loader.rows_in_epoch(np.arange(loader.orders[0].rows), 0)
    unknown = np.flatnonzero(rows.ids == vocabulary.specials["unk"])
    assert len(unknown) > 50
    beside = np.concatenate((unknown - 1, unknown + 1))
    assert not np.isin(masked.positions, unknown).any() and not np.isin(masked.positions, beside).any()


def test_a_batch_may_be_smaller_than_the_world(shards: Path, more_shards: Path) -> None:
    for sets in ((shards,), (shards, more_shards)):
        batches = [loader_of(*sets, rank=rank, world=4).batch(0, 2) for rank in range(4)]
        assert [len(batch) for batch in batches] == [1, 1, 0, 0] and batches[3].tokens == 0


def test_waiting_is_measured_and_an_abandoned_loader_ends(shards: Path) -> None:
    loader = loader_of(shards)
    batches = loader.batches(workers=2)
    for _ in range(5):
        assert isinstance(next(batches), Batch)
    batches.close()
    assert loader.waits.batches == 5 and loader.waits.seconds > 0
    made = next(loader.tensors(workers=0))
    assert loader.waits.batches == 6 and made["inputs"].tolist() == loader.batch(0).inputs.tolist()


def test_the_rate_can_change_over_training(shards: Path) -> None:
    config = DataConfig(sets=(str(shards),), pack=PACK, batch_rows=BATCH, lanes=LANES)
    masking = MaskingConfig(rate=0.4, final_rate=0.1)
    loader = open_loader(config, masking, 1, total_rows=100 * BATCH)
    shares = [len(batch.positions) / batch.tokens for batch in (loader.batch(i * BATCH) for i in (0, 50, 99, 200))]
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.33 and 0.2 < shares[1] < 0.27 and shares[2] < 0.12 > shares[3]


def test_masks_are_as_many_and_as_hugging_faces_collator_makes_them(shards: Path) -> None:
    """Rate and 80/10/10 of the token strategy against theirs, on the same rows, within six standard errors of theirs (ours is exact)."""
    from tokenizers import Tokenizer
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    names = {"pad_token": "<pad>", "mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"}
    theirs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(shards / "tokenizer.json")), **names)
    collator = DataCollatorForLanguageModeling(theirs, mlm_probability=0.15, seed=3)
    loader = loader_of(shards, masking=MaskingConfig(), sentence_task="none")
    counts = np.zeros((2, 4))
    for i in range(25):
        batch = loader.batch(i * BATCH)
        whole = batch.inputs.copy()
        whole[batch.positions] = batch.targets
        rows = [whole[begin:end].tolist() for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
        made = collator([{"input_ids": row} for row in rows])
        asked = made["labels"].numpy() != -100
        padded = batch.padded(theirs.pad_token_id)
        for side, (labels, inputs) in enumerate(
            [(padded["labels"], padded["input_ids"]), (made["labels"].numpy(), made["input_ids"].numpy())]
        ):
            at = labels != -100
            now, then = inputs[at], labels[at]
            counts[side] += [np.count_nonzero(at), (now == theirs.mask_token_id).sum(), (now == then).sum(), batch.tokens - 2 * len(batch)]
        assert asked.any()
    shares = counts[:, :3] / np.array([[counts[0, 3], counts[0, 0], counts[0, 0]], [counts[1, 3], counts[1, 0], counts[1, 0]]])
    errors = np.sqrt(shares[1] * (1 - shares[1]) / np.array([counts[1, 3], counts[1, 0], counts[1, 0]]))
    assert counts.min() > 100 and np.all(np.abs(shares[0] - shares[1]) < 6 * errors), shares


def test_documents_are_told_apart_where_asked(tmp_path: Path, bpe_file: Path) -> None:
    """Behind every document stands a separator, so where they begin can be read from the ids as well."""
    folder = make_set(tmp_path / "full", bpe_file, DOCUMENTS[:300], mode="full-sentences")
    pack = PackConfig(mode="full-sentences", sequence_length=64)
    options: dict[str, Any] = {"pack": pack, "sentence_task": "none"}
    assert loader_of(folder, **options).batch(0).documents is None
    loader = loader_of(folder, **options, documents_apart=True)
    separator = Blocks(folder, "train").manifest.specials["sep"]

    def begins(batch: Batch) -> list[int]:
        found = []
        for begin, end in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True):
            found += [begin, *(at + 1 for at in range(begin, end - 2) if batch.inputs[at] == separator)]
        return [*found, batch.tokens]

    whole = loader.batch(0)
    assert whole.documents is not None and len(whole.documents) > len(whole) + 10
    again = join([whole.rows(0, 7), whole.rows(7, len(whole))])
    for batch in (whole, whole.rows(5, 9), whole.arranged(np.arange(len(whole))[::-1]), again, loader.batch(1000, 100)):
        assert batch.documents is not None and batch.documents.tolist() == begins(batch)
        assert batch.documents.dtype == np.int32
    with pytest.raises(ValueError, match=r"documents_apart: true was given, but rows of pack\.mode segment-pair hold one document"):
        DataConfig(pack=PACK, documents_apart=True)
