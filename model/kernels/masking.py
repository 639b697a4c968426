"""Masks on the device, for single tokens and spans: the same bits as the loader's (`data_prep/masks.py`), a program for each row.

A row is one block of registers. What the loader keeps in arrays (which tokens are free, which are taken, which unit each is of) is a vector
here, and looking something up is a sum under a condition, so nothing is written before the end and nothing can race.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_ROW = 2048
WARPS = 4
# As in the loader; Triton reads only constants of its own kind.
MAX_RUN, TRIES, MISSES, REPLACEMENTS = tl.constexpr(16), tl.constexpr(8), tl.constexpr(8), tl.constexpr(1 << 32)


def mask_tokens(
    ids: Tensor, offsets: Tensor, marks: Tensor, keys: Tensor, rates: Tensor, how: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """As the loader's masker with the strategy token: inputs, positions of the targets, and the targets.

    ids (tokens,) int32, offsets (rows + 1,) int32, marks (tokens,) uint8, keys (rows,) int64 holding 64 bits, rates (rows,) fp64. `how` has
    the masker's `mask_below`, `random_below`, `mask_id` and `ordinary` (ids that random tokens are drawn from, on the device).
    """
    return _mask(mask_token_rows, ids, offsets, marks, keys, rates, how, {})


def mask_spans(
    ids: Tensor, offsets: Tensor, marks: Tensor, keys: Tensor, rates: Tensor, how: dict[str, Any], run_thresholds: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the strategy span; `run_thresholds` (lengths,) int64 as the masker has them."""
    if not 1 <= len(run_thresholds) <= MAX_RUN.value:
        raise ValueError(f"run_thresholds: {len(run_thresholds)} lengths were given, it must be from 1 to {MAX_RUN.value}")
    return _mask(mask_span_rows, ids, offsets, marks, keys, rates, how, {"runs": run_thresholds, "lengths": len(run_thresholds)})


