"""The batch scripts and the doctor on a real SLURM."""

import json
import os
import subprocess
from importlib import resources
from pathlib import Path

import pytest
from conftest import REMASK
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm


def test_doctor_names_the_partition_of_a_real_cluster(slurm_cluster: SlurmCluster) -> None:
    output = subprocess.run(
        [REMASK, "doctor", "--json"], env=slurm_cluster.environment, capture_output=True, text=True, timeout=240, check=False
    ).stdout
    (row,) = [check for check in json.loads(output)["checks"] if check["name"] == "slurm"]
    assert row["status"] == "ok"
    assert "main* up" in row["found"] and f"{slurm_cluster.nodes} nodes" in row["found"]


def test_doctor_job_looks_at_every_node(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    script = str(resources.files("remask.slurm") / "doctor.sbatch")
    output = tmp_path / "doctor.out"
    job_id = slurm_cluster.run("sbatch", "--parsable", f"--output={output}", script, REMASK=str(REMASK), HOME=os.environ["HOME"]).strip()
    state = slurm_cluster.wait_for_job(job_id, seconds=240)
    text = output.read_text()
    assert state == "COMPLETED", text
    assert "nodes: node1 node2" in text
    for task in "01":
        assert f"{task}: training can run here" in text
        assert f"{task}: ok    deepspeed" in text
