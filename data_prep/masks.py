"""Masks for a batch of rows: a pure function of the tokens, their marks and a key for each row.

The budget of a row is its rate times its maskable tokens, rounded to the nearest number and at least one. Strategies without runs (token,
whole-word, phrase) draw their units in random order and take each that still fits into the budget; if none fits, the first one. Strategies
with runs (ngram, span, similar) draw a number of words, then a place where so many free words follow each other; the last run is cut to
what is left of the budget, at a word's end. Units are never split, so a row can stay below its budget, and exceeds it only where its
first unit alone does.

`masks_reference.py` says the same for reading; a property test holds the two together, bit for bit.
"""

from dataclasses import dataclass, field

import numba
import numpy as np
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
        """Masks for the rows `ids[offsets[r]:offsets[r + 1]]`; `ids` is left as it is."""
        inputs = ids.copy()
        size = len(ids) + 1
        positions, targets, drawn = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int16)
        strategy = self.config.strategy
        how = (strategy == "token", strategy == "phrase", strategy == "span", strategy == "similar")
        count = _mask_rows(
            inputs, offsets, marks, keys, rates, how, self.run_thresholds, self.thresholds, self.mask_id, self.ordinary,
            self.similar.arrays, positions, targets, drawn,
        )  # fmt: skip
        return Masked(inputs=inputs, positions=positions[:count], targets=targets[:count], drawn=drawn[:count])

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


def ordinary_ids(pieces: list[str], protected: list[int]) -> NDArray[np.int32]:
    """Every id that stands for text: no special token, and no gap in the vocabulary."""
    special = set(protected)
    return np.array([i for i, piece in enumerate(pieces) if piece and i not in special], dtype=np.int32)


@numba.njit(cache=True, nogil=True)
def _find_tokens(marks, begin, end, starts):  # type: ignore[no-untyped-def]
    """Places of the row's tokens that may be masked; how many there are. Without a branch: they cost more than the work."""
    count = 0
    for t in range(begin, end):
        starts[count] = t
        count += (marks[t] & PROTECTED) == 0
    return count


@numba.njit(cache=True, nogil=True)
def _find_units(marks, begin, end, phrases, starts, sizes):  # type: ignore[no-untyped-def]
    """Where the row's units begin and how long they are: (how many, how many tokens in them). Without a branch, too."""
    units = tokens = 0
    inside = INSIDE_PHRASE if phrases else 0
    after_protected = True
    nowhere = end - begin  # where sizes of nothing are written
    for t in range(begin, end):
        mark = marks[t]
        free = (mark & PROTECTED) == 0
        begins = free & (after_protected | ((mark & WORD_START) != 0) & ((mark & inside) == 0))
        starts[units] = t
        units += begins
        tokens += free
        at = units - 1 if free else nowhere
        sizes[at] = t + 1 - starts[at]
        after_protected = not free
    return units, tokens


@numba.njit(cache=True, nogil=True)
def _draw_tokens(begin, starts, count, budget, key, chosen):  # type: ignore[no-untyped-def]
    """The first tokens of a random order: what `_draw_units` does where every unit is one token."""
    for turn in range(min(budget, count)):
        other = turn + below(count - turn, number(key, turn))
        place = starts[other]
        starts[other] = starts[turn]
        chosen[place - begin] = 1


@numba.njit(cache=True, nogil=True)
def _take(begin, starts, sizes, first, count, drawn, chosen):  # type: ignore[no-untyped-def]
    """Mark the tokens of `count` units from the first as one run."""
    for unit in range(first, first + count):
        for t in range(starts[unit] - begin, starts[unit] - begin + sizes[unit]):
            chosen[t] = -1
    chosen[starts[first] - begin] = drawn


@numba.njit(cache=True, nogil=True)
def _draw_units(begin, starts, sizes, units, budget, left, key, counter, drawn, order, chosen):  # type: ignore[no-untyped-def]
    """Free units in random order, each that fits into what is left; if the whole budget is left at the end, the first one drawn."""
    for unit in range(units):
        order[unit] = unit
    for turn in range(units):
        if left <= 0:
            break
        other = turn + below(units - turn, number(key, counter + turn))
        order[turn], order[other] = order[other], order[turn]
        unit = order[turn]
        if sizes[unit] <= left and chosen[starts[unit] - begin] == 0:
            _take(begin, starts, sizes, unit, 1, drawn, chosen)
            left -= sizes[unit]
    if left == budget and units:
        _take(begin, starts, sizes, order[0], 1, drawn, chosen)


