"""Documents to one stream of ids that knows where its sentences, documents and words are.

Sentences are found in the text, and their ends carried over to tokens in the way that is exact for the tokenizer: by the bytes that ids
stand for, by encoding sentences one by one, or by the offsets that Hugging Face's tokenizers tell. Words follow from tables over the
vocabulary; in Chinese, if asked for, from a segmenter, carried over to tokens in the same ways.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.chinese import GoesOn, is_ideograph
from remask.data_prep.engines import Engine
from remask.data_prep.sentences import sentence_ends
from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.words import bytes_of, continuation_tables, mark_words


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A stream of tokens; positions are one past a last token, rising, and every document's end is among the sentences'."""

    ids: NDArray[np.uint32]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    words: NDArray[np.bool_]
    """True where a token begins a word."""


EncodeDocuments = Callable[[list[bytes]], Encoded]


def document_encoder(vocabulary: Vocabulary, engine: Engine, segmenter: GoesOn | None = None) -> EncodeDocuments:
    """The exact way for this tokenizer.

    A special token's name that stands in a text, such as [MASK], is text: it is broken by a space, for it must not become the token.
    """
    encode = _exact_encoder(vocabulary, engine)
    tables = continuation_tables(vocabulary)
    special = np.zeros(len(vocabulary.pieces), dtype=np.bool_)
    special[[i for role, i in vocabulary.specials.items() if role != "unk"]] = True
    names = [vocabulary.pieces[i].encode() for i in np.flatnonzero(special)]
    chinese = None if segmenter is None else _ChineseWords(vocabulary, segmenter)

    def encode_text_alone(documents: list[bytes]) -> Encoded:
        try:
            ids, sentences, ends = encode(documents)
            names_special = bool(special[ids].any())
        except _OtherBytesError:  # <mask> takes the space before it along
            names_special = True
        if names_special:
            documents = [_broken(document, names) for document in documents]
            ids, sentences, ends = encode(documents)
        words = mark_words(ids, ends, *tables)
        if chinese is not None:
            chinese.mark(words, ids, ends, documents)
        return Encoded(ids=ids, sentences=_merged(sentences, ends), documents=_merged(ends, ends), words=words)

    return encode_text_alone


def _broken(document: bytes, names: list[bytes]) -> bytes:
    for name in names:
        document = document.replace(name, name[:1] + b" " + name[1:])
    return document


Streams = tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]
"""Ids, sentence ends, and the end of each document, also of one without tokens."""


def _exact_encoder(vocabulary: Vocabulary, engine: Engine) -> Callable[[list[bytes]], Streams]:
    if vocabulary.is_byte_level:
        lengths = byte_lengths(vocabulary)
        return lambda documents: _encode_by_bytes(documents, engine, lengths)
    if vocabulary.splits_at_spaces_and_punctuation:
        return lambda documents: _encode_by_sentence(documents, engine)
    return _offset_encoder(vocabulary)


class _OtherBytesError(RuntimeError):
    """A tokenizer that should stand for every byte does not."""


def byte_lengths(vocabulary: Vocabulary) -> NDArray[np.int64]:
    return np.array([len(bytes_of(piece)) for piece in vocabulary.pieces], dtype=np.int64)


def _encode_by_bytes(documents: list[bytes], engine: Engine, lengths: NDArray[np.int64]) -> Streams:
    ids, counts = engine.encode([document.decode() for document in documents])
    ends = np.cumsum(counts)
    sizes = np.array([len(document) for document in documents])
    stood_for = np.diff(np.concatenate(([0], np.cumsum(lengths[ids])))[np.concatenate(([0], ends))])
    if not np.array_equal(stood_for, sizes):
        raise _OtherBytesError("the tokenizer's ids stand for other bytes than the text's; sentence ends would be wrong")
    text_ends = np.cumsum(sizes)
    in_texts = [sentence_ends(document) + (end - len(document)) for document, end in zip(documents, text_ends, strict=True)]
    return ids, _tokens_at_bytes(ids, lengths, np.concatenate(in_texts)), ends


@numba.njit(cache=True)
def _tokens_at_bytes(ids, lengths, byte_ends):  # type: ignore[no-untyped-def]
    """For each byte position, how many tokens begin before it."""
    tokens = np.empty(len(byte_ends), dtype=np.int64)
    token = byte = 0
    for i in range(len(byte_ends)):
        while token < len(ids) and byte < byte_ends[i]:
            byte += lengths[ids[token]]
            token += 1
        tokens[i] = token
    return tokens


