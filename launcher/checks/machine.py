"""The machine: what computes, compiles and stores."""

import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from remask.launcher.checks import Check
from remask.launcher.device import describe_device

_GB = 10**9
_MIN_DISK_GB = 5
_MIN_SHM_GB = 1
_MIN_OPEN_FILES = 4096


def check_accelerator() -> Check:
    device = describe_device()
    peak = (
        f"{device.peak_flops / 1e12:,.2f} TFLOP/s {device.peak_precision} ({device.peak_source})" if device.peak_flops else "peak unknown"
    )
    found = f"{device.count} x {device.name}, {peak}"
    if device.kind == "cpu":
        return Check(
            name="accelerator",
            status="note",
            found=f"no GPU; {found}",
            remedy="fine for the demo and tests; pretraining at scale needs CUDA GPUs",
        )
    return Check(name="accelerator", status="ok", found=found)


def check_compilers() -> Check:
    versions = {name: _version_of(name) for name in ("gcc", "g++", "ninja", "nvcc")}
    found = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    missing = [name for name in ("gcc", "g++", "ninja") if not versions[name]]
    if missing:
        remedy = f"install {', '.join(missing)} (Debian: apt-get install g++ ninja-build); needed where DeepSpeed compiles an operation"
        return Check(name="compilers", status="warn", found=f"{found or 'none'}; missing: {', '.join(missing)}", remedy=remedy)
    return Check(name="compilers", status="ok", found=found)


def check_disk() -> Check:
    free_gb = shutil.disk_usage(Path.cwd()).free / _GB
    found = f"{free_gb:,.0f} GB free in {Path.cwd()}"
    if free_gb < _MIN_DISK_GB:
        return Check(
            name="disk", status="warn", found=found, remedy=f"at least {_MIN_DISK_GB} GB: free some, or work on another file system"
        )
    return Check(name="disk", status="ok", found=found)


def check_shared_memory() -> Check:
    shm = Path("/dev/shm")  # noqa: S108 (looked at, not written to)
    if not shm.is_dir():
        return Check(name="shared memory", status="warn", found="no /dev/shm", remedy="mount a tmpfs there; loaders and NCCL use it")
    free_gb = shutil.disk_usage(shm).free / _GB
    found = f"{free_gb:,.1f} GB free in /dev/shm"
    if free_gb < _MIN_SHM_GB:
        return Check(
            name="shared memory",
            status="warn",
            found=found,
            remedy=f"at least {_MIN_SHM_GB} GB; in a container start it with --shm-size=8g",
        )
    return Check(name="shared memory", status="ok", found=found)


def check_open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _MIN_OPEN_FILES:
        remedy = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}, in the shell or the batch script; shards and sockets each take one"
        return Check(name="open files", status="warn", found=f"limit {soft} (hard limit {hard})", remedy=remedy)
    return Check(name="open files", status="ok", found=f"limit {soft}")


def _version_of(program: str) -> str:
    path = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if not path:
        return ""
    output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    numbers = re.findall(r"\d+\.\d+[\d.]*", output)
    return numbers[-1] if program == "nvcc" and numbers else numbers[0] if numbers else "of unknown version"
