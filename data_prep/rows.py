"""Rows out of their blocks: special tokens around them, sentence tasks drawn, and a mark for every token; straight from the mapped files.

Every row is [CLS] text [SEP], or [CLS] first [SEP] second [SEP] if it has two parts. Sentence tasks are drawn from the row's key: SOP
swaps the parts of half of the rows, NSP gives half of them the second part of a row of another document, as long as their own or nearly:
lengths, which say nothing about the text, must not tell the label. Strangers are from the same block; a row that finds none there, as in a
block that lies wholly inside one document, keeps its own part and does not count.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from remask.data_prep.blocks import CHANNELS
from remask.data_prep.keys import below, number
from remask.data_prep.masks import INSIDE_PHRASE, PROTECTED, REPLACEMENTS, WORD_START

SentenceTask = Literal["none", "nsp", "sop"]
_TASKS: dict[SentenceTask, int] = {"none": 0, "sop": 1, "nsp": 2}
_IDS, _ROWS, _SPLITS, _, _DOCUMENTS, _WORDS, _PHRASES = range(len(CHANNELS))
_TASK_DRAWS = 2 * REPLACEMENTS  # counters of a row's key: behind those of its masks


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows end to end, before masking."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]
    """Where each row begins, and the end: the cu_seqlens of attention."""
    marks: NDArray[np.uint8]
    segments: NDArray[np.uint8]
    """0 in the first part, 1 in the second."""
    labels: NDArray[np.int8]
    """Of the sentence task: 1 where the parts were swapped or the second is a stranger, 0 where not, -1 where neither can be."""
    documents: NDArray[np.int32] | None
    """If asked for: where each document's part of a row begins, and the end."""


