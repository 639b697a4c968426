"""The device that trains, and the most it could do: the denominator of MFU."""

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

# Dense tensor-core peak in TFLOP/s for the precision that trains, from NVIDIA's data sheets, by whole words of the device's name.
# A form with another figure (H100 NVL, V100 PCIe) must not be taken for one of these: unknown is better than a wrong MFU.
_GPU_PEAKS = {
    r"V100-SXM\d": (125, "fp16"),
    r"A100": (312, "bf16"),
    r"A40": (150, "bf16"),
    r"L40S": (362, "bf16"),
    r"H100 PCIe": (756, "bf16"),
    r"H100 80GB HBM3": (989, "bf16"),
    r"H200": (989, "bf16"),
    r"B200": (2250, "bf16"),
}
_MATMUL_SIZE = 1024
_MATMUL_REPEATS = 8


@dataclass(frozen=True, kw_only=True)
class Device:
    """What `describe_device` found; `peak_flops` is per device, 0 when unknown."""

    kind: Literal["cuda", "cpu"]
    name: str
    count: int
    peak_flops: float
    peak_precision: str
    peak_source: str


def describe_device() -> Device:
    """The GPUs with their data sheet's peak, or this CPU with the best matrix product that torch reaches on it now."""
    import torch

    if not torch.cuda.is_available():
        return Device(
            kind="cpu",
            name=f"CPU with {torch.get_num_threads()} threads",
            count=1,
            peak_flops=_measure_cpu_flops(),
            peak_precision="fp32",
            peak_source="measured",
        )
    name = torch.cuda.get_device_name(0)
    tflops, precision = gpu_peak(name)
    return Device(
        kind="cuda",
        name=name,
        count=torch.cuda.device_count(),
        peak_flops=tflops * 1e12,
        peak_precision=precision,
        peak_source="data sheet",
    )


def gpu_peak(name: str) -> tuple[int, str]:
    """TFLOP/s and precision by the device's name; 0 when it is not known."""
    return next((peak for words, peak in _GPU_PEAKS.items() if re.search(rf"(?<![\w]){words}(?![\w])", name)), (0, ""))


def _measure_cpu_flops() -> float:
    import torch

    a, b = torch.rand(2, _MATMUL_SIZE, _MATMUL_SIZE)
    best = float("inf")
    for _ in range(_MATMUL_REPEATS):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * _MATMUL_SIZE**3 / best


def give_back_memory() -> None:
    """Hand freed pages back to the kernel: what `keep_freed_memory` keeps grows by fragments over thousands of steps."""
    import ctypes

    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed for the next step, on a CPU; whether it does.

    By default it gives arrays of more than 32 MB back at once, and every step has the kernel hand out the same pages anew, zeroed: up to a
    fifth of a step with a vocabulary of 50,265. The process then holds about a tenth more at its peak.
    """
    import ctypes

    trim_threshold, mmap_max = -1, -4  # of malloc.h
    try:
        tune = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library has no such setting
        return False
    return bool(tune(mmap_max, 0)) and bool(tune(trim_threshold, 2**31 - 1))
