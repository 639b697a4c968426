"""What `masks.py` does, for reading: one row at a time, in NumPy and plain Python. Fast enough for a look, far too slow to train with."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from remask.data_prep.keys import numbers
from remask.data_prep.masks import FILL, INSIDE_PHRASE, MISSES, PROTECTED, REPLACEMENTS, TRIES, WORD_START, Masked, Masker

Unit = list[int]
"""Places of tokens that are masked together."""


def mask(
    masker: Masker,
    ids: NDArray[np.int32],
    offsets: NDArray[np.int32],
    marks: NDArray[np.uint8],
    keys: NDArray[np.uint64],
    rates: NDArray[np.float64],
) -> Masked:
    """The same as `masker(ids, offsets, marks, keys, rates)`, with the ids left as they are."""
    inputs = ids.copy()
    drawn_at: dict[int, int] = {}  # place -> words drawn at a run's first token, 0 at its others
    for row, (begin, end) in enumerate(pairwise(offsets.tolist())):
        units = _units(masker, marks[begin:end])
        budget = int(np.floor(rates[row] * sum(map(len, units)) + 0.5))
        runs = _runs(masker, units, end - begin, max(1, budget), keys[row]) if units else []
        for run, words in runs:
            drawn_at.update({begin + place: 0 for place in run} | {begin + run[0]: words})
        for group in _decided_together(masker, sorted(runs), marks[begin:end]):
            _replace(masker, inputs[begin:end], group, keys[row])
    positions = np.array(sorted(drawn_at), dtype=np.int32)
    drawn = np.array([drawn_at[place] for place in positions.tolist()], dtype=np.int16)
    return Masked(inputs=inputs, positions=positions, targets=ids[positions], drawn=drawn)


def _units(masker: Masker, marks: NDArray[np.uint8]) -> list[Unit]:
    """Tokens, words or phrases of a row, in order; never a protected token."""
    strategy = masker.config.strategy
    units: list[Unit] = []
    for place, mark in enumerate(marks.tolist()):
        if mark & PROTECTED:
            continue
        begins = mark & WORD_START and not (strategy == "phrase" and mark & INSIDE_PHRASE)
        first = place == 0 or marks[place - 1] & PROTECTED
        if strategy == "token" or begins or first:
            units.append([place])
        else:
            units[-1].append(place)
    return units


def _draws(key: np.uint64) -> Iterator[int]:
    """The numbers of a key, one after the other, as 32 bits."""
    count = 0
    while True:
        yield from (numbers(key, np.arange(count, count + 256, dtype=np.uint64)) >> np.uint64(32)).tolist()
        count += 256


def _runs(masker: Masker, units: list[Unit], size: int, budget: int, key: np.uint64) -> list[tuple[Unit, int]]:
    """What is masked in a row, each with the number of words that was drawn for it."""
    draws = _draws(key)
    if masker.config.strategy == "token":
        return _tokens(units, size, budget, draws)
    thresholds = masker.run_thresholds.tolist()
    free = set(range(len(units)))
    chosen: list[tuple[Unit, int]] = []
    left = budget
    misses = 0
    while thresholds and left > 0 and misses < MISSES:
        bits = next(draws)
        drawn = 1 + sum(bits >= threshold for threshold in thresholds)
        taken = _place(units, free, min(drawn, len(units)), left, left == budget, draws)
        if not taken:
            misses += 1
            continue
        run = [place for unit in taken for place in units[unit]]
        free -= set(taken)
        left -= len(run)
        chosen.append((run, drawn))
    order = list(range(len(units)))
    for turn in range(len(order)):
        if left <= 0:
            break
        other = turn + (next(draws) * (len(order) - turn) >> 32)
        order[turn], order[other] = order[other], order[turn]
        unit = order[turn]
        if unit in free and len(units[unit]) <= left:
            chosen.append((units[unit], FILL if thresholds else 1))
            left -= len(units[unit])
    return chosen or [(units[order[0]], FILL if thresholds else 1)]


def _tokens(units: list[Unit], size: int, budget: int, draws: Iterator[int]) -> list[tuple[Unit, int]]:
    """Places of the row, of `size` tokens, until the budget of free ones is found."""
    free = {place for unit in units for place in unit}
    chosen: list[tuple[Unit, int]] = []
    while len(chosen) < budget:
        place = next(draws) * size >> 32
        if place in free:
            free.remove(place)
            chosen.append(([place], 1))
    return chosen


def _place(units: list[Unit], free: set[int], length: int, left: int, is_first: bool, draws: Iterator[int]) -> list[int]:
    """Free units that follow each other: so many, or fewer where no place is found or the budget ends; none if all is full."""
    for shorter in range(length, 0, -1):
        for _ in range(TRIES):
            first = next(draws) * (len(units) - shorter + 1) >> 32
            run = list(range(first, first + shorter))
            places = [place for unit in run for place in units[unit]]
            if not free.issuperset(run) or places != list(range(places[0], places[-1] + 1)):
                continue
            fitting = [unit for i, unit in enumerate(run) if sum(len(units[before]) for before in run[: i + 1]) <= left]
            if fitting or is_first:
                return fitting or run[:1]
    return []


def _decided_together(masker: Masker, runs: list[tuple[Unit, int]], marks: NDArray[np.uint8]) -> Iterator[Unit]:
    """Places that share one decision between mask, random and same: a run with span, a word with similar, else a token."""
    for run, _ in runs:
        if masker.config.strategy == "span":
            yield run
        elif masker.config.strategy == "similar":
            starts = [i for i, place in enumerate(run) if i == 0 or marks[place] & WORD_START]
            yield from (run[i:j] for i, j in zip(starts, [*starts[1:], len(run)], strict=True))
        else:
            yield from ([place] for place in run)


def _replace(masker: Masker, row: NDArray[np.int32], places: Unit, key: np.uint64) -> None:
    bits = numbers(key, np.array([REPLACEMENTS + place for place in places], dtype=np.uint64)).tolist()
    mask_below, random_below = masker.thresholds
    decided = bits[0] >> 32
    if decided < mask_below:
        if masker.config.strategy != "similar":
            row[places] = masker.mask_id
            return
        similar = _similar(masker, row[places])
        if similar:
            row[places] = similar[(bits[0] & 0xFFFFFFFF) * len(similar) >> 32]
            return
    if decided < random_below:
        row[places] = [masker.ordinary[(own & 0xFFFFFFFF) * len(masker.ordinary) >> 32] for own in bits]


def _similar(masker: Masker, word: NDArray[np.int32]) -> list[list[int]]:
    """The words of the same number of tokens that are similar to this one."""
    table = masker.similar
    for entry in range(len(table)):
        tokens = table.words[table.word_offsets[entry] : table.word_offsets[entry + 1]]
        if np.array_equal(tokens, word):
            others = table.others[table.other_offsets[entry] : table.other_offsets[entry + 1]]
            return [list(other) for other in others.reshape(-1, len(word))]
    return []