def _mask(
    kernel: Any, ids: Tensor, offsets: Tensor, marks: Tensor, keys: Tensor, rates: Tensor, how: dict[str, Any], more: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    inputs, taken = torch.empty_like(ids), torch.zeros_like(marks)
    longest = int(offsets.diff().max()) if len(offsets) > 1 else 0
    if longest > MAX_ROW:
        raise ValueError(f"offsets: a row of {longest} tokens was given, at most {MAX_ROW} fit into a program's registers")
    if longest:
        kernel[(len(offsets) - 1,)](
            ids, offsets, marks, keys, rates, how["ordinary"], inputs, taken, len(how["ordinary"]), how["mask_id"], how["mask_below"],
            how["random_below"], **more, BLOCK=triton.next_power_of_2(longest), num_warps=WARPS,
        )  # fmt: skip
    positions = taken.nonzero().flatten()
    return inputs, positions, ids[positions]


@triton.jit
def _number(key, n):
    """The n-th number of a key: splitmix64's finaliser at n + 1 steps of the golden ratio."""
    x = key + (n.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _below(bound, bits):
    """From 0 to below the bound, by the upper half of the bits."""
    return (((bits >> 32) * bound.to(tl.uint64)) >> 32).to(tl.int32)


@triton.jit
def _row_of(offsets, marks, keys, rates, BLOCK: tl.constexpr):
    """Of this program's row: where it begins, its places, which are free, its key and its budget."""
    row = tl.program_id(0)
    begin = tl.load(offsets + row).to(tl.int64)
    length = (tl.load(offsets + row + 1).to(tl.int64) - begin).to(tl.int32)
    places = tl.arange(0, BLOCK)
    inside = places < length
    free = inside & ((tl.load(marks + begin + places, mask=inside, other=2) & 2) == 0)
    tokens = tl.sum(free.to(tl.int32), 0)
    wanted = (tl.load(rates + row) * tokens.to(tl.float64) + 0.5).to(tl.int32)
    budget = tl.where(tokens > 0, tl.maximum(wanted, 1), 0)
    return begin, length, places, inside, free, tl.load(keys + row).to(tl.uint64, bitcast=True), budget


@triton.jit
def _replace(ids, ordinary, inputs, taken, begin, places, inside, key, chosen, deciding, ordinary_count, mask_id, mask_below, random_below):
    """The mask, a random token or the same, decided by the number of the place `deciding`; which random token, by each one's own."""
    token = tl.load(ids + begin + places, mask=inside, other=0)
    own = _number(key, places.to(tl.int64) + REPLACEMENTS)
    decided = (_number(key, deciding.to(tl.int64) + REPLACEMENTS) >> 32).to(tl.int64)
    other = tl.load(ordinary + _below(tl.zeros_like(places) + ordinary_count, own << 32), mask=inside, other=0)
    replaced = tl.where(decided < mask_below, mask_id, tl.where(decided < random_below, other, token))
    tl.store(inputs + begin + places, tl.where(chosen, replaced, token).to(inputs.dtype.element_ty), mask=inside)
    tl.store(taken + begin + places, chosen.to(tl.uint8), mask=inside)


@triton.jit
def mask_token_rows(
    ids, offsets, marks, keys, rates, ordinary, inputs, taken, ordinary_count, mask_id, mask_below, random_below, BLOCK: tl.constexpr
):
    begin, length, places, inside, free, key, left = _row_of(offsets, marks, keys, rates, BLOCK)
    chosen = places < 0
    counter = left * 0
    while left > 0:
        hit = (places == _below(length, _number(key, counter))) & free & (chosen == 0)
        chosen = chosen | hit
        left -= tl.sum(hit.to(tl.int32), 0)
        counter += 1
    _replace(ids, ordinary, inputs, taken, begin, places, inside, key, chosen, places, ordinary_count, mask_id, mask_below, random_below)


@triton.jit
def mask_span_rows(
    ids, offsets, marks, keys, rates, ordinary, inputs, taken, ordinary_count, mask_id, mask_below, random_below, runs, lengths,
    BLOCK: tl.constexpr,
):  # fmt: skip
    begin, _, places, inside, free, key, budget = _row_of(offsets, marks, keys, rates, BLOCK)
    mark = tl.load(marks + begin + places, mask=inside, other=2)
    before = tl.load(marks + begin + places - 1, mask=inside & (places > 0), other=2)
    starts_unit = free & (((before & 2) != 0) | ((mark & 1) != 0))
    unit = tl.where(free, tl.cumsum(starts_unit.to(tl.int32), 0) - 1, -1)
    units = tl.sum(starts_unit.to(tl.int32), 0)
    kinds = tl.arange(0, MAX_RUN)
    thresholds = tl.load(runs + kinds, mask=kinds < lengths, other=1 << 32)

    run_first = places * 0 - 1  # of a taken token: where its run begins
    left = budget
    counter = budget * 0
    misses = budget * 0
    while (left > 0) & (misses < MISSES) & (units > 0):
        bits = (_number(key, counter) >> 32).to(tl.int64)
        counter += 1
        many = tl.minimum(1 + tl.sum((bits >= thresholds).to(tl.int32), 0), units)
        placed = budget * 0
        while (many > 0) & (placed == 0):
            tries = budget * 0
            while (tries < TRIES) & (placed == 0):
                first = _below(units - many + 1, _number(key, counter))
                counter += 1
                tries += 1
                member = (unit >= first) & (unit < first + many)
                start = tl.min(tl.where(member, places, BLOCK), 0)
                end = tl.max(tl.where(member, places, -1), 0) + 1
                is_free = (tl.sum((member & (run_first >= 0)).to(tl.int32), 0) == 0) & (end - start == tl.sum(member.to(tl.int32), 0))
                count = tl.where(is_free, many, 0)
                while (count > 0) & (end - start > left):
                    count -= 1
                    end = tl.max(tl.where(member & (unit < first + count), places, start - 1), 0) + 1
                count = tl.where(is_free & (count == 0) & (left == budget), 1, count)
                member = (unit >= first) & (unit < first + count)
                run_first = tl.where(member, start, run_first)
                left -= tl.sum(member.to(tl.int32), 0)
                placed = tl.where(count > 0, 1, 0).to(tl.int32)
            many -= 1
        misses += 1 - placed

    order = places  # what is left of the budget is filled with single units, in random order
    turn = budget * 0
    while (turn < units) & (left > 0):
        other = turn + _below(units - turn, _number(key, counter + turn))
        at_turn = tl.sum(tl.where(places == turn, order, 0), 0)
        at_other = tl.sum(tl.where(places == other, order, 0), 0)
        order = tl.where(places == turn, at_other, tl.where(places == other, at_turn, order))
        member = unit == at_other
        size = tl.sum(member.to(tl.int32), 0)
        fits = (size <= left) & (tl.sum((member & (run_first >= 0)).to(tl.int32), 0) == 0)
        run_first = tl.where(member & fits, tl.min(tl.where(member, places, BLOCK), 0), run_first)
        left -= tl.where(fits, size, 0)
        turn += 1
    drawn_first = unit == tl.sum(tl.where(places == 0, order, 0), 0)
    run_first = tl.where(drawn_first & (left == budget) & (units > 0), tl.min(tl.where(drawn_first, places, BLOCK), 0), run_first)
    chosen, deciding = run_first >= 0, tl.maximum(run_first, 0)
    _replace(ids, ordinary, inputs, taken, begin, places, inside, key, chosen, deciding, ordinary_count, mask_id, mask_below, random_below)
