"""NSP: half of the rows that can have a stranger have one, from another document, and nothing but the text tells it."""

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import webdataset
from data_prep.loading import BATCH, loader_of, make_set
from sample_corpus import DOCUMENTS

from remask.data_prep import manifest


def test_nsp_takes_half_of_the_second_parts_from_other_documents(shards: Path) -> None:
    described = manifest.read(shards)
    document_of, text_of = [], []
    documents = 0
    for block in webdataset.WebDataset([str(shards / shard.name) for shard in described.train], shardshuffle=False).decode():
        ends = block["documents.npy"]
        for begin, end, split in zip(block["rows.npy"][:-1], block["rows.npy"][1:], block["splits.npy"], strict=True):
            document_of.append(documents + int(np.searchsorted(ends, begin, side="right")))
            text_of.append((block["ids.npy"][begin:end].tolist(), int(split)))
        documents += len(ends) + 1
    loader = loader_of(shards, sentence_task="nsp")
    labels = Counter[int]()
    for batch in islice(loader.batches(workers=0), loader.orders[0].rows // BATCH):
        assert batch.stranger is not None and batch.swapped is None and batch.longest <= 64
        whole = batch.inputs.copy()
        whole[batch.positions] = batch.targets
        for row in range(len(batch)):
            label = int(batch.stranger[row])
            labels[label] += 1
            text, split = text_of[batch.row_ids[row]]
            tokens = whole[batch.offsets[row] : batch.offsets[row + 1]].tolist()
            if split == 0:
                assert label == -1
                continue
            second = tokens[split + 2 : -1]
            assert tokens[1 : split + 1] == text[:split] and second
            if label <= 0:
                assert second == text[split:]
            else:
                sources = {document_of[i] for i, (other, at) in enumerate(text_of) if at and other[at:] == second}
                assert sources - {document_of[batch.row_ids[row]]}, "it is the second part of a row of another document"
                assert 4 * abs(len(second) - len(text[split:])) <= len(text[split:]), "as long as the own one, or nearly"
    assert labels[1] > 100 and abs(labels[0] - labels[1]) < 5 * np.sqrt(labels[0] + labels[1])


@pytest.mark.parametrize("block_rows", [64, 512])
def test_lengths_do_not_tell_strangers(block_rows: int, tmp_path: Path, bpe_file: Path) -> None:
    loader = loader_of(make_set(tmp_path / "wide", bpe_file, DOCUMENTS, block_rows=block_rows), sentence_task="nsp")
    batch = loader.batch(0, loader.orders[0].rows // BATCH * BATCH)
    assert batch.stranger is not None
    first, second = (np.add.reduceat(batch.segments == part, batch.offsets[:-1]) for part in (0, 1))
    for lengths in (second, first + second, first - second):
        follows, stranger = (np.sort(lengths[batch.stranger == label]) for label in (0, 1))
        assert min(len(follows), len(stranger)) > 300
        shares = [np.searchsorted(of_label, lengths, side="right") / len(of_label) for of_label in (follows, stranger)]
        assert np.abs(shares[0] - shares[1]).max() < 1.63 * np.sqrt(1 / len(follows) + 1 / len(stranger)), "Kolmogorov and Smirnov, 1%"


def test_strangers_are_other_ones_in_other_epochs(tmp_path: Path, bpe_file: Path) -> None:
    loader = loader_of(make_set(tmp_path / "wide", bpe_file, DOCUMENTS[:600], block_rows=512), sentence_task="nsp")
    found: list[dict[int, tuple[int, ...]]] = []
    for epoch in range(2):
        rows = loader.orders[0].rows // BATCH * BATCH
        batch = loader.batch(epoch * loader.orders[0].rows // BATCH * BATCH, rows)
        assert batch.stranger is not None
        whole = batch.inputs.copy()
        whole[batch.positions] = batch.targets
        seconds = [whole[begin:end][batch.segments[begin:end] == 1] for begin, end in pairwise(batch.offsets)]
        mine = np.flatnonzero((batch.stranger == 1) & (batch.epochs == epoch))
        found.append({int(batch.row_ids[row]): tuple(seconds[row].tolist()) for row in mine})
    both = found[0].keys() & found[1].keys()
    assert len(both) > 100 and sum(found[0][row] != found[1][row] for row in both) > 0.8 * len(both)


def test_a_document_longer_than_a_block_is_read_and_keeps_its_own_parts_with_nsp(tmp_path: Path, bpe_file: Path) -> None:
    texts = [" ".join(DOCUMENTS[:150]), *DOCUMENTS[150:200]]
    shards = make_set(tmp_path / "long", bpe_file, texts)
    described = manifest.read(shards)
    inside = [
        len(block["documents.npy"]) == 0
        for block in webdataset.WebDataset([str(shards / shard.name) for shard in described.train], shardshuffle=False).decode()
    ]
    assert sum(inside) > 3, "blocks that lie wholly inside a document"
    loader = loader_of(shards, sentence_task="nsp")
    batch = loader.batch(0, loader.orders[0].rows)
    assert len(batch) == loader.orders[0].rows and batch.stranger is not None
    in_long = np.isin(np.searchsorted(loader.sets[0].first_rows, batch.row_ids, side="right") - 1, np.flatnonzero(inside))
    assert set(batch.stranger[in_long].tolist()) == {-1} and {0, 1} <= set(batch.stranger[~in_long].tolist())
