"""Masks for a batch of rows: a pure function of the tokens, their marks and a key for each row.

The budget of a row is its rate times its maskable tokens, rounded to the nearest number and at least one. Token draws places until so many
free ones are found. Whole-word and phrase draw their units in random order and take each that still fits into the budget; if none fits,
the first one. Strategies with runs (ngram, span, similar) draw a number of words, then a place where so many free words follow each other;
the last run is cut to what is left of the budget, at a word's end. Units are never split, so a row can stay below its budget, and exceeds
it only where its first unit alone does.

`masks_reference.py` says the same for reading; a property test holds the two together, bit for bit. Here loops run from 0 over slices of
a row, because the compiler then knows that no index is negative, and have no branches where these would be taken at random.
"""

import threading
from dataclasses import dataclass, field

import numba
import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros
from numpy.typing import NDArray

from remask.data_prep.keys import below, number
from remask.data_prep.masking import MaskingConfig
from remask.data_prep.sequences import add_token, entry_of
from remask.data_prep.similar import NO_SIMILAR, SimilarWords

# What is known of a token, in the bits of its mark.
WORD_START, PROTECTED, INSIDE_PHRASE = 1, 2, 4

FILL = 256
"""In `Masked.drawn`: a single word that was taken to reach the budget, where no run fitted any more."""

# Counters of a row's key: draws count from 0, replacements by the token's place from here. A row is shorter than 2^16 tokens and takes
# fewer than 2^32 draws.
REPLACEMENTS = 1 << 32
TRIES, MISSES = 8, 8
"""Places tried for a run before it is made a word shorter; runs without a place before the row is filled up with words."""


@dataclass(frozen=True, kw_only=True)
class Masked:
    """The rows as the model sees them, and what it must predict."""

    inputs: NDArray[np.int32]
    positions: NDArray[np.int32]
    """Of the targets, rising."""
    targets: NDArray[np.int32]
    """The tokens that stood there."""
    drawn: NDArray[np.int16]
    """At a unit's or run's first target how many words were drawn for it (1 for a unit, FILL for a filler); 0 at the others."""


@dataclass(frozen=True, kw_only=True)
class Masker:
    """A strategy with what it needs of the vocabulary."""

    config: MaskingConfig
    mask_id: int
    ordinary: NDArray[np.int32]
    """Ids that random tokens are drawn from."""
    similar: SimilarWords = field(default_factory=lambda: NO_SIMILAR)

    def __call__(
        self,
        ids: NDArray[np.int32],
        offsets: NDArray[np.int32],
        marks: NDArray[np.uint8],
        keys: NDArray[np.uint64],
        rates: NDArray[np.float64],
    ) -> Masked:
        """Masks for the rows `ids[offsets[r]:offsets[r + 1]]`; the ids themselves become the inputs."""
        positions, targets, drawn = _scratch(len(ids) + 1)
        strategy = self.config.strategy
        how = (strategy == "token", strategy == "phrase", strategy == "span", strategy == "similar")
        count = _mask_rows(
            ids, offsets, marks, keys, rates, how, self.run_thresholds, self.thresholds, self.mask_id, self.ordinary,
            self.similar.arrays, positions, targets, drawn,
        )  # fmt: skip
        return Masked(inputs=ids, positions=positions[:count].copy(), targets=targets[:count].copy(), drawn=drawn[:count].copy())

    @property
    def thresholds(self) -> tuple[np.uint64, np.uint64]:
        """Of 32 random bits: below the first a target is masked (or made similar), below the second it becomes random."""
        share = self.config.mask_share
        return np.uint64(round(share * 2**32)), np.uint64(round((share + self.config.random_share) * 2**32))

    @property
    def run_thresholds(self) -> NDArray[np.uint64]:
        """Of 32 random bits: below the first a run has one word, below the second two, …; empty for strategies without runs."""
        thresholds = np.round(np.cumsum(self.config.words_together) * 2**32).astype(np.uint64)
        thresholds[-1:] = 2**32
        return thresholds


_of_thread = threading.local()


def _scratch(size: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int16]]:
    """Room for the targets of `size` tokens, kept by each thread: fresh memory for every batch costs as much as half of the masking."""
    if getattr(_of_thread, "size", 0) < size:
        _of_thread.arrays = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int16)
        _of_thread.size = size
    arrays: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int16]] = _of_thread.arrays
    return arrays


def ordinary_ids(pieces: list[str], protected: list[int]) -> NDArray[np.int32]:
    """Every id that stands for text: no special token, and no gap in the vocabulary."""
    special = set(protected)
    return np.array([i for i, piece in enumerate(pieces) if piece and i not in special], dtype=np.int32)


