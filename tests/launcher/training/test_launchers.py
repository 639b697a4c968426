"""The same run under every launcher gives the same weights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launcher.training.ranks import end_of, train
from slurm_cluster import SlurmCluster

from remask.data_prep.mpi import find_mpirun
from remask.launcher.distributed import free_port

BIN = Path(sys.executable).parent
MODULE = "remask.launcher.train"


def command_of(launcher: str) -> list[str]:
    port = str(free_port())
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return {
        "torchrun": [f"{BIN}/torchrun", "--nproc-per-node", "2", "--master-port", port, "-m", MODULE],
        "deepspeed": [f"{BIN}/deepspeed", "--num_gpus", "2", "--master_port", port, "--module", MODULE],
        "mpirun": [str(find_mpirun()), *as_root, "--oversubscribe", "-n", "2", sys.executable, "-m", MODULE],
    }[launcher]


@pytest.fixture(scope="module")
def expected(recipe: str, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    run = tmp_path_factory.mktemp("expected") / "run"
    train(2, "--preset", recipe, "--data", str(shards), "--out", str(run), "--schedule.steps", "10")
    return str(end_of(run)["weights"])


@pytest.mark.dist
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "mpirun"])
def test_a_launcher_gives_the_same_weights(launcher: str, expected: str, recipe: str, shards: Path, tmp_path: Path) -> None:
    args = ["--preset", recipe, "--data", str(shards), "--out", str(tmp_path / "run"), "--schedule.steps", "10"]
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "DS_ACCELERATOR": "cpu"}
    result = subprocess.run(
        [*command_of(launcher), *args], env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=200, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert end_of(tmp_path / "run")["weights"] == expected


@pytest.mark.slurm
def test_srun_over_two_nodes_gives_the_same_weights(
    slurm_cluster: SlurmCluster, expected: str, recipe: str, shards: Path, tmp_path: Path
) -> None:
    slurm_cluster.run(
        "srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=1", "--kill-on-bad-exit=1", sys.executable, "-m", MODULE,
        "--preset", recipe, "--data", str(shards), "--out", str(tmp_path / "run"), "--schedule.steps", "10",
        HOME=os.environ["HOME"],
    )  # fmt: skip
    assert end_of(tmp_path / "run")["weights"] == expected
