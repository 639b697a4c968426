"""The stream of a work item: tokens come in by the batch, full blocks of rows go out to the shard."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.cuts import cut
from remask.data_prep.encode import Encoded
from remask.data_prep.pack import PackConfig
from remask.data_prep.phrases import NO_SPANS
from remask.data_prep.shards import ShardWriter


class RowStream:
    """Packs what it is given into blocks of `block_rows` rows; what does not fill a block yet waits for what comes next."""

    def __init__(
        self, writer: ShardWriter, pack: PackConfig, block_rows: int, separator: int, id_dtype: np.dtype[Any], phrases: bool
    ) -> None:
        self.writer, self.pack, self.block_rows = writer, pack, block_rows
        self.separator = separator if pack.mode == "full-sentences" else -1
        self.has_phrases = phrases
        self.rows = 0
        self.lengths = np.zeros(pack.sequence_length + 1, dtype=np.int64)
        """How many rows have each length."""
        self.ids = np.empty(0, dtype=id_dtype)
        self.sentences = self.documents = np.empty(0, dtype=np.int64)
        self.words = np.empty(0, dtype=np.bool_)
        self.phrases = NO_SPANS

    def add(self, encoded: Encoded, keep: NDArray[np.bool_]) -> int:
        """Take the documents of a batch that are to be kept, and write the blocks that they complete; how many tokens of text came."""
        ids, words, sentences, documents, phrases = _arranged(
            encoded.ids, encoded.words, encoded.sentences, encoded.documents, encoded.phrases, keep, self.separator
        )
        waiting = len(self.ids)
        self.ids, self.words = np.concatenate((self.ids, ids)), np.concatenate((self.words, words))
        self.sentences = np.concatenate((self.sentences, sentences + waiting))
        self.documents = np.concatenate((self.documents, documents + waiting))
        self.phrases = np.concatenate((self.phrases, phrases + np.array([waiting, waiting, 0])))
        self._write(last=False)
        return len(ids) - (len(documents) if self.separator >= 0 else 0)

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
        self.phrases = self.phrases[self.phrases[:, 0] >= done] - np.array([done, done, 0])

    def _write_block(self, offsets: NDArray[np.int64], splits: NDArray[np.uint32]) -> None:
        begin, end = int(offsets[0]), int(offsets[-1])
        channels = {
            "ids": self.ids[begin:end],
            "rows": (offsets - begin).astype(np.uint32),
            "splits": splits,
            "sentences": _within(self.sentences, begin, end),
            "documents": _within(self.documents, begin, end),
            "words": np.packbits(self.words[begin:end]),
        }
        if self.has_phrases:
            channels["phrases"] = _inside_rows(self.phrases, offsets, splits)
        self.writer.write(channels)


def _within(positions: NDArray[np.int64], begin: int, end: int) -> NDArray[np.uint32]:
    first, behind = np.searchsorted(positions, [begin, end], side="right")
    return (positions[first:behind] - begin).astype(np.uint32)


def _inside_rows(phrases: NDArray[np.int64], offsets: NDArray[np.int64], splits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The spans that lie in one part of one row, counted from the first row's start."""
    first, behind = np.searchsorted(phrases[:, 0], [offsets[0], offsets[-1]])
    phrases = phrases[first:behind]
    cuts = np.union1d(offsets, offsets[:-1] + splits)
    whole = np.searchsorted(cuts, phrases[:, 0], side="right") == np.searchsorted(cuts, phrases[:, 1], side="left")
    chosen: NDArray[np.uint32] = (phrases[whole] - np.array([offsets[0], offsets[0], 0])).astype(np.uint32)
    return chosen


@numba.njit(cache=True)
def _arranged(ids, words, sentences, documents, phrases, keep, separator):  # type: ignore[no-untyped-def]
    """The documents to keep that have tokens; behind each, if it is not -1, a separator: part of its last sentence, a word of its own."""
    size = len(ids) + (len(documents) if separator >= 0 else 0)
    kept_ids, kept_words = np.empty(size, dtype=ids.dtype), np.empty(size, dtype=np.bool_)
    kept_sentences, kept_documents, kept_phrases = np.empty_like(sentences), np.empty_like(documents), np.empty_like(phrases)
    begin = tokens = sentence = sentence_count = document_count = phrase = phrase_count = 0
    for document in range(len(documents)):
        end = documents[document]
        taken = keep[document] and end > begin
        shift = tokens - begin
        if taken:
            kept_ids[tokens : tokens + end - begin] = ids[begin:end]
            kept_words[tokens : tokens + end - begin] = words[begin:end]
            tokens += end - begin
            if separator >= 0:
                kept_ids[tokens], kept_words[tokens] = separator, True
                tokens += 1
            kept_documents[document_count] = tokens
            document_count += 1
        while sentence < len(sentences) and sentences[sentence] <= end:
            kept_sentences[sentence_count] = tokens if sentences[sentence] == end else sentences[sentence] + shift
            sentence_count += taken
            sentence += 1
        while phrase < len(phrases) and phrases[phrase, 0] < end:
            kept_phrases[phrase_count, 0] = phrases[phrase, 0] + shift
            kept_phrases[phrase_count, 1] = phrases[phrase, 1] + shift
            kept_phrases[phrase_count, 2] = phrases[phrase, 2]
            phrase_count += taken
            phrase += 1
        begin = end
    return (
        kept_ids[:tokens],
        kept_words[:tokens],
        kept_sentences[:sentence_count],
        kept_documents[:document_count],
        kept_phrases[:phrase_count],
    )
