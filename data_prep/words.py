"""Where words begin, in tokens: from tables over the vocabulary."""

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.tokenizer import Vocabulary

_SPACE_PIECE = "\u2581"
_BYTE_LEVEL_SPACES = "ĠĊĉčĊ"


def continuation_tables(vocabulary: Vocabulary) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each id: whether it can go on with a word, and whether a word can go on after it."""
    pieces = vocabulary.pieces
    if vocabulary.kind == "WordPiece":
        return np.array([piece.startswith("##") for piece in pieces]), np.ones(len(pieces), dtype=np.bool_)
    begins = np.array([_is_word_character(piece[:1]) for piece in pieces])
    ends = np.array([_is_word_character(piece[-1:]) for piece in pieces])
    specials = list(vocabulary.specials.values())
    begins[specials] = ends[specials] = False
    return begins, ends


def _is_word_character(character: str) -> bool:
    """Byte-level alphabets write the bytes of other scripts as accented letters, and white space as a few special ones."""
    return character.isalnum() and character not in _BYTE_LEVEL_SPACES


@numba.njit(cache=True)
def mark_words(ids, documents, goes_on, can_go_on):  # type: ignore[no-untyped-def]
    """True where a token begins a word; a document's first token always does."""
    marks = np.empty(len(ids), dtype=np.bool_)
    for i in range(len(ids)):
        marks[i] = i == 0 or not (goes_on[ids[i]] and can_go_on[ids[i - 1]])
    for end in documents:
        if end < len(ids):
            marks[end] = True
    return marks
