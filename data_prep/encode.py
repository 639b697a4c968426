"""Documents to one stream of ids that knows where its sentences, documents and words are.

Sentences are found in the text, and their ends carried over to tokens in the way that is exact for the tokenizer: by the bytes that ids
stand for, by encoding sentences one by one, or by the offsets that Hugging Face's tokenizers tell. Words follow from tables over the
vocabulary; in Chinese, if asked for, from a segmenter. Phrases are found in the tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from remask.data_prep.chinese import ChineseMarks, Segmenter
from remask.data_prep.engines import Engine
from remask.data_prep.marks import MarkConfig
from remask.data_prep.phrases import LEVELS, NO_SPANS, make_lexicon, united
from remask.data_prep.sentences import sentence_ends
from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.words import byte_lengths, continuation_tables, mark_words


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A stream of tokens; positions are one past a last token, rising, and every document's end is among the sentences'."""

    ids: NDArray[Any]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    """One for each document that was given; a document without a token ends where the one before it does."""
    words: NDArray[np.bool_]
    """True where a token begins a word."""
    phrases: NDArray[np.int64]
    """(first token, one past the last, level) of each phrase, in order: whole words of one document."""


EncodeDocuments = Callable[[list[bytes]], Encoded]


def document_encoder(vocabulary: Vocabulary, engine: Engine, marks: MarkConfig) -> EncodeDocuments:
    """The exact way for this tokenizer.

    A special token's name that stands in a text, such as [MASK], is text: it is broken by a space, for it must not become the token.
    """
    encode = _exact_encoder(vocabulary, engine)
    tables = continuation_tables(vocabulary)
    special = np.zeros(len(vocabulary.pieces), dtype=np.bool_)
    special[vocabulary.control_ids] = True
    names = [vocabulary.pieces[i].encode() for i in np.flatnonzero(special)]
    chinese = ChineseMarks(vocabulary, Segmenter(marks.words, marks.chinese_entities)) if marks.chinese_words else None
    lexicon = make_lexicon({"phrase": marks.phrases, "entity": marks.entities}, engine, vocabulary.pieces, vocabulary.specials["unk"])

    def encode_text_alone(documents: list[bytes]) -> Encoded:
        try:
            ids, sentences, ends = encode(documents)
            names_special = _any_of(special, ids)
        except _OtherBytesError:  # <mask> takes the space before it along
            names_special = True
        if names_special:
            documents = [_broken(document, names) for document in documents]
            ids, sentences, ends = encode(documents)
        words = mark_words(ids, ends, *tables)
        phrases = NO_SPANS
        if chinese is not None:
            phrases = np.insert(chinese.mark(words, ids, ends, documents), 2, LEVELS["entity"], axis=1)
        if len(lexicon.levels):
            phrases = united(lexicon.find(ids, words, ends), phrases, len(ids))
        return Encoded(
            ids=ids, sentences=_merged(sentences, ends), documents=ends, words=words, phrases=_of_whole_words(phrases, words, ends)
        )

    return encode_text_alone


def _of_whole_words(phrases: NDArray[np.int64], words: NDArray[np.bool_], documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """The spans that begin and end with words and do not reach from one document into the next."""
    begin, end = phrases[:, 0], phrases[:, 1]
    whole = words[begin] & np.append(words, True)[end]
    whole &= np.searchsorted(documents, begin, side="right") == np.searchsorted(documents, end - 1, side="right")
    chosen: NDArray[np.int64] = phrases[whole]
    return chosen


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


def _encode_by_bytes(documents: list[bytes], engine: Engine, lengths: NDArray[np.int64]) -> Streams:
    ids, counts = engine.encode(documents)
    ends = np.cumsum(counts)
    text_ends = np.cumsum([len(document) for document in documents])
    in_texts = [sentence_ends(document) + (end - len(document)) for document, end in zip(documents, text_ends, strict=True)]
    sentences, in_bytes = _tokens_at_bytes(ids, lengths, np.concatenate(in_texts), ends)
    if not np.array_equal(in_bytes, text_ends):
        raise _OtherBytesError("the tokenizer's ids stand for other bytes than the text's; sentence ends would be wrong")
    return ids, sentences, ends


@numba.njit(cache=True)
def _any_of(table, ids):  # type: ignore[no-untyped-def]
    """Whether an id is in the table."""
    found = False
    for i in ids:
        found |= table[i]
    return found


@numba.njit(cache=True)
def _tokens_at_bytes(ids, lengths, byte_ends, token_ends):  # type: ignore[no-untyped-def]
    """For each byte position how many tokens begin before it, and for each number of tokens how many bytes they stand for."""
    tokens = np.full(len(byte_ends), len(ids), dtype=np.int64)
    in_bytes = np.empty(len(token_ends), dtype=np.int64)
    byte = i = j = 0
    for token in range(len(ids) + 1):
        while i < len(byte_ends) and byte_ends[i] <= byte:
            tokens[i] = token
            i += 1
        while j < len(token_ends) and token_ends[j] == token:
            in_bytes[j] = byte
            j += 1
        if token < len(ids):
            byte += lengths[ids[token]]
    return tokens, in_bytes


def _encode_by_sentence(documents: list[bytes], engine: Engine) -> Streams:
    texts: list[bytes] = []
    sizes = []
    for document in documents:
        begin = 0
        ends = sentence_ends(document).tolist()
        for end in ends:
            texts.append(document[begin:end])
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
