"""Ranks as torchrun, Open MPI and SLURM tell them."""

import pytest

from remask.launcher.errors import UserError
from remask.launcher.ranks import Place, place_of, refuse_half_a_place


def test_each_starter_is_understood() -> None:
    place = Place(rank=5, world_size=8, local_rank=1)
    assert place_of({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == place
    assert place_of({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}) == place
    assert place_of({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}) == place


def test_torchrun_inside_a_slurm_job_wins() -> None:
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}
    assert place_of({**slurm, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}).rank == 3


def test_alone_without_a_starter_or_with_half_of_one() -> None:
    assert place_of({}) == Place()
    assert place_of({"RANK": "3"}) == Place()
    assert place_of({"RANK": "x", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}) == Place()


def test_a_rank_that_is_named_by_half_does_not_train_alone() -> None:
    refuse_half_a_place({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
    refuse_half_a_place({"WORLD_SIZE": "1"})
    refuse_half_a_place({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"})
    with pytest.raises(UserError, match="RANK=0, WORLD_SIZE=2, LOCAL_RANK=: each must be a number"):
        refuse_half_a_place({"RANK": "0", "WORLD_SIZE": "2"})
