"""The mask linter: from what masks look like, whether they are what the config says.

It judges the outcome, so it judges any masker; of the masker's own word it takes only where a run begins, because two runs may touch. What
must hold always is counted; what is random is compared with its expected value, and fails beyond four standard errors (or the chi-square
value that is as unlikely: 1 in 30,000).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remask.data_prep.masking import MaskingConfig
from remask.data_prep.masks import FILL, INSIDE_PHRASE, PROTECTED, WORD_START, Masked
from remask.data_prep.rows import Rows

_TOO_FAR = 4.0
_RUN_DISTANCE = 0.1  # between the lengths of runs and a simulation that knows nothing of crowded rows


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    expected: str
    observed: str
    ok: bool
    how: str
    """What the verdict rests on."""


def lint(config: MaskingConfig, rows: Rows, epochs: Sequence[Masked], mask_id: int, ordinary: NDArray[np.int32]) -> list[Finding]:
    """Everything about the masks of the same rows in successive epochs."""
    findings = [
        _count("protected tokens masked", sum(int(np.count_nonzero(rows.marks[m.positions] & PROTECTED)) for m in epochs)),
        _count("other tokens changed", sum(_changed_elsewhere(rows, masked) for masked in epochs)),
        _count("targets that are not what stood there", sum(int(np.sum(rows.ids[m.positions] != m.targets)) for m in epochs)),
        _count("targets that come twice", sum(len(m.positions) - len(np.unique(m.positions)) for m in epochs)),
        _count("random tokens that are not ordinary", sum(_not_ordinary(config, masked, mask_id, ordinary) for masked in epochs)),
        _count("rows without a target", sum(_rows_without_target(rows, masked) for masked in epochs)),
        _rate(config, rows, epochs),
    ]
    if config.strategy != "token":
        findings.append(_count("words masked in part", sum(_broken_words(config, rows, masked) for masked in epochs)))
    findings.append(_replacements(config, rows, epochs, mask_id, len(ordinary)))
    findings.append(_variety(config, epochs, mask_id, len(ordinary)))
    if config.words_together:
        findings.append(_run_lengths(config, rows, epochs))
    if len(epochs) > 1:
        findings.append(_overlap(config, rows, epochs))
    return findings


def _count(name: str, found: int) -> Finding:
    return Finding(name=name, expected="0", observed=f"{found:,}", ok=found == 0, how="none is allowed")


def _changed_elsewhere(rows: Rows, masked: Masked) -> int:
    untouched = np.ones(len(rows.ids), dtype=np.bool_)
    untouched[masked.positions] = False
    return int(np.count_nonzero((masked.inputs != rows.ids) & untouched))


def _not_ordinary(config: MaskingConfig, masked: Masked, mask_id: int, ordinary: NDArray[np.int32]) -> int:
    """With similar there are no mask tokens either."""
    now = masked.inputs[masked.positions]
    is_mask = (now == mask_id) & (config.strategy != "similar")
    return int(np.count_nonzero((now != masked.targets) & ~is_mask & ~np.isin(now, ordinary)))


def _per_row(rows: Rows, places: NDArray[Any]) -> NDArray[np.int64]:
    """How many of the places lie in each row."""
    return np.bincount(np.searchsorted(rows.offsets, places, side="right") - 1, minlength=len(rows.offsets) - 1)


def _maskable(rows: Rows) -> NDArray[np.int64]:
    return _per_row(rows, np.flatnonzero((rows.marks & PROTECTED) == 0))


def _rows_without_target(rows: Rows, masked: Masked) -> int:
    return int(np.count_nonzero((_per_row(rows, np.unique(masked.positions)) == 0) & (_maskable(rows) > 0)))


def _rate(config: MaskingConfig, rows: Rows, epochs: Sequence[Masked]) -> Finding:
    """The budget of every row, exactly: no more, except by a first unit that is longer; no less, while a unit is left that fits."""
    maskable, units = _maskable(rows), _units(config, rows)
    budgets = np.where(maskable > 0, np.maximum(1, np.floor(config.rate * maskable + 0.5)), 0).astype(np.int64)
    sizes = np.bincount(units)
    row_of_unit = np.searchsorted(rows.offsets, np.searchsorted(units, np.arange(len(sizes))), side="right") - 1
    free = np.bincount(units, weights=(rows.marks & PROTECTED) == 0) > 0
    wrong = total = 0
    for masked in epochs:
        places = np.unique(masked.positions)
        targets = _per_row(rows, places)
        total += int(targets.sum())
        taken = np.bincount(units[places], minlength=len(sizes)) > 0
        smallest = np.full(len(budgets), np.iinfo(np.int64).max)
        left_over = free & ~taken
        np.minimum.at(smallest, row_of_unit[left_over], sizes[left_over])
        several = np.bincount(row_of_unit[taken], minlength=len(budgets)) > 1
        wrong += int(np.count_nonzero((targets > budgets) & several | (smallest <= budgets - targets)))
    return Finding(
        name="rate",
        expected=f"{budgets.sum() / max(maskable.sum(), 1):.2%}",
        observed=f"{total / len(epochs) / max(maskable.sum(), 1):.2%}",
        ok=wrong == 0,
        how=f"{wrong:,} rows miss their exact budget",
    )


def _units(config: MaskingConfig, rows: Rows) -> NDArray[np.int64]:
    """The number of the word, or phrase, that each token belongs to."""
    starts = (rows.marks & WORD_START) != 0
    if config.strategy == "phrase":
        starts &= (rows.marks & INSIDE_PHRASE) == 0
    protected = (rows.marks & PROTECTED) != 0
    starts |= protected | np.concatenate(([True], protected[:-1]))
    if config.strategy == "token":
        starts[:] = True
    return np.cumsum(starts) - 1


def _broken_words(config: MaskingConfig, rows: Rows, masked: Masked) -> int:
    units = _units(config, rows)
    sizes, taken = np.bincount(units), np.bincount(units[np.unique(masked.positions)], minlength=int(units[-1]) + 1)
    return int(np.count_nonzero((taken > 0) & (taken < sizes)))


def _replacements(config: MaskingConfig, rows: Rows, epochs: Sequence[Masked], mask_id: int, ordinary: int) -> Finding:
    """Targets that were masked, made random and kept: by token, with span by span, with similar by word (changed and kept)."""
    counts = np.zeros(3)
    chance = 0.0  # that a random replacement is what stood there
    for masked in epochs:
        now = masked.inputs[masked.positions]
        kinds = np.where(now == mask_id, 0, np.where(now == masked.targets, 2, 1))
        groups = np.arange(len(now))
        if config.strategy == "span":
            groups = np.cumsum(masked.drawn > 0)
        elif config.strategy == "similar":
            groups = _units(config, rows)[masked.positions]
        first = np.concatenate(([True], groups[1:] != groups[:-1])) if len(groups) else np.empty(0, dtype=np.bool_)
        if not first.any():
            continue
        lowest = np.minimum.reduceat(kinds, np.flatnonzero(first))  # a group with one changed token is not kept
        counts += np.bincount(lowest, minlength=3)
        sizes = np.diff(np.append(np.flatnonzero(first), len(now)))
        chance += float(np.sum((1 / ordinary) ** sizes))
    chance *= config.random_share / max(counts.sum(), 1)
    shares = np.array([config.mask_share, config.random_share - chance, 1 - config.mask_share - config.random_share + chance])
    if config.strategy == "similar":  # a similar word and a random one look alike; a random one may be the same by chance, as above
        counts, shares = np.array([counts[0] + counts[1], counts[2]]), np.array([shares[0] + shares[1], shares[2]])
    ok, how = _chi_square(counts, shares)
    names = "changed/kept" if config.strategy == "similar" else "mask/random/kept"
    return Finding(name=names, expected=_shares(shares), observed=_shares(counts / max(counts.sum(), 1)), ok=ok, how=how)


def _variety(config: MaskingConfig, epochs: Sequence[Masked], mask_id: int, ordinary: int) -> Finding:
    """How many different tokens stand in for others: about as many as so many draws from the vocabulary give."""
    changed = [m.inputs[m.positions][(m.inputs[m.positions] != m.targets) & (m.inputs[m.positions] != mask_id)] for m in epochs]
    now = np.concatenate(changed)
    expected = ordinary * (1 - (1 - 1 / ordinary) ** len(now))
    ok = len(np.unique(now)) >= (0 if config.strategy == "similar" else 0.5 * expected)
    how = "similar words may be few" if config.strategy == "similar" else "fails at half of it"
    return Finding(name="different random tokens", expected=f"{expected:,.0f}", observed=f"{len(np.unique(now)):,}", ok=ok, how=how)


def _run_lengths(config: MaskingConfig, rows: Rows, epochs: Sequence[Masked]) -> Finding:
    """Words in each run, as the rows show them, next to runs of the config's lengths that are cut where the rows' budgets end."""
    units = _units(config, rows)
    most = len(config.words_together)
    counts = np.zeros(most + 1)
    for masked in epochs:
        starts = np.flatnonzero(masked.drawn > 0)
        ends = np.append(starts[1:], len(masked.drawn))
        words = units[masked.positions[ends - 1]] - units[masked.positions[starts]] + 1
        counts += np.bincount(np.minimum(words[masked.drawn[starts] != FILL], most + 1), minlength=most + 2)[1:]
    if counts[most]:
        return Finding(name="words in a run", expected=f"at most {most}", observed="more", ok=False, how="none is allowed")
    expected, observed = _simulated_runs(config, rows), counts[:most] / max(counts.sum(), 1)
    distance = float(np.abs(expected - observed).sum() / 2)
    margin = _RUN_DISTANCE + _TOO_FAR * math.sqrt(most / (4 * max(counts.sum(), 1)))
    how = f"{distance:.2f} of them elsewhere, fails at {margin:.2f}"
    return Finding(name="words in a run", expected=_shares(expected), observed=_shares(observed), ok=distance <= margin, how=how)


def _simulated_runs(config: MaskingConfig, rows: Rows) -> NDArray[np.float64]:
    """Shares of 1, 2, … words when runs are drawn one after the other until the budget is used up, the last one cut at a word's end."""
    rng = np.random.default_rng(1)  # fixed: the verdict on the same rows is always the same
    units, maskable = _units(config, rows), _maskable(rows)
    free = (rows.marks & PROTECTED) == 0
    sizes = np.bincount(units)
    counts = np.zeros(len(config.words_together))
    for row in rng.permutation(len(maskable))[:500]:
        inside = slice(int(rows.offsets[row]), int(rows.offsets[row + 1]))
        words = sizes[np.unique(units[inside][free[inside]])]
        if not len(words):
            continue
        for _ in range(4):
            left = budget = max(1, int(config.rate * maskable[row] + 0.5))
            while left > 0:
                drawn = min(1 + int(rng.choice(len(counts), p=config.words_together)), len(words))
                first = int(rng.integers(0, len(words) - drawn + 1))
                fitting = int(np.searchsorted(np.cumsum(words[first : first + drawn]), left, side="right"))
                if fitting == 0 and left < budget:
                    break  # filled up with single words, which do not count as runs
                fitting = max(fitting, 1)
                counts[fitting - 1] += 1
                left -= int(words[first : first + fitting].sum())
    shares: NDArray[np.float64] = counts / max(counts.sum(), 1)
    return shares


