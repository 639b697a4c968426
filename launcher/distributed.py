"""The start of torch.distributed under DeepSpeed, the same for every way of launching."""

import logging
import os
import socket
import subprocess
from datetime import timedelta
from typing import TYPE_CHECKING

from remask.launcher.errors import UserError
from remask.launcher.ranks import Place

if TYPE_CHECKING:
    import torch


def start(place: Place, *, seconds: float) -> None:
    """Join the process group named by MASTER_ADDR and MASTER_PORT; gives up after `seconds`."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(device_of(place))
    else:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # Compiled at the first start, for 1 to 4 minutes, under a lock that a killed process leaves behind for ever. gloo does without.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world_size), LOCAL_RANK=str(place.local_rank))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, timeout=timedelta(seconds=seconds), verbose=False)


def device_of(place: Place) -> "torch.device":
    """The rank's own. A launcher may show each rank all GPUs of the machine, or only one."""
    import torch

    return torch.device("cuda", place.local_rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")


def limit_waiting(seconds: float) -> None:
    """In every group that was made so far; one that was made without saying so waits for half an hour, whatever the default group does."""
    from torch.distributed import distributed_c10d

    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def meet(place: Place) -> None:
    """Say where the ranks meet, if whoever started them did not: MASTER_ADDR and MASTER_PORT."""
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        return
    if place.world_size == 1:
        address, port = "127.0.0.1", free_port()
    elif "OMPI_COMM_WORLD_RANK" in os.environ:
        address, port = _meet_by_mpi()
    elif "SLURM_JOB_ID" in os.environ:
        address, port = _meet_by_slurm(place)
    else:
        raise UserError(
            f"MASTER_ADDR and MASTER_PORT: not set for {place.world_size} ranks; start them by torchrun, deepspeed, srun or mpirun"
        )
    os.environ.update(MASTER_ADDR=os.environ.get("MASTER_ADDR", address), MASTER_PORT=os.environ.get("MASTER_PORT", str(port)))


def _meet_by_mpi() -> tuple[str, int]:
    """At rank 0's machine, at a port that is free there now."""
    from remask.data_prep.mpi import load_mpi

    world = load_mpi().COMM_WORLD
    hosts = world.allgather(socket.gethostname())
    where: tuple[str, int] = world.bcast(("127.0.0.1" if len(set(hosts)) == 1 else hosts[0], free_port()))
    return where


def _meet_by_slurm(place: Place) -> tuple[str, int]:
    """At the step's first machine, at a port that follows from the job's number: nobody has to ask anybody."""
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ["SLURM_JOB_NODELIST"]
    told = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False)
    if told.returncode or not told.stdout.split():
        raise UserError(f"SLURM_STEP_NODELIST: {nodes!r}: scontrol does not know its machines; set MASTER_ADDR and MASTER_PORT yourself")
    number = int(os.environ["SLURM_JOB_ID"]) * 31 + int(os.environ.get("SLURM_STEP_ID", "0"))
    host, port = told.stdout.split()[0], 20000 + number % 20000
    if place.rank == 0:
        try:
            with socket.create_server(("", port)):
                pass
        except OSError as error:
            raise UserError(f"port {port} of {host}: cannot be used ({error.strerror}); set MASTER_PORT to a free one") from error
    return host, port


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