@dataclass(frozen=True, kw_only=True)
class RowMaker:
    """How rows of one set are made."""

    cls_id: int
    sep_id: int
    protected: tuple[int, int, int, int, int]
    """The ids of pad, cls, sep, mask and unk, which are never masked."""
    task: SentenceTask
    row_budget: int
    """Tokens of text that fit into a row."""
    id_bytes: int
    words: bool
    """Whether word starts are marked; nobody who masks single tokens asks for them."""
    phrase_levels: tuple[int, ...]
    """Levels of phrases to mark; empty where nobody asks."""
    documents: bool
    """Whether to tell where documents begin inside the rows."""

    def __call__(self, addresses: NDArray[np.int64], sizes: NDArray[np.int64], rows: NDArray[np.int64], keys: NDArray[np.uint64]) -> Rows:
        """Rows by the addresses and sizes of their blocks' channels."""
        parts, labels = _plan(addresses, sizes, rows, keys, _TASKS[self.task], self.row_budget)
        texts = (parts[:, 1] - parts[:, 0]) + (parts[:, 3] - parts[:, 2])
        lengths = texts + 2 + (parts[:, 3] > parts[:, 2])
        offsets = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        size = int(offsets[-1])
        ids, marks, segments = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.uint8), np.empty(size, dtype=np.uint8)
        _fill(addresses, parts, offsets, self.id_bytes, self.words, self.cls_id, self.sep_id, self.protected, ids, marks, segments)
        if self.phrase_levels:
            _mark_phrases(addresses, sizes, parts, offsets, np.array(self.phrase_levels), marks)
        documents = _document_edges(addresses, sizes, parts, offsets) if self.documents else None
        return Rows(ids=ids, offsets=offsets, marks=marks, segments=segments, labels=labels, documents=documents)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_: Any, address: Any) -> Any:  # noqa: ARG001 (numba goes by the names)
    """A pointer from its address: NumPy arrays of many files cannot be handed to compiled code in one list without cost."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), codegen


@numba.njit(cache=True, nogil=True, inline="always")
def _values(address, size, kind):  # type: ignore[no-untyped-def]
    return numba.carray(_pointer(address), (size,), kind)


@numba.njit(cache=True, nogil=True)
def _stranger_of(row, offsets, splits, documents, budget, bits):  # type: ignore[no-untyped-def]
    """A row of another document in the same block whose second part fits behind this one's first; -1 if there is none.

    The first from a random place on whose second part is as long as this one's within a sixteenth, by as much longer as shorter; if there
    is none, the nearest in length within a quarter. Documents' rows follow each other.
    """
    document = np.searchsorted(documents, offsets[row], side="right")
    begin = np.uint32(0) if document == 0 else documents[document - 1]
    first = np.searchsorted(offsets, begin)
    behind = np.searchsorted(offsets, documents[document]) if document < len(documents) else len(offsets) - 1
    others = len(offsets) - 1 - (behind - first)
    own = np.int64(offsets[row + 1]) - np.int64(offsets[row]) - np.int64(splits[row])
    room = budget - np.int64(splits[row])
    near = min(own // 16, room - own)
    found, nearest = -1, own // 4 + 1
    start = below(others, bits)
    for i in range(others):
        other = start + i if start + i < others else start + i - others
        other = other if other < first else other + behind - first
        length = np.int64(offsets[other + 1]) - np.int64(offsets[other]) - np.int64(splits[other])
        if splits[other] and 0 < length <= room and abs(length - own) < nearest:
            found, nearest = other, abs(length - own)
            if nearest <= near:
                break
    return found


@numba.njit(cache=True, nogil=True)
def _plan(addresses, sizes, rows, keys, task, budget):  # type: ignore[no-untyped-def]
    """For each row where its parts begin and end in its block's tokens (the second is empty if there is none), and its label."""
    parts = np.zeros((len(rows), 4), dtype=np.int64)
    labels = np.full(len(rows), -1, dtype=np.int8)
    for i in range(len(rows)):
        offsets = _values(addresses[i, _ROWS], sizes[i, _ROWS], np.uint32)
        splits = _values(addresses[i, _SPLITS], sizes[i, _SPLITS], np.uint32)
        begin, end, split = np.int64(offsets[rows[i]]), np.int64(offsets[rows[i] + 1]), np.int64(splits[rows[i]])
        if split == 0:
            parts[i, 0], parts[i, 1] = begin, end
            continue
        parts[i, 0], parts[i, 1], parts[i, 2], parts[i, 3] = begin, begin + split, begin + split, end
        if task == 0:
            continue
        other = 0
        if task == 2:
            documents = _values(addresses[i, _DOCUMENTS], sizes[i, _DOCUMENTS], np.uint32)
            other = _stranger_of(rows[i], offsets, splits, documents, budget, number(keys[i], _TASK_DRAWS + 1))
            if other < 0:
                continue
        labels[i] = number(keys[i], _TASK_DRAWS) >> np.uint64(63)
        if labels[i] and task == 1:
            parts[i, 0], parts[i, 1], parts[i, 2], parts[i, 3] = begin + split, end, begin, begin + split
        elif labels[i]:
            parts[i, 2], parts[i, 3] = np.int64(offsets[other]) + np.int64(splits[other]), np.int64(offsets[other + 1])
    return parts, labels


@numba.njit(cache=True, nogil=True)
def _copy(tokens, words, first, with_words, protected, ids, marks):  # type: ignore[no-untyped-def]
    """Tokens of a block with their marks; `first` is the bit of the first one among the words.

    In loops from 0 over slices: for these the compiler knows that no index is negative, and makes vectors of them.
    """
    size = len(tokens)
    for t in range(size):
        ids[t] = tokens[t]
    if with_words:
        bits = np.uint64(first)
        for t in range(size):
            marks[t] = (words[bits >> np.uint64(3)] >> np.uint8(7 - (bits & np.uint64(7)))) & np.uint8(1)
            bits += np.uint64(1)
    else:
        marks[:size] = 0
    marks[0] |= np.uint8(WORD_START)
    a, b, c, d, unknown = protected
    unknowns = 0
    for t in range(size):
        token = ids[t]
        special = (token == a) | (token == b) | (token == c) | (token == d)
        marks[t] |= np.uint8(PROTECTED | WORD_START) * np.uint8(special) | np.uint8(PROTECTED) * np.uint8(token == unknown)
        unknowns += token == unknown
    if unknowns and with_words:
        _protect_words(ids, marks, unknown)


