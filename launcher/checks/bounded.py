"""Processes that end: started together, given a time, and killed with all their children when it is over."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

# Set by an enclosing job. A probe that inherited them would try to join that job instead of starting its own.
_JOB_PREFIXES = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "PRTE_", "TORCHELASTIC_")
_JOB_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_KEPT = ("SLURM_CONF",)  # names the cluster, not the job


def run_bounded(command: Sequence[str], seconds: float, environments: Sequence[Mapping[str, str]] = ({},)) -> tuple[bool, str]:
    """Run the command once per environment, at the same time. True if all ended well in time; and what they printed."""
    clean = {name: value for name, value in os.environ.items() if name in _KEPT or not _belongs_to_a_job(name)}
    processes = [
        subprocess.Popen(
            command,
            env={**clean, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        for environment in environments
    ]
    deadline = time.monotonic() + seconds
    outputs = []
    try:
        for process in processes:
            try:
                outputs.append(process.communicate(timeout=max(deadline - time.monotonic(), 0.01))[0])
            except subprocess.TimeoutExpired:
                _kill_group(process)
                outputs.append(process.communicate()[0] + f"\nno end within {seconds:.0f} s")
    finally:  # also when this process is interrupted: the others are in sessions of their own
        for process in processes:
            _kill_group(process)
    return all(process.returncode == 0 for process in processes), "\n".join(outputs)


def _kill_group(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _belongs_to_a_job(name: str) -> bool:
    return name.startswith(_JOB_PREFIXES) or name in _JOB_NAMES


def last_line(output: str) -> str:
    """The line that most often names the cause."""
    lines = [line.strip() for line in output.splitlines() if any(map(str.isalpha, line))]
    return lines[-1][:300] if lines else "no output"
