"""The device that trains, and the most it could do: the denominator of MFU."""

import time
from dataclasses import dataclass
from typing import Literal

# Dense tensor-core peak in TFLOP/s for the precision that trains, from NVIDIA's data sheets; the first name found in the device's counts.
_GPU_PEAKS = {
    "V100": (125, "fp16"),
    "A100": (312, "bf16"),
    "A40": (150, "bf16"),
    "L40S": (362, "bf16"),
    "H100 PCIe": (756, "bf16"),
    "H100": (989, "bf16"),
    "H200": (989, "bf16"),
    "B200": (2250, "bf16"),
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
    tflops, precision = next((peak for part, peak in _GPU_PEAKS.items() if part in name), (0, ""))
    return Device(
        kind="cuda",
        name=name,
        count=torch.cuda.device_count(),
        peak_flops=tflops * 1e12,
        peak_precision=precision,
        peak_source="data sheet",
    )


def _measure_cpu_flops() -> float:
    import torch

    a, b = torch.rand(2, _MATMUL_SIZE, _MATMUL_SIZE)
    best = float("inf")
    for _ in range(_MATMUL_REPEATS):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * _MATMUL_SIZE**3 / best
