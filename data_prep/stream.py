"""The stream of a work item: tokens come in by the batch, full blocks of rows go out to the shard."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.cuts import cut
from remask.data_prep.encode import Encoded
from remask.data_prep.pack import PackConfig
from remask.data_prep.shards import ShardWriter


class RowStream:
    """Packs what it is given into blocks of `block_rows` rows; what does not fill a block yet waits for what comes next."""

    def __init__(self, writer: ShardWriter, pack: PackConfig, block_rows: int, separator: int, id_dtype: np.dtype[Any]) -> None:
        self.writer, self.pack, self.block_rows, self.separator, self.id_dtype = writer, pack, block_rows, separator, id_dtype
        self.rows = 0
        self.lengths = np.zeros(pack.sequence_length + 1, dtype=np.int64)
        """How many rows have each length."""
        self.ids = np.empty(0, dtype=np.uint32)
        self.sentences = self.documents = np.empty(0, dtype=np.int64)
        self.words = np.empty(0, dtype=np.bool_)

    def add(self, encoded: Encoded) -> None:
        """Take a batch of documents, and write the blocks that it completes."""
        ids, words, sentences, documents = encoded.ids, encoded.words, encoded.sentences, encoded.documents
        if self.pack.mode == "full-sentences":
            ids, words, sentences, documents = _separate(ids, words, sentences, documents, self.separator)
        waiting = len(self.ids)
        self.ids, self.words = np.concatenate((self.ids, ids)), np.concatenate((self.words, words))
        self.sentences = np.concatenate((self.sentences, sentences + waiting))
        self.documents = np.concatenate((self.documents, documents + waiting))
        self._write(last=False)

    def close(self) -> None:
        """Write what is left, the last row and the last block being as short as they are."""
        self._write(last=True)

    def _write(self, last: bool) -> None:
        rows = cut(self.sentences, self.documents, self.pack, self.rows, last)
        count = len(rows.splits)
        whole = count if last else count - count % self.block_rows
        for first in range(0, whole, self.block_rows):
            behind = min(first + self.block_rows, whole)
            self._write_block(rows.offsets[first : behind + 1], rows.splits[first:behind])
        done = int(rows.offsets[whole])
        self.rows += whole
        self.lengths += np.bincount(np.diff(rows.offsets[: whole + 1]), minlength=len(self.lengths))
        self.ids, self.words = self.ids[done:], self.words[done:]
        self.sentences = self.sentences[self.sentences > done] - done
        self.documents = self.documents[self.documents > done] - done

    def _write_block(self, offsets: NDArray[np.int64], splits: NDArray[np.uint32]) -> None:
        begin, end = int(offsets[0]), int(offsets[-1])
        self.writer.write(
            {
                "ids": self.ids[begin:end].astype(self.id_dtype),
                "rows": (offsets - begin).astype(np.uint32),
                "splits": splits,
                "sentences": _within(self.sentences, begin, end),
                "documents": _within(self.documents, begin, end),
                "words": np.packbits(self.words[begin:end]),
            }
        )


def _within(positions: NDArray[np.int64], begin: int, end: int) -> NDArray[np.uint32]:
    first, behind = np.searchsorted(positions, [begin, end], side="right")
    return (positions[first:behind] - begin).astype(np.uint32)


@numba.njit(cache=True)
def _separate(ids, words, sentences, documents, separator):  # type: ignore[no-untyped-def]
    """A separator behind each document, as part of its last sentence and a word of its own."""
    spaced = np.empty(len(ids) + len(documents), dtype=np.uint32)
    marks = np.empty(len(spaced), dtype=np.bool_)
    sentence_ends, document_ends = np.empty_like(sentences), np.empty_like(documents)
    begin = sentence = 0
    for d in range(len(documents)):
        end = documents[d]
        spaced[begin + d : end + d] = ids[begin:end]
        marks[begin + d : end + d] = words[begin:end]
        spaced[end + d] = separator
        marks[end + d] = True
        document_ends[d] = end + d + 1
        while sentence < len(sentences) and sentences[sentence] <= end:
            sentence_ends[sentence] = sentences[sentence] + d + (sentences[sentence] == end)
            sentence += 1
        begin = end
    return spaced, marks, sentence_ends, document_ends