@numba.njit(cache=True, nogil=True)
def _find_units(marks, phrases, starts, ends):  # type: ignore[no-untyped-def]
    """Where the units of a row begin and end: (how many, how many tokens in them)."""
    one, units, closed, tokens = np.uint8(1), np.uint64(0), np.uint64(0), np.uint64(0)
    inside = np.uint8(INSIDE_PHRASE if phrases else 0)
    before = np.uint8(0)  # whether the token before is free
    for t in range(len(marks)):
        mark = marks[t]
        free = one ^ ((mark >> one) & one)
        begins = free & ((before ^ one) | (mark & one & np.uint8((mark & inside) == 0)))
        ends[closed] = t
        closed += np.uint64(before & (begins | (free ^ one)))
        starts[units] = t
        units += np.uint64(begins)
        tokens += np.uint64(free)
        before = free
    ends[closed] = len(marks)
    return np.int64(units), np.int64(tokens)


@numba.njit(cache=True, nogil=True, inline="always")
def _budget(rate, tokens):  # type: ignore[no-untyped-def]
    return max(1, np.int64(rate * tokens + 0.5)) if tokens else 0


@numba.njit(cache=True, nogil=True)
def _draw_tokens(marks, rate, key, bits):  # type: ignore[no-untyped-def]
    """Single tokens, as one bit each: places are drawn until enough of them were free."""
    tokens = 0
    for t in range(len(marks)):
        tokens += (marks[t] & np.uint8(PROTECTED)) == 0
    left = _budget(rate, tokens)
    counter = 0
    while left > 0:
        place = np.uint64(below(len(marks), number(key, counter)))
        counter += 1
        bit = np.uint64(1) << (place & np.uint64(63))
        taken = ((bits[place >> np.uint64(6)] & bit) == 0) & ((marks[place] & np.uint8(PROTECTED)) == 0)
        bits[place >> np.uint64(6)] |= bit * np.uint64(taken)
        left -= taken


@numba.njit(cache=True, nogil=True)
def _list_tokens(bits, inputs, positions, targets, drawn):  # type: ignore[no-untyped-def]
    """The places of set bits, rising; how many there are. The bits are cleared."""
    count = np.uint64(0)
    for word in range(len(bits)):
        left = bits[word]
        bits[word] = np.uint64(0)
        while left:
            place = np.uint64(64 * word) + np.uint64(trailing_zeros(left))
            left &= left - np.uint64(1)
            positions[count], targets[count], drawn[count] = place, inputs[place], 1
            count += np.uint64(1)
    return count


@numba.njit(cache=True, nogil=True)
def _list_runs(chosen, inputs, positions, targets, drawn):  # type: ignore[no-untyped-def]
    """The places of chosen tokens, rising, written in any case and counted if chosen; how many there are. The choice is cleared."""
    count = np.uint64(0)
    for t in range(len(inputs)):
        words = chosen[t]
        chosen[t] = 0
        positions[count], targets[count], drawn[count] = t, inputs[t], max(words, 0)
        count += np.uint64(words != 0)
    return count


@numba.njit(cache=True, nogil=True)
def _take(starts, ends, first, count, drawn, chosen):  # type: ignore[no-untyped-def]
    """Mark the tokens of `count` units from the first as one run."""
    for t in range(starts[first], ends[first + count - 1]):
        chosen[t] = -1
    chosen[starts[first]] = drawn


@numba.njit(cache=True, nogil=True)
def _draw_units(starts, ends, units, budget, left, key, counter, drawn, order, chosen):  # type: ignore[no-untyped-def]
    """Free units in random order, each that fits into what is left; if the whole budget is left at the end, the first one drawn."""
    for unit in range(units):
        order[unit] = unit
    for turn in range(units):
        if left <= 0:
            break
        other = turn + below(units - turn, number(key, counter + turn))
        order[turn], order[other] = order[other], order[turn]
        unit = order[turn]
        size = ends[unit] - starts[unit]
        if size <= left and chosen[starts[unit]] == 0:
            _take(starts, ends, unit, 1, drawn, chosen)
            left -= size
    if left == budget and units:
        _take(starts, ends, order[0], 1, drawn, chosen)


@numba.njit(cache=True, nogil=True)
def _fits(starts, ends, first, count, chosen):  # type: ignore[no-untyped-def]
    """Whether these units are free and follow each other."""
    fits = True
    for unit in range(first, first + count):
        fits &= chosen[starts[unit]] == 0 and (unit == first or starts[unit] == ends[unit - 1])
    return fits


