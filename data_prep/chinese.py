"""Words and names in Chinese text, which has no spaces: cut and tagged by rjieba's dictionary and the user's own words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.words import byte_lengths, is_ideograph

# People, places and organisations, by the beginning of rjieba's part-of-speech tags.
_NAMES = ("nr", "ns", "nt")


class Segmenter:
    """rjieba with these words added; loaded once a process, for its dictionary takes half a second."""

    def __init__(self, words: Sequence[str], entities: bool) -> None:
        import rjieba

        self.jieba = rjieba.Jieba()
        self.entities = entities
        """Tag words too, which takes twice as long."""
        for word in words:
            self.jieba.add_word(word, None, None)

    def __call__(self, text: str) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """For each character whether a word begins with it, and the number, from 1, of the name it belongs to; 0 for none."""
        tagged = self.jieba.tag(text) if self.entities else [(word, "") for word in self.jieba.cut(text)]
        lengths = np.fromiter((len(word) for word, _ in tagged), dtype=np.int64, count=len(tagged))
        begins = np.zeros(len(text), dtype=np.bool_)
        begins[np.cumsum(lengths) - lengths] = True
        is_name = np.fromiter((tag.startswith(_NAMES) for _, tag in tagged), dtype=np.int64, count=len(tagged))
        return begins, np.repeat(is_name * np.cumsum(is_name), lengths)


class ChineseMarks:
    """Moves word starts in Chinese from every ideograph to where the segmenter says, and finds the tokens of names."""

    def __init__(self, vocabulary: Vocabulary, segmenter: Segmenter) -> None:
        from tokenizers import Tokenizer

        self.segmenter = segmenter
        self.tokenizer: Any = Tokenizer.from_str(vocabulary.text)
        self.byte_lengths = byte_lengths(vocabulary) if vocabulary.is_byte_level else None
        self.ideograph_ids = np.array([len(piece) == 1 and bool(is_ideograph(piece)[0]) for piece in vocabulary.pieces])

    def mark(self, words: NDArray[np.bool_], ids: NDArray[np.uint32], ends: NDArray[np.int64], documents: list[bytes]) -> NDArray[np.int64]:
        """Correct the word starts in place, document by document; the spans of names, as (first token, one past the last)."""
        spans = [np.empty((0, 2), dtype=np.int64)]
        begin = 0
        for document, end in zip(documents, ends.tolist(), strict=True):
            if not document.isascii():
                spans.append(begin + self._mark_document(words[begin:end], ids[begin:end], document.decode()))
            begin = end
        return np.concatenate(spans)

    def _mark_document(self, words: NDArray[np.bool_], ids: NDArray[np.uint32], text: str) -> NDArray[np.int64]:
        ideographs = is_ideograph(text)
        if not ideographs.any():
            return np.empty((0, 2), dtype=np.int64)
        begins, names = self.segmenter(text)
        begins[1:] |= ~ideographs[:-1]
        tokens, places, first = self._ideographs_of(ids, text, ideographs)
        words[tokens] = begins[places] & first
        return _runs(tokens, names[places])

    def _ideographs_of(
        self, ids: NDArray[np.uint32], text: str, ideographs: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The tokens that begin in an ideograph; for each the character's place in the text, and whether it begins with the character."""
        tokens = np.flatnonzero(self.ideograph_ids[ids])
        if self.byte_lengths is not None:
            characters = np.frombuffer(text.encode(), dtype=np.uint8) & 0xC0 != 0x80
            in_bytes = np.cumsum(self.byte_lengths[ids]) - self.byte_lengths[ids]
            places, first = np.cumsum(characters)[in_bytes] - 1, characters[in_bytes]
        elif len(tokens) == np.count_nonzero(ideographs):  # one token an ideograph: they stand in the same order
            return tokens, np.flatnonzero(ideographs), np.ones(len(tokens), dtype=np.bool_)
        else:  # an ideograph that the vocabulary lacks, or one inside a longer piece: ask for offsets
            places = np.array([offset[0] for offset in self.tokenizer.encode(text, add_special_tokens=False).offsets])
            first = np.diff(places, prepend=-1) != 0
        tokens = np.flatnonzero(ideographs[places])
        return tokens, places[tokens], first[tokens]


def _runs(tokens: NDArray[np.int64], names: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens with the same name's number, as (first, one past the last)."""
    tokens, names = tokens[names > 0], names[names > 0]
    first = np.flatnonzero(np.diff(names, prepend=0))
    last = np.append(first[1:], len(names))[: len(first)] - 1
    return np.stack((tokens[first], tokens[last] + 1), axis=1)
