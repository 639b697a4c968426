"""The same run under every launcher gives the same weights."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from launcher.training.ranks import end_of, records, train, wait_until
from slurm_cluster import SlurmCluster

from remask.benchmarks.machines import CABLE, Machines
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
@pytest.mark.parametrize("launcher", ["slurm", "openmpi"])
def test_deepspeeds_own_launchers_over_two_nodes_give_the_same_weights(
    launcher: str, slurm_cluster: SlurmCluster, expected: str, recipe: str, shards: Path, tmp_path: Path
) -> None:
    """The slurm launcher knows no modules, so it gets the command's file; both need no ssh if they are told where to meet, and both hand on
    what .deepspeed_env says."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".deepspeed_env").write_text("NCCL_DEBUG=VERSION")
    hosts = tmp_path / "hosts"
    hosts.write_text("node1 slots=1\nnode2 slots=1\n")
    as_root = "--allow-run-as-root " if os.geteuid() == 0 else ""
    what = {
        "slurm": [str(BIN / "remask"), "train"],
        "openmpi": ["--launcher_args", f"{as_root}--mca btl_tcp_if_include lo", "--module", MODULE],
    }[launcher]
    where = ["--hostfile", str(hosts), "--no_ssh_check", "--master_addr", "node1", "--master_port", str(free_port())]
    slurm_cluster.run(
        "salloc", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", f"{BIN}/deepspeed", *where, "--launcher", launcher, *what,
        "--preset", recipe, "--data", str(shards), "--out", str(tmp_path / "run"), "--schedule.steps", "10",
        PATH=f"{BIN}:{os.environ['PATH']}", DS_ACCELERATOR="cpu", HOME=str(home), seconds=120,
    )  # fmt: skip
    assert end_of(tmp_path / "run")["weights"] == expected
    (started,) = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert started["variables"]["NCCL_DEBUG"] == "VERSION" and started["hosts"] == ["node1", "node2"]


def on_two_machines(machines: Machines, tmp_path: Path, *args: str) -> "list[subprocess.Popen[str]]":
    """deepspeed started by hand on each, without ssh."""
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{address} slots=1\n" for address in machines.addresses))
    where = ["--hostfile", str(hosts), "--no_ssh", "--master_addr", machines.addresses[0], "--master_port", "29510"]
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": CABLE}
    return [
        subprocess.Popen(
            machines.command(rank, [f"{BIN}/deepspeed", *where, "--node_rank", str(rank), "--module", MODULE, *args]),
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, start_new_session=True,
        )
        for rank in range(2)
    ]  # fmt: skip


@pytest.mark.netns
def test_two_machines_without_ssh_train_until_the_cable_is_cut(expected: str, recipe: str, shards: Path, tmp_path: Path) -> None:
    args = ["--preset", recipe, "--data", str(shards), "--engine.cpu-threads", "1"]
    with Machines(2) as machines:
        for process in on_two_machines(machines, tmp_path, *args, "--out", str(tmp_path / "run"), "--schedule.steps", "10"):
            said, _ = process.communicate(timeout=120)
            assert process.returncode == 0, said[-3000:]
        assert end_of(tmp_path / "run")["weights"] == expected

        cut = tmp_path / "cut"
        limits = ["--schedule.steps", "100000", "--engine.timeout-seconds", "8", "--checkpoint.save-every-steps", "1000000"]
        processes = on_two_machines(machines, tmp_path, *args, *limits, "--out", str(cut))
        try:
            wait_until(lambda: (cut / "metrics/rank-00000.jsonl").exists() and len(records(cut, "training")) > 5, 120)
            machines.cut(0)
            begin = time.monotonic()
            said = [process.communicate(timeout=60)[0] for process in processes]
            assert time.monotonic() - begin < 8 + 8  # the timeout, and time for the launcher to end
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    assert all(process.returncode != 0 for process in processes)
    assert "rank 0: rank 1 on machine-2 is gone" in said[0] and "rank 1: rank 0 on machine-1 is gone" in said[1]
    assert not any("Traceback" in text for text in said), said


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