@numba.njit(cache=True, nogil=True)
def _fits(begin, starts, sizes, first, count, chosen):  # type: ignore[no-untyped-def]
    """Whether these units are free and follow each other."""
    for unit in range(first, first + count):
        if chosen[starts[unit] - begin] != 0:
            return False
        if unit > first and starts[unit] != starts[unit - 1] + sizes[unit - 1]:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _draw_runs(begin, starts, sizes, units, budget, key, runs, order, chosen):  # type: ignore[no-untyped-def]
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
                if not _fits(begin, starts, sizes, first, length, chosen):
                    continue
                count = tokens = 0
                while count < length and tokens + sizes[first + count] <= left:
                    tokens += sizes[first + count]
                    count += 1
                if count == 0 and left == budget:
                    count, tokens = 1, sizes[first]
                if count:
                    _take(begin, starts, sizes, first, count, drawn, chosen)
                    left -= tokens
                    placed = True
                    break
            length -= 1
        misses += not placed
    if left > 0:
        _draw_units(begin, starts, sizes, units, budget, left, key, counter, FILL, order, chosen)


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
def _replace_words(inputs, begin, marks, positions, drawn, key, mask_below, random_below, ordinary, similar):  # type: ignore[no-untyped-def]
    """Word by word: a similar one, a random one, or the same; where no similar one is known, a random one."""
    i = 0
    while i < len(positions):
        t, size = positions[i], 1
        while i + size < len(positions) and drawn[i + size] == 0 and not marks[t + size] & WORD_START:
            size += 1
        bits = number(key, REPLACEMENTS + t - begin)
        decided = bits >> np.uint64(32)
        if decided < random_below and not (decided < mask_below and _similar_word(inputs, t, size, bits, *similar)):
            for k in range(t, t + size):
                inputs[k] = ordinary[below(len(ordinary), number(key, REPLACEMENTS + k - begin) << np.uint64(32))]
        i += size


@numba.njit(cache=True, nogil=True)
def _replace_tokens(inputs, begin, positions, drawn, key, by_run, mask_below, random_below, mask_id, ordinary):  # type: ignore[no-untyped-def]
    """Token by token, or the same decision for all of a run: the mask, a random token, or the same."""
    decided = np.uint64(0)
    for i in range(len(positions)):
        t = positions[i]
        bits = number(key, REPLACEMENTS + t - begin)
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
    starts, sizes, order = np.zeros(longest + 1, np.int64), np.zeros(longest + 1, np.int64), np.zeros(longest + 1, np.int64)
    chosen = np.zeros(longest, dtype=np.int16)  # a run's first token: words drawn; its others: -1
    count = 0
    for row in range(len(offsets) - 1):
        begin, end, key = np.int64(offsets[row]), np.int64(offsets[row + 1]), keys[row]
        if by_token:
            tokens = _find_tokens(marks, begin, end, starts)
        else:
            units, tokens = _find_units(marks, begin, end, phrases, starts, sizes)
        budget = max(1, np.int64(rates[row] * tokens + 0.5)) if tokens else 0
        if by_token:
            _draw_tokens(begin, starts, tokens, budget, key, chosen)
        elif len(runs):
            _draw_runs(begin, starts, sizes, units, budget, key, runs, order, chosen)
        else:
            _draw_units(begin, starts, sizes, units, budget, budget, key, 0, 1, order, chosen)
        first = count
        for t in range(begin, end):  # written in any case, counted if chosen: no branch
            how_many = chosen[t - begin]
            chosen[t - begin] = 0
            positions[count], targets[count], drawn[count] = t, inputs[t], max(how_many, 0)
            count += how_many != 0
        places, firsts = positions[first:count], drawn[first:count]
        if by_word:
            _replace_words(inputs, begin, marks, places, firsts, key, mask_below, random_below, ordinary, similar)
        else:
            _replace_tokens(inputs, begin, places, firsts, key, by_run, mask_below, random_below, mask_id, ordinary)
    return count
