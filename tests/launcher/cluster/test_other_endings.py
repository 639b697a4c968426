"""Jobs on a real SLURM whose ranks are a stand-in for remask: how a start may end, and what the script makes of it."""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import REMASK
from launcher.training.ranks import run_args
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(200)]

BEGIN = '#!/bin/bash\nwhile [ $# -gt 0 ]; do [ "$1" != --out ] || RUN=$2; shift; done\n'
STOPS_ONCE = """\
echo >>"$RUN/starts"
end=finished
[ "$(wc -l <"$RUN/starts")" -gt 1 ] || { end=stopped; sleep 2; }
echo "{\\"end\\": \\"$end\\", \\"step\\": 1, \\"why\\": \\"told so\\"}" >"$RUN/end.json"
"""
ONE_REFUSES = '[ "$SLURM_PROCID" != 1 ] || { sleep 1; exit 2; }\nsleep 100\n'


def remask(cluster: SlurmCluster, *args: str) -> str:
    result = subprocess.run([REMASK, *args], env=cluster.environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def submit(cluster: SlurmCluster, recipe: str, shards: Path, run: Path, stand_in: str, *args: str) -> str:
    """The job's number; `stand_in` is what every rank runs."""
    command = run.parent / "remask"
    command.write_text(BEGIN + stand_in)
    command.chmod(0o755)
    asked = ["--cpus-per-rank", "1", "--time", "10", "--remask", str(command)]
    return remask(cluster, "submit", *run_args(recipe, shards, run), *asked, *args).split("train: job ")[1].split()[0]


def states(cluster: SlurmCluster, job: str) -> list[str]:
    return cluster.run("squeue", "-h", "-t", "all", "--array", "-j", job, "-o", "%T").split()


def test_every_task_of_an_array_is_queued_again_for_itself(slurm_cluster: SlurmCluster, recipe: str, shards: Path, tmp_path: Path) -> None:
    """One of them bears the array's own number."""
    sweep = tmp_path / "sweep"
    job = submit(slurm_cluster, recipe, shards, sweep, STOPS_ONCE, "--sweep", "seed=1,2", "--sweep", "optimizer.lr=1e-3,2e-3")
    ended = ("COMPLETED", "FAILED")
    slurm_cluster.wait("the end", lambda: all(state in ended for state in states(slurm_cluster, job)), seconds=90)
    printed = "".join(file.read_text() for file in sweep.glob("*/job/*.out"))
    assert states(slurm_cluster, job) == ["COMPLETED"] * 4, printed
    assert [len((sweep / f"{task:03d}" / "starts").read_text().splitlines()) for task in (1, 2, 3, 4)] == [2] * 4, printed
    shown = json.loads(remask(slurm_cluster, "status", str(sweep), "--json"))
    assert [one["jobs"][0]["restarts"] for one in shown] == [1] * 4
    assert "finished at step 1 (told so)" in remask(slurm_cluster, "status", str(sweep / "003"))


def test_a_mistake_that_only_one_rank_sees_is_not_tried_again(
    slurm_cluster: SlurmCluster, recipe: str, shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = submit(slurm_cluster, recipe, shards, run, ONE_REFUSES, "--nodes", "2", "--ranks-per-node", "2")
    slurm_cluster.wait("the end", lambda: states(slurm_cluster, job) == ["FAILED"], seconds=60)
    printed = (run / "job" / f"{job}.out").read_text()
    assert "it is not tried again" in printed and "restart 1" not in printed
