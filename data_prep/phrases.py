"""Phrases and names that masking can take as one unit, found in tokens: the longest entry of a list that stands at a word's start.

An entry is tokenised alone, after a space and, in vocabularies that mark spaces, without the mark; it is found wherever these tokens
stand and whole words begin and end with them. Where a token reaches over the entry's border it is not found, because tokens cannot be
masked in part: `U.S.,` if the vocabulary has a token `.,`, and many Chinese words in byte-level BPE. WordPiece has no such tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.engines import Engine
from remask.data_prep.sequences import add_token, entry_of, make_slots

Level = Literal["phrase", "entity"]
LEVELS: dict[Level, int] = {"phrase": 1, "entity": 2}
"""As they are stored, in the third column of the channel `phrases`."""

SPACE_MARK = "▁"

NO_SPANS: NDArray[np.int64] = np.empty((0, 3), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """Entries as token sequences, in a hash table with open addressing."""

    tokens: NDArray[np.uint32]
    """Of all entries, end to end."""
    offsets: NDArray[np.int64]
    levels: NDArray[np.int64]
    slots: NDArray[np.int64]
    """Entry by the hash of its tokens, -1 where a slot is free; the size is a power of two."""
    longest: NDArray[np.int64]
    """Token -> tokens of the longest entry that begins with it; 0 for none."""

    def find(self, ids: NDArray[np.uint32], words: NDArray[np.bool_], documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """(first token, one past the last, level) of each match, from left to right, the longest first, none inside another.

        No match reaches over one of the ends of `documents`.
        """
        spans: NDArray[np.int64] = _find(ids, words, documents, self.tokens, self.offsets, self.levels, self.slots, self.longest)
        return spans


def make_lexicon(entries: dict[Level, Sequence[str]], engine: Engine, pieces: Sequence[str], unknown_id: int) -> Lexicon:
    """An entry that stands in both lists is an entity; one that the vocabulary cannot write is left out."""
    levels: dict[tuple[int, ...], int] = {}
    without_mark = {i: piece[1:] for i, piece in enumerate(pieces) if piece.startswith(SPACE_MARK)}
    ids = {piece: i for i, piece in enumerate(pieces)} if without_mark else {}
    for level, number in LEVELS.items():
        for entry in sequences_of(entries.get(level, ()), engine):
            if unknown_id in entry or not entry:
                continue
            levels[entry] = number
            bare = without_mark.get(entry[0])
            if bare is not None and (not bare or bare in ids):
                levels[((ids[bare],) if bare else ()) + entry[1:]] = number
    levels.pop((), None)
    tokens = np.array([token for entry in levels for token in entry], dtype=np.uint32)
    offsets = np.cumsum([0, *map(len, levels)])
    longest = np.zeros(len(pieces), dtype=np.int64)
    np.maximum.at(longest, tokens[offsets[:-1]], np.diff(offsets))
    return Lexicon(
        tokens=tokens,
        offsets=offsets,
        levels=np.array(list(levels.values()), dtype=np.int64),
        slots=make_slots(tokens, offsets),
        longest=longest,
    )


def sequences_of(entries: Sequence[str], engine: Engine) -> list[tuple[int, ...]]:
    """The tokens of each entry alone, and after a space."""
    if not entries:
        return []
    ids, counts = engine.encode([space + entry.encode() for entry in entries for space in (b"", b" ")])
    ends = np.cumsum(counts)
    return [tuple(ids[end - count : end].tolist()) for end, count in zip(ends, counts, strict=True)]


def united(first: NDArray[np.int64], second: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Spans of both in order; one of the second that touches one of the first is left out."""
    if not len(first) or not len(second):
        return first if len(first) else second
    taken = np.zeros(size + 1, dtype=np.int64)
    np.add.at(taken, first[:, 0], 1)
    np.add.at(taken, first[:, 1], -1)
    before = np.concatenate(([0], np.cumsum(np.cumsum(taken) > 0)))
    free = before[second[:, 1]] == before[second[:, 0]]
    both = np.concatenate((first, second[free]))
    return both[np.argsort(both[:, 0], kind="stable")]


@numba.njit(cache=True)
def _find(ids, words, documents, tokens, offsets, levels, slots, longest):  # type: ignore[no-untyped-def]
    spans = np.empty((len(ids), 3), dtype=np.int64)
    count = behind = document = 0
    for begin in range(len(ids)):
        while documents[document] <= begin:
            document += 1
        reach = min(longest[ids[begin]], documents[document] - begin)
        if begin < behind or reach == 0 or not words[begin]:
            continue
        hashed = np.uint64(0)
        for end in range(begin + 1, begin + reach + 1):
            hashed = add_token(hashed, ids[end - 1])
            if end == documents[document] or words[end]:
                entry = entry_of(ids, begin, end, hashed, tokens, offsets, slots)
                if entry >= 0:
                    spans[count, 0], spans[count, 1], spans[count, 2] = begin, end, levels[entry]
                    behind = end
        count += behind > begin
    return spans[:count].copy()
