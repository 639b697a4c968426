"""What the steps of a throughput cell add up to: rates, MFU, shares of the step, and the tables."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remask.benchmarks.record import Table

FORMULA = "MFU = FLOPs of forward and backward pass over real tokens, all ranks / (seconds x the sum of all devices' peak FLOP/s)"
PARTS = ("data_wait", "forward", "backward", "optimizer", "other")
"""Of a step's seconds, measured around the engine's calls; communication counts in the call that does it."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step of all ranks."""

    seconds: float
    """Of the slowest rank."""
    tokens: int
    padded_tokens: int
    """Rows times the longest row of their micro-batch: what an implementation with padding computes."""
    flops: int
    """As model/flops.py counts them: real tokens, scores at the targets only; the same for every contestant."""
    parts: dict[str, float]
    """Mean seconds over the ranks by part; empty where a contestant cannot tell."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that such a share of them lies below, by linear interpolation."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "p10": percentile(values, 0.1), "p90": percentile(values, 0.9)}


def mfu(flops: float, seconds: float, peak_flops: float) -> float:
    """See FORMULA; 0 if the peak is not known."""
    return flops / seconds / peak_flops if peak_flops else 0.0


def summarise(rounds: Sequence[Sequence[Step]], world: int, peak_flops: float) -> dict[str, Any]:
    """Figures of the timed steps of one contestant, round by round."""
    steps = [step for one in rounds for step in one]
    seconds = sum(step.seconds for step in steps)
    tokens, padded, flops = (sum(getattr(step, name) for step in steps) for name in ("tokens", "padded_tokens", "flops"))
    parts = {name: sum(step.parts[name] for step in steps) / seconds for name in PARTS} if steps[0].parts else None
    return {
        "steps": len(steps),
        "seconds": seconds,
        "tokens": tokens,
        "padded_tokens": padded,
        "flops": flops,
        "tokens_per_s": tokens / seconds,
        "tokens_per_s_of_steps": spread([step.tokens / step.seconds for step in steps]),
        "tokens_per_s_of_rounds": [sum(step.tokens for step in one) / sum(step.seconds for step in one) for one in rounds],
        "padded_tokens_per_s": padded / seconds,
        "tokens_per_s_a_device": tokens / seconds / world,
        "step_seconds": spread([step.seconds for step in steps]),
        "mfu": mfu(flops, seconds, peak_flops),
        "peak_flops": peak_flops,
        "data_wait": parts["data_wait"] if parts else None,
        "shares": parts,
    }


def compare(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Our tokens/s over theirs in the same round: median, lowest and highest."""
    ratios = [own / other for own, other in zip(ours["tokens_per_s_of_rounds"], theirs["tokens_per_s_of_rounds"], strict=True)]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def tables_of(cells: Sequence[dict[str, Any]], about: str) -> list[Table]:
    """What is printed: our cells, and the peers beside them if there were any."""
    ours = Table(
        title="Training throughput",
        columns=(
            "ranks", "ZeRO", "micro-batch", "rows", "tokens/s, median", "p10 to p90", "padded tokens/s", "tokens/s a device", "MFU",
            "peak MB", "data wait", "forward", "backward", "optimizer", "other",
        ),
        rows=[_row(cell) for cell in cells],
        note=f"{about} {FORMULA}. Padded: rows times the longest of their micro-batch. Shares of the step are measured around the engine's "
        "calls; communication counts in the call that does it (backward and optimizer, at stage 3 also forward).",
    )  # fmt: skip
    peers = [(cell, peer) for cell in cells for peer in cell["peers"]]
    if not peers:
        return [ours]
    beside = Table(
        title="Next to peers",
        columns=("peer", "ranks", "ZeRO", "micro-batch", "tokens/s, median", "p10 to p90", "MFU", "peak MB", "ours is faster by"),
        rows=[_peer_row(cell, peer) for cell, peer in peers],
        note="Same rows, model and batch, padded as their own collator does; they step torch's fused AdamW, ours the recipe's optimizer. "
        "Contestants take turns round by round, and the factor is our tokens/s over theirs in the same round: median (lowest to highest). "
        "HF Trainer uses DDP at any stage.",
    )
    return [ours, beside]


def _place(cell: dict[str, Any]) -> list[str]:
    return [str(cell["world"]), str(cell["zero_stage"]), str(cell["micro_batch_tokens"])]


def _speed(found: dict[str, Any]) -> list[str]:
    steps = found["tokens_per_s_of_steps"]
    return [f"{steps['median']:,.0f}", f"{steps['p10']:,.0f} to {steps['p90']:,.0f}"]


def _mfu(found: dict[str, Any]) -> str:
    return f"{found['mfu']:.1%}" if found["peak_flops"] else "unknown"


def _row(cell: dict[str, Any]) -> list[str]:
    found = cell["remask"]
    rates = [f"{found[name]:,.0f}" for name in ("padded_tokens_per_s", "tokens_per_s_a_device")]
    shares = [f"{found['shares'][name]:.1%}" for name in PARTS]
    return [*_place(cell), str(cell["batch_rows"]), *_speed(found), *rates, _mfu(found), f"{found['peak_bytes'] / 1e6:,.0f}", *shares]


def _peer_row(cell: dict[str, Any], peer: dict[str, Any]) -> list[str]:
    if peer["reason"]:
        return [peer["name"], *_place(cell), f"not run: {peer['reason']}", "", "", "", ""]
    ratio = peer["ratio"]
    faster = f"{ratio['median']:.2f}x ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
    return [peer["name"], *_place(cell), *_speed(peer), _mfu(peer), f"{peer['peak_bytes'] / 1e6:,.0f}", faster]
