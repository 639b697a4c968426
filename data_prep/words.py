"""Where words begin, in tokens: from tables over the vocabulary.

A word is a run of letters and digits; a punctuation mark and an ideograph are words of their own. A token goes on with the word of the
token before it if it begins with a letter, and that one ends with one, with no space between them. A character that a byte-level
vocabulary has only in parts is taken for a letter, and so is text that the vocabulary does not know.
"""

from functools import lru_cache

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.errors import InputError
from remask.data_prep.tokenizer import Vocabulary

# The blocks of ideographs that BERT's tokenizer sets apart.
_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF), (0x2F800, 0x2FA1F))


def continuation_tables(vocabulary: Vocabulary) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each id: whether it can go on with a word, and whether a word can go on after it."""
    pieces = vocabulary.pieces
    if not vocabulary.marks_spaces:
        raise InputError("tokenizer: its pieces do not tell where words begin; use WordPiece, byte-level BPE or a Metaspace pre-tokenizer")
    if vocabulary.kind == "WordPiece":
        return np.array([piece.startswith(vocabulary.continuing_prefix) for piece in pieces]), np.ones(len(pieces), dtype=np.bool_)
    specials = dict.fromkeys(vocabulary.specials.values(), " ") | {vocabulary.specials["unk"]: "a"}  # as if they were these
    if vocabulary.writes_bytes:
        written = [specials[i].encode() if i in specials else bytes_of(piece) for i, piece in enumerate(pieces)]
        return np.array([_begins_inside_word(piece) for piece in written]), np.array([_ends_inside_word(piece) for piece in written])
    plain = [specials.get(i, piece) for i, piece in enumerate(pieces)]
    return np.array([_is_letter(piece[:1]) for piece in plain]), np.array([_is_letter(piece[-1:]) for piece in plain])


def byte_lengths(vocabulary: Vocabulary) -> NDArray[np.int64]:
    """For each id, how many bytes of text it stands for in a byte-level vocabulary."""
    return np.array([len(bytes_of(piece)) for piece in vocabulary.pieces], dtype=np.int64)


def is_ideograph(text: str) -> NDArray[np.bool_]:
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    found = np.zeros(len(codes), dtype=np.bool_)
    for first, last in _IDEOGRAPHS:
        found |= (codes >= first) & (codes <= last)
    return found


def bytes_of(piece: str) -> bytes:
    """The bytes that a piece stands for in the byte-level alphabet; an added token that is not written in it stands for itself."""
    try:
        return piece.translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()


def _byte_alphabet() -> dict[int, int]:
    """The 256 characters of byte-level BPE: printable bytes stand for themselves, the others follow from U+0100 on.

    As code points for `str.translate`; the characters that the alphabet leaves out go where Latin-1 does not reach.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {0x100 + i: byte for i, byte in enumerate(others)} | dict.fromkeys(others, 0x1000)


_BYTE_OF = _byte_alphabet()


def _begins_inside_word(data: bytes) -> bool:
    """True for a letter, and for a piece that begins inside a character: that goes on with the token before it in any case."""
    if not data or 0x80 <= data[0] < 0xC0:
        return bool(data)
    character = data[: _width(data[0])].decode(errors="ignore")
    return _is_letter(character) if character else _may_lead_letter(data[0])


def _ends_inside_word(data: bytes) -> bool:
    """True for a letter, and for a piece that ends inside a character."""
    for back in range(1, min(4, len(data)) + 1):
        if data[-back] < 0x80 or data[-back] >= 0xC0:
            return _is_letter(data[-back:].decode(errors="ignore")) if back == _width(data[-back]) else True
    return True


def _width(lead: int) -> int:
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _may_lead_letter(lead: int) -> bool:
    """By the first byte of a character alone: letters of most scripts, but not general punctuation, ideographs and emoji."""
    return 0xC3 <= lead <= 0xE1 or 0xEA <= lead <= 0xED


@lru_cache(maxsize=1 << 16)
def _is_letter(character: str) -> bool:
    return character.isalnum() and not is_ideograph(character)[0]


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
