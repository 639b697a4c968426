"""The start of torch.distributed under DeepSpeed, the same for every way of launching."""

import logging
import os
import socket
from datetime import timedelta

from remask.launcher.ranks import Place


def start(place: Place, *, seconds: float) -> None:
    """Join the process group named by MASTER_ADDR and MASTER_PORT; gives up after `seconds`."""
    import torch

    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # Compiled at the first start, for 1 to 4 minutes, under a lock that a killed process leaves behind for ever. gloo does without.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world_size), LOCAL_RANK=str(place.local_rank))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, timeout=timedelta(seconds=seconds), verbose=False)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
