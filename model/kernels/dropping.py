"""Which values dropout keeps: Philox of (seed, place), the place as 64 bits, so that no value is stored and none repeats."""

import torch
import triton
import triton.language as tl

STEPS = 1 << 32


@triton.jit
def kept(seed, places, DROPPED: tl.constexpr):
    """Where 32 random bits are at least DROPPED."""
    return tl.randint(seed, places).to(tl.uint32, bitcast=True) >= DROPPED


def draw_seed(rate: float) -> int:
    """A new one for every use, from torch's generator on the host: recomputation sets that back, and so gets the same one again."""
    return int(torch.randint(2**63 - 1, (), device="cpu")) if rate else 0


def dropped_steps(rate: float) -> tuple[int, float]:
    """The rate as a share of 2^32, and the scale of what is kept."""
    steps = round(rate * STEPS)
    return steps, STEPS / (STEPS - steps)
