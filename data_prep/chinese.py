"""Words and names in Chinese text, which has no spaces: cut and tagged by rjieba's dictionary and the user's own words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.words import byte_lengths, is_ideograph

# People, places and organisations, by the beginning of rjieba's part-of-speech tags.
_NAMES = ("nr", "ns", "nt")
_NO_NAMES: NDArray[np.int64] = np.empty((0, 2), dtype=np.int64)


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
        if not self.entities:
            lengths = np.array(list(map(len, self.jieba.cut(text))), dtype=np.int64)
            names = np.zeros(len(text), dtype=np.int64)
        else:
            tagged = self.jieba.tag(text)
            lengths = np.array([len(word) for word, _ in tagged], dtype=np.int64)
            is_name = np.array([tag.startswith(_NAMES) for _, tag in tagged], dtype=np.int64)
            names = np.repeat(is_name * np.cumsum(is_name), lengths)
        begins = np.zeros(len(text), dtype=np.bool_)
        begins[np.cumsum(lengths) - lengths] = True
        return begins, names


class ChineseMarks:
    """Moves word starts in Chinese from every ideograph to where the segmenter says, and finds the tokens of names."""

    def __init__(self, vocabulary: Vocabulary, segmenter: Segmenter) -> None:
        from tokenizers import Tokenizer

        self.segmenter = segmenter
        self.tokenizer: Any = Tokenizer.from_str(vocabulary.text)
        self.byte_lengths = byte_lengths(vocabulary) if vocabulary.is_byte_level else None
        self.ideograph_ids = np.array([len(piece) == 1 and bool(is_ideograph(piece)[0]) for piece in vocabulary.pieces])
        self.known = np.zeros(0x110000, dtype=np.bool_)
        """By code point: an ideograph that is a piece of its own."""
        self.known[[ord(vocabulary.pieces[i]) for i in np.flatnonzero(self.ideograph_ids)]] = True
        self.unknown_id = vocabulary.specials["unk"]

    def mark(self, words: NDArray[np.bool_], ids: NDArray[np.uint32], ends: NDArray[np.int64], documents: list[bytes]) -> NDArray[np.int64]:
        """Correct the word starts in place, document by document; the spans of names, as (first token, one past the last)."""
        spans = [_NO_NAMES]
        begin = 0
        for document, end in zip(documents, ends.tolist(), strict=True):
            if not document.isascii():
                spans.append(begin + self._mark_document(words[begin:end], ids[begin:end], document.decode()))
            begin = end
        return np.concatenate(spans)

    def _mark_document(self, words: NDArray[np.bool_], ids: NDArray[np.uint32], text: str) -> NDArray[np.int64]:
        ideographs = is_ideograph(text)
        if not ideographs.any():
            return _NO_NAMES
        begins, names = self.segmenter(text)
        begins[1:] |= ~ideographs[:-1]
        found = self._tokens_in(ids, text, ideographs)
        words[found.tokens] = begins[found.first] & found.whole_start
        return _whole_names(found, names) if self.segmenter.entities else _NO_NAMES

    def _tokens_in(self, ids: NDArray[np.uint32], text: str, ideographs: NDArray[np.bool_]) -> "_Found":
        if self.byte_lengths is not None:
            characters = np.frombuffer(text.encode(), dtype=np.uint8) & 0xC0 != 0x80
            character_of = np.cumsum(characters) - 1
            ends = np.cumsum(self.byte_lengths[ids])
            begins = ends - self.byte_lengths[ids]
            first, last, whole_start = character_of[begins], character_of[ends - 1], characters[begins]
        else:
            found = self._one_token_each(ids, text, ideographs)
            if found is not None:
                return found
            offsets = np.array(self.tokenizer.encode(text, add_special_tokens=False).offsets).reshape(-1, 2)
            first, last = offsets[:, 0], offsets[:, 1] - 1
            whole_start = np.diff(first, prepend=-1) != 0
        tokens = np.flatnonzero(ideographs[first])
        return _Found(tokens=tokens, first=first[tokens], last=last[tokens], whole_start=whole_start[tokens])

    def _one_token_each(self, ids: NDArray[np.uint32], text: str, ideographs: NDArray[np.bool_]) -> "_Found | None":
        """Without a tokenizer's help, where each ideograph is one token: its own, in the text's order, or the one for unknown text.

        Ideographs that follow each other are tokens that follow each other, so one that is known tells the places of its neighbours.
        """
        places = np.flatnonzero(ideographs)
        known = self.known[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)[places]]
        own = np.flatnonzero(self.ideograph_ids[ids])
        if len(own) != np.count_nonzero(known):
            return None
        runs = np.cumsum(np.diff(places, prepend=places[0]) > 1)
        shifts = np.full(runs[-1] + 1, -1 - len(text))
        shifts[runs[known]] = own - places[known]
        tokens = places + shifts[runs]
        lost = tokens < 0  # a run without a known one: alone it is a word anyway
        if np.any(np.bincount(runs[lost]) > 1) or np.any(ids[tokens[~known & ~lost]] != self.unknown_id):
            return None
        tokens, places = tokens[~lost], places[~lost]
        return _Found(tokens=tokens, first=places, last=places, whole_start=np.ones(len(tokens), dtype=np.bool_))


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The tokens of a document that begin in an ideograph."""

    tokens: NDArray[np.int64]
    first: NDArray[np.int64]
    """The character that each begins in."""
    last: NDArray[np.int64]
    """The character that each ends in."""
    whole_start: NDArray[np.bool_]
    """Whether it begins with that character, not inside it."""


def _whole_names(found: _Found, names: NDArray[np.int64]) -> NDArray[np.int64]:
    """(first token, one past the last) of each name that tokens cover exactly."""
    inside = names[found.first] > 0
    numbers = names[found.first][inside]
    starts = np.flatnonzero(np.diff(numbers, prepend=0))
    ends = np.append(starts[1:], len(numbers))[: len(starts)] - 1
    at = np.flatnonzero(inside)
    starts, ends = at[starts], at[ends]
    first, last = found.first[starts], found.last[ends]
    before, behind = np.append(0, names)[first], np.append(names, 0)[last + 1]
    whole = found.whole_start[starts] & (names[first] == names[last]) & (before != names[first]) & (behind != names[last])
    spans: NDArray[np.int64] = np.stack((found.tokens[starts], found.tokens[ends] + 1), axis=1)[whole]
    return spans
