"""The mask linter: from what masks look like, whether they are what the config says.

It knows the rows and the outcome, not how the masks were drawn, so it judges any masker. What must hold always is counted; what is random
is compared with its expected value, and fails beyond four standard errors (or the chi-square value that is as unlikely: 1 in 30,000).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from remask.data_prep.masking import MaskingConfig
from remask.data_prep.masks import FILL, INSIDE_PHRASE, PROTECTED, WORD_START, Masked
from remask.data_prep.rows import Rows

_TOO_FAR = 4.0
_SHORTFALL = 0.02  # of the budget, where whole words cannot fill it exactly


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
        _count("random tokens that are not ordinary", sum(_not_ordinary(masked, mask_id, ordinary) for masked in epochs)),
        _count("rows without a target", sum(_rows_without_target(rows, masked) for masked in epochs)),
        _rate(config, rows, epochs),
    ]
    if config.strategy != "token":
        findings.append(_count("words masked in part", sum(_broken_words(config, rows, masked) for masked in epochs)))
    findings.append(_replacements(config, rows, epochs, mask_id, len(ordinary)))
    if config.words_together:
        findings.append(_run_lengths(config, epochs))
    if len(epochs) > 1:
        findings.append(_overlap(config, rows, epochs))
    return findings


def _count(name: str, found: int) -> Finding:
    return Finding(name=name, expected="0", observed=f"{found:,}", ok=found == 0, how="none is allowed")


def _changed_elsewhere(rows: Rows, masked: Masked) -> int:
    untouched = np.ones(len(rows.ids), dtype=np.bool_)
    untouched[masked.positions] = False
    return int(np.count_nonzero((masked.inputs != rows.ids) & untouched))


def _not_ordinary(masked: Masked, mask_id: int, ordinary: NDArray[np.int32]) -> int:
    now = masked.inputs[masked.positions]
    return int(np.count_nonzero((now != masked.targets) & (now != mask_id) & ~np.isin(now, ordinary)))


def _per_row(rows: Rows, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the places lie in each row."""
    return np.bincount(np.searchsorted(rows.offsets, places, side="right") - 1, minlength=len(rows.offsets) - 1)


def _maskable(rows: Rows) -> NDArray[np.int64]:
    return _per_row(rows, np.flatnonzero((rows.marks & PROTECTED) == 0))


def _rows_without_target(rows: Rows, masked: Masked) -> int:
    return int(np.count_nonzero((_per_row(rows, np.unique(masked.positions)) == 0) & (_maskable(rows) > 0)))


def _rate(config: MaskingConfig, rows: Rows, epochs: Sequence[Masked]) -> Finding:
    maskable = _maskable(rows)
    budgets = np.where(maskable > 0, np.maximum(1, np.floor(config.rate * maskable + 0.5)), 0)
    targets = np.stack([_per_row(rows, np.unique(masked.positions)) for masked in epochs])
    expected, observed = budgets.sum() / maskable.sum(), targets.mean(axis=0).sum() / maskable.sum()
    if config.strategy == "token":
        wrong = int(np.count_nonzero(targets != budgets))
        ok, how = wrong == 0, f"{wrong:,} rows miss their exact budget"
    else:
        ok = (1 - _SHORTFALL) * expected <= observed <= (1 + _SHORTFALL) * expected
        how = f"whole words may miss it by {_SHORTFALL:.0%}"
    return Finding(name="rate", expected=f"{expected:.2%}", observed=f"{observed:.2%}", ok=bool(ok), how=how)


def _units(config: MaskingConfig, rows: Rows) -> NDArray[np.int64]:
    """The number of the word, or phrase, that each token belongs to."""
    starts = (rows.marks & WORD_START) != 0
    if config.strategy == "phrase":
        starts &= (rows.marks & INSIDE_PHRASE) == 0
    protected = (rows.marks & PROTECTED) != 0
    starts |= protected | np.concatenate(([True], protected[:-1]))
    return np.cumsum(starts)


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


def _run_lengths(config: MaskingConfig, epochs: Sequence[Masked]) -> Finding:
    drawn = np.concatenate([masked.drawn for masked in epochs])
    counts = np.bincount(drawn[(drawn > 0) & (drawn != FILL)], minlength=len(config.words_together) + 1)[1:].astype(np.float64)
    expected = np.array(config.words_together)
    if len(counts) > len(expected):
        longest = len(counts)
        return Finding(name="words in a run", expected=f"at most {len(expected)}", observed=str(longest), ok=False, how="none is allowed")
    ok, how = _chi_square(counts, expected)
    return Finding(name="words in a run", expected=_shares(expected), observed=_shares(counts / max(counts.sum(), 1)), ok=ok, how=how)


def _overlap(config: MaskingConfig, rows: Rows, epochs: Sequence[Masked]) -> Finding:
    """Targets of one epoch that are targets again in the next: as many as by chance, or all of them where masks do not change."""
    static = config.refresh == "never" or (config.refresh == "copies" and config.copies == 1)
    shares = []
    for before, after in pairwise(epochs):
        again = _per_row(rows, np.intersect1d(before.positions, after.positions))
        targets = _per_row(rows, np.unique(before.positions))
        shares.append(again[targets > 0] / targets[targets > 0])
    share = np.concatenate(shares)
    observed, error = float(share.mean()), float(share.std() / math.sqrt(max(len(share), 1)))
    if static:
        return Finding(name="overlap of epochs", expected="100%", observed=f"{observed:.1%}", ok=observed == 1.0, how="masks never change")
    expected = float(np.mean([len(np.unique(masked.positions)) for masked in epochs]) / max(_maskable(rows).sum(), 1))
    margin = _TOO_FAR * error + 0.1 * expected  # words of another length are drawn a little more or less often than the rate says
    ok = abs(observed - expected) <= margin
    return Finding(
        name="overlap of epochs", expected=f"{expected:.1%}", observed=f"{observed:.1%}", ok=ok, how=f"at most {margin:.1%} apart by chance"
    )


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