def _overlap(config: MaskingConfig, rows: Rows, epochs: Sequence[Masked]) -> Finding:
    """Targets of one epoch that are targets again in another, for the pair that is furthest off: as many as by chance, or all of them where
    refresh gives both the same masks."""
    maskable = np.maximum(_maskable(rows), 1)
    worst = Finding(name="overlap of epochs", expected="", observed="", ok=True, how="")
    furthest = -1.0
    for i, j in combinations(range(len(epochs)), 2):
        before, after = (np.unique(masked.positions) for masked in (epochs[i], epochs[j]))
        targets = _per_row(rows, before)
        observed = len(np.intersect1d(before, after)) / max(len(before), 1)
        if config.refresh_of(i) == config.refresh_of(j):
            expected, margin, how = 1.0, 0.0, "refresh gives them the same masks"
        else:
            expected = float((targets * (_per_row(rows, after) / maskable)).sum() / max(targets.sum(), 1))
            runs = max(int(np.count_nonzero(epochs[i].drawn > 0)), 1)
            margin = _TOO_FAR * math.sqrt(expected * (1 - expected) / runs) + 5 / runs  # of a few runs some may meet
            margin += 0.0 if config.strategy == "token" else expected  # in short rows few words fit into the budget, and come again
            how = f"at most {margin:.1%} apart by chance"
        off = abs(observed - expected) / (margin + 1e-9) if observed != expected else 0.0
        if off > furthest:
            furthest = off
            name = f"overlap of epochs {i} and {j}"
            worst = Finding(name=name, expected=f"{expected:.1%}", observed=f"{observed:.1%}", ok=off <= 1, how=how)
    return worst


def _chi_square(counts: NDArray[np.float64], shares: NDArray[np.float64]) -> tuple[bool, str]:
    """Whether counts are in these shares, by Wilson and Hilferty's normal form of chi-square; a share of 0 allows none."""
    if counts[shares <= 0].any():
        return False, "some of what must not occur"
    counts, shares = counts[shares > 0], shares[shares > 0]
    if len(shares) < 2 or not counts.sum():
        return bool(counts.sum()), "exact" if counts.sum() else "nothing to judge"
    expected = shares / shares.sum() * counts.sum()
    deviation, freedom = float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1
    spread = 2 / (9 * freedom)
    distance = ((deviation / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return distance < _TOO_FAR, f"{distance:+.1f} standard errors, fails at {_TOO_FAR:.0f}"


def _shares(values: NDArray[np.float64]) -> str:
    return "/".join(f"{100 * value:.1f}" for value in values) + "%"
