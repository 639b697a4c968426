"""What all tests share: gates for markers that need the machine's help, and a runner for the installed command."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from browser import chromium
from hypothesis import settings
from slurm_cluster import SlurmCluster

from remask.benchmarks.machines import what_is_missing

# Compiling a function for the first time takes seconds; no test measures time.
settings.register_profile("remask", deadline=None)
settings.load_profile("remask")

REPOSITORY = Path(__file__).resolve().parent.parent
REMASK = Path(sys.executable).with_name("remask")


def _slurm_lacks() -> str:
    missing = [program for program in ("slurmctld", "slurmd", "munged", "sinfo", "unshare") if not shutil.which(program)]
    return f"not installed: {', '.join(missing)}" if missing else "not root" if os.geteuid() else ""


def _dist_lacks() -> str:
    return "" if (os.cpu_count() or 1) >= 2 else "fewer than 2 cores"


def _kernels_lack() -> str:
    return "" if find_spec("triton") else "not installed: triton"


def _browser_lacks() -> str:
    return "" if chromium() else "not installed: chromium"


GATES: dict[str, Callable[[], str]] = {
    "slurm": _slurm_lacks,
    "netns": what_is_missing,
    "dist": _dist_lacks,
    "kernels": _kernels_lack,
    "browser": _browser_lacks,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, lacks in GATES.items():
        if item.get_closest_marker(marker) and (reason := lacks()):
            if os.environ.get("CI"):
                pytest.fail(f"the {marker} tests must run in CI, but: {reason}", pytrace=False)
            pytest.skip(f"{marker}: {reason}")


@pytest.fixture
def remask(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the installed command in an empty folder and never lets a traceback pass unless it is asked for."""

    def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [REMASK, *args], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False
        )
        assert "Traceback" not in result.stderr, result.stderr
        return result

    return run


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes=3) as cluster:
        yield cluster