def _encode_by_sentence(documents: list[bytes], engine: Engine) -> Streams:
    texts: list[str] = []
    sizes = []
    for document in documents:
        begin = 0
        ends = sentence_ends(document).tolist()
        for end in ends:
            texts.append(document[begin:end].decode())
            begin = end
        sizes.append(len(ends))
    ids, counts = engine.encode(texts)
    sentences = np.cumsum(counts)
    document_ends = np.concatenate(([0], sentences))[np.cumsum(sizes)]
    return ids, sentences, document_ends


def _offset_encoder(vocabulary: Vocabulary) -> Callable[[list[bytes]], Streams]:
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_str(vocabulary.text)

    def encode(documents: list[bytes]) -> Streams:
        encodings = tokenizer.encode_batch([document.decode() for document in documents], add_special_tokens=False)
        sentences, counts = [], []
        begin = 0
        for document, encoding in zip(documents, encodings, strict=True):
            starts = np.array([offset[0] for offset in encoding.offsets], dtype=np.int64)
            sentences.append(begin + np.searchsorted(starts, _character_ends(document), side="left"))
            counts.append(len(encoding))
            begin += len(encoding)
        ids = np.fromiter((i for encoding in encodings for i in encoding.ids), dtype=np.uint32, count=begin)
        return ids, np.concatenate(sentences) if sentences else np.empty(0, np.int64), np.cumsum(counts)

    return encode


def _character_ends(document: bytes) -> NDArray[np.int64]:
    """Sentence ends counted in characters, as Python counts them."""
    ends = sentence_ends(document)
    first_bytes = (np.frombuffer(document, dtype=np.uint8) & 0xC0) != 0x80
    return np.concatenate(([0], np.cumsum(first_bytes)))[ends]


class _ChineseWords:
    """Moves word starts in Chinese from every ideograph to where the segmenter says."""

    def __init__(self, vocabulary: Vocabulary, segmenter: GoesOn) -> None:
        from tokenizers import Tokenizer

        self.segmenter = segmenter
        self.tokenizer: Any = Tokenizer.from_str(vocabulary.text)
        self.byte_lengths = byte_lengths(vocabulary) if vocabulary.is_byte_level else None
        self.ideograph_ids = np.array([len(piece) == 1 and bool(is_ideograph(piece)[0]) for piece in vocabulary.pieces])

    def mark(self, words: NDArray[np.bool_], ids: NDArray[np.uint32], ends: NDArray[np.int64], documents: list[bytes]) -> None:
        """Correct the marks in place, document by document."""
        begin = 0
        for document, end in zip(documents, ends.tolist(), strict=True):
            if not document.isascii():
                self._mark_document(words[begin:end], ids[begin:end], document.decode())
            begin = end

    def _mark_document(self, words: NDArray[np.bool_], ids: NDArray[np.uint32], text: str) -> None:
        ideographs = is_ideograph(text)
        if not ideographs.any():
            return
        begins = ideographs & ~self.segmenter(text)
        tokens = np.flatnonzero(self.ideograph_ids[ids])
        if self.byte_lengths is not None:
            widths = np.array([len(character.encode()) for character in text])
            first = np.cumsum(widths) - widths
            is_start, is_inside = np.zeros(widths.sum(), dtype=np.bool_), np.repeat(ideographs, widths)
            is_start[first[begins]] = True
            places = np.cumsum(self.byte_lengths[ids]) - self.byte_lengths[ids]
            words[:] = np.where(is_inside[places], is_start[places], words)
        elif len(tokens) == np.count_nonzero(ideographs):  # one token an ideograph: they stand in the same order
            words[tokens] = begins[ideographs]
        else:  # an ideograph that the vocabulary lacks, or one inside a longer piece: ask for offsets
            places = np.array([offset[0] for offset in self.tokenizer.encode(text, add_special_tokens=False).offsets])
            first = np.concatenate(([True], places[1:] != places[:-1]))  # not the second token of one ideograph
            words[:] = np.where(ideographs[places], begins[places] & first, words)


@numba.njit(cache=True)
def _merged(a, b):  # type: ignore[no-untyped-def]
    """The positions of two rising lists, each once, without 0."""
    merged = np.empty(len(a) + len(b), dtype=np.int64)
    count = last = i = j = 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i] <= b[j]):
            position = a[i]
            i += 1
        else:
            position = b[j]
            j += 1
        if position > last:
            merged[count] = last = position
            count += 1
    return merged[:count]
