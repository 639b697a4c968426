"""Which rank this process is, as told by whoever started it."""

from collections.abc import Mapping
from dataclasses import dataclass

from remask.launcher.errors import UserError

# Checked in this order: torchrun and deepspeed set RANK themselves, also inside a SLURM or Open MPI job.
_STARTERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """One process among those of a run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def place_of(environment: Mapping[str, str]) -> Place:
    """The place named by torchrun's, Open MPI's or SLURM's variables; a lone process when there are none."""
    for names in _STARTERS.values():
        if all(environment.get(name, "").isdecimal() for name in names):
            rank, world_size, local_rank = (int(environment[name]) for name in names)
            return Place(rank=rank, world_size=world_size, local_rank=local_rank)
    return Place()


def refuse_half_a_place(environment: Mapping[str, str]) -> None:
    """UserError if somebody has named one of several ranks, but not so that it can be known: it would train alone, unnoticed."""
    if environment.get("WORLD_SIZE", "1") != "1" and "RANK" in environment and place_of(environment) == Place():
        told = ", ".join(f"{name}={environment.get(name, '')}" for name in _STARTERS["torchrun"])
        raise UserError(f"{told}: each must be a number; torchrun and deepspeed set all three")
