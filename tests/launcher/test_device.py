"""The peak that MFU is measured against."""

import subprocess
import sys

import pytest

from remask.launcher import device


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("Tesla V100-SXM2-32GB", (125, "fp16")),
        ("NVIDIA A100-SXM4-80GB", (312, "bf16")),
        ("NVIDIA A100 80GB PCIe", (312, "bf16")),
        ("NVIDIA A40", (150, "bf16")),
        ("NVIDIA L40S", (362, "bf16")),
        ("NVIDIA H100 80GB HBM3", (989, "bf16")),
        ("NVIDIA H100 PCIe", (756, "bf16")),
        ("NVIDIA H200", (989, "bf16")),
        ("NVIDIA B200", (2250, "bf16")),
        ("NVIDIA RTX A4000", (0, "")),
        ("NVIDIA H100 NVL", (0, "")),
        ("Tesla V100-PCIE-16GB", (0, "")),
    ],
)
def test_gpus_have_their_data_sheets_peak_or_none(name: str, peak: tuple[int, str]) -> None:
    assert device.gpu_peak(name) == peak


def test_the_cpus_peak_is_what_a_matrix_product_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(device.time, "perf_counter", lambda: float(next(clock)))  # each product takes a second
    assert device._measure_cpu_flops() == 2 * 1024**3


def test_freed_memory_is_kept_for_the_next_step() -> None:
    """In a process of its own: the kernel hands out no pages for the second of two equal arrays, as it otherwise does."""
    code = (
        "import resource; from remask.launcher.device import keep_freed_memory; keep_freed_memory();"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt; size = 120_000_000; b'x' * size;"
        "before = faults(); len(b'x' * size); print(faults() - before)"
    )
    faults = [
        int(subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True).stdout)
        for text in (code, code.replace(" keep_freed_memory();", ""))
    ]
    assert faults[0] < 1000 < 10_000 < faults[1]