@numba.njit(cache=True, nogil=True)
def _protect_words(ids, marks, unknown):  # type: ignore[no-untyped-def]
    """A word with an unknown piece in it is not masked at all: its other pieces alone would be."""
    for t in range(len(ids)):
        if ids[t] == unknown:
            begin, end = t, t + 1
            while begin > 0 and not marks[begin] & WORD_START:
                begin -= 1
            while end < len(ids) and not marks[end] & WORD_START:
                end += 1
            for piece in range(begin, end):
                marks[piece] |= np.uint8(PROTECTED)


@numba.njit(cache=True, nogil=True)
def _fill(addresses, parts, offsets, id_bytes, with_words, cls_id, sep_id, protected, ids, marks, segments):  # type: ignore[no-untyped-def]
    special = np.uint8(PROTECTED | WORD_START)
    for i in range(len(parts)):
        at = offsets[i]
        ids[at], marks[at], segments[at] = cls_id, special, 0
        at += 1
        for part in range(2):
            begin, end = parts[i, 2 * part], parts[i, 2 * part + 1]
            if part == 1 and begin == end:
                break
            words = _values(addresses[i, _WORDS] + begin // 8, (end + 7) // 8 - begin // 8, np.uint8)
            row_ids, row_marks = ids[at : at + end - begin], marks[at : at + end - begin]
            if id_bytes == 2:
                tokens = _values(addresses[i, _IDS] + 2 * begin, end - begin, np.uint16)
                _copy(tokens, words, begin & 7, with_words, protected, row_ids, row_marks)
            else:
                wide_tokens = _values(addresses[i, _IDS] + 4 * begin, end - begin, np.uint32)
                _copy(wide_tokens, words, begin & 7, with_words, protected, row_ids, row_marks)
            segments[at : at + end - begin + 1] = part
            at += end - begin
            ids[at], marks[at] = sep_id, special
            at += 1


@numba.njit(cache=True, nogil=True)
def _document_edges(addresses, sizes, parts, offsets):  # type: ignore[no-untyped-def]
    """Where rows of one part begin, and documents inside them; [CLS] goes with the first document and [SEP] with the last."""
    edges = []
    for i in range(len(parts)):
        begin, end = parts[i, 0], parts[i, 1]
        ends = _values(addresses[i, _DOCUMENTS], sizes[i, _DOCUMENTS], np.uint32)
        edges.append(offsets[i])
        for d in range(np.searchsorted(ends, begin, side="right"), np.searchsorted(ends, end)):
            edges.append(np.int32(offsets[i] + 1 + np.int64(ends[d]) - begin))
    edges.append(offsets[len(parts)])
    return np.array(edges)


@numba.njit(cache=True, nogil=True)
def _mark_phrases(addresses, sizes, parts, offsets, levels, marks):  # type: ignore[no-untyped-def]
    """Tokens behind the first of a phrase go on with it."""
    for i in range(len(parts)):
        if addresses[i, _PHRASES] == 0:
            continue
        spans = _values(addresses[i, _PHRASES], sizes[i, _PHRASES], np.uint32)
        at = np.int64(offsets[i]) + 1
        for part in range(2):
            begin, end = parts[i, 2 * part], parts[i, 2 * part + 1]
            low, high = 0, len(spans) // 3
            while low < high:
                middle = (low + high) // 2
                if spans[3 * middle] < begin:
                    low = middle + 1
                else:
                    high = middle
            while low < len(spans) // 3 and spans[3 * low + 1] <= end:
                for level in levels:
                    if spans[3 * low + 2] == level:
                        for t in range(spans[3 * low] + 1, spans[3 * low + 1]):
                            marks[at + t - begin] |= np.uint8(INSIDE_PHRASE)
                low += 1
            at += end - begin + 1