@numba.njit(cache=True, nogil=True)
def _draw_runs(starts, ends, units, budget, key, runs, order, chosen):  # type: ignore[no-untyped-def]
    left, counter, misses = budget, 0, 0
    while left > 0 and misses < MISSES and units > 0:
        bits = number(key, counter) >> np.uint64(32)
        counter += 1
        drawn = 1
        while bits >= runs[drawn - 1]:
            drawn += 1
        placed = False
        length = min(drawn, units)
        while length > 0 and not placed:
            for _ in range(TRIES):
                first = below(units - length + 1, number(key, counter))
                counter += 1
                if not _fits(starts, ends, first, length, chosen):
                    continue
                count = length
                while count > 0 and ends[first + count - 1] - starts[first] > left:
                    count -= 1
                if count == 0 and left == budget:
                    count = 1
                if count > 0:
                    _take(starts, ends, first, count, drawn, chosen)
                    left -= ends[first + count - 1] - starts[first]
                    placed = True
                    break
            length -= 1
        misses += not placed
    if left > 0:
        _draw_units(starts, ends, units, budget, left, key, counter, FILL, order, chosen)


@numba.njit(cache=True, nogil=True)
def _similar_word(inputs, t, size, bits, words, word_offsets, slots, others, other_offsets):  # type: ignore[no-untyped-def]
    """Put a similar word in the place of the one at `t`; False if none is known."""
    hashed = np.uint64(0)
    for i in range(t, t + size):
        hashed = add_token(hashed, inputs[i])
    entry = entry_of(inputs, t, t + size, hashed, words, word_offsets, slots)
    if entry < 0:
        return False
    count = (other_offsets[entry + 1] - other_offsets[entry]) // size
    first = other_offsets[entry] + size * below(count, bits << np.uint64(32))
    for i in range(size):
        inputs[t + i] = others[first + i]
    return True


@numba.njit(cache=True, nogil=True)
def _replace_words(inputs, marks, places, drawn, key, mask_below, random_below, ordinary, similar):  # type: ignore[no-untyped-def]
    """Word by word: a similar one, a random one, or the same; where no similar one is known, a random one."""
    i = 0
    while i < len(places):
        t, size = places[i], 1
        while i + size < len(places) and drawn[i + size] == 0 and not marks[t + size] & WORD_START:
            size += 1
        bits = number(key, REPLACEMENTS + t)
        decided = bits >> np.uint64(32)
        if decided < random_below and not (decided < mask_below and _similar_word(inputs, t, size, bits, *similar)):
            for k in range(t, t + size):
                inputs[k] = ordinary[below(len(ordinary), number(key, REPLACEMENTS + k) << np.uint64(32))]
        i += size


@numba.njit(cache=True, nogil=True)
def _replace_tokens(inputs, places, drawn, key, by_run, mask_below, random_below, mask_id, ordinary):  # type: ignore[no-untyped-def]
    """Token by token, or the same decision for all of a run: the mask, a random token, or the same."""
    decided = np.uint64(0)
    for i in range(len(places)):
        t = np.uint64(places[i])
        bits = number(key, np.uint64(REPLACEMENTS) + t)
        if drawn[i] > 0 or not by_run:
            decided = bits >> np.uint64(32)
        if decided < mask_below:
            inputs[t] = mask_id
        elif decided < random_below:
            inputs[t] = ordinary[below(len(ordinary), bits << np.uint64(32))]


@numba.njit(cache=True, nogil=True)
def _mask_rows(  # type: ignore[no-untyped-def]
    inputs, offsets, marks, keys, rates, how, runs, thresholds, mask_id, ordinary, similar, positions, targets, drawn
):
    by_token, phrases, by_run, by_word = how
    mask_below, random_below = thresholds
    longest = 0
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    starts, ends, order = np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    chosen = np.zeros(longest, dtype=np.int16)  # a run's first token: words drawn; its others: -1
    bits = np.zeros(longest // 64 + 1, dtype=np.uint64)
    total = np.uint64(0)
    for row in range(len(offsets) - 1):
        begin, end, key = np.int64(offsets[row]), np.int64(offsets[row + 1]), keys[row]
        row_inputs, row_marks = inputs[begin:end], marks[begin:end]
        if by_token:
            _draw_tokens(row_marks, rates[row], key, bits)
            count = _list_tokens(bits, row_inputs, positions[total:], targets[total:], drawn[total:])
        else:
            units, tokens = _find_units(row_marks, phrases, starts, ends)
            budget = _budget(rates[row], tokens)
            if len(runs):
                _draw_runs(starts, ends, units, budget, key, runs, order, chosen)
            else:
                _draw_units(starts, ends, units, budget, budget, key, 0, 1, order, chosen)
            count = _list_runs(chosen, row_inputs, positions[total:], targets[total:], drawn[total:])
        places, firsts = positions[total : total + count], drawn[total : total + count]
        if by_word:
            _replace_words(row_inputs, row_marks, places, firsts, key, mask_below, random_below, ordinary, similar)
        else:
            _replace_tokens(row_inputs, places, firsts, key, by_run, mask_below, random_below, mask_id, ordinary)
        places += begin
        total += count
    return total
