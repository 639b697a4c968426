"""What the pretraining script does when a start has ended, with stand-ins for SLURM's commands; test_jobs.py has the real ones."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from remask.launcher.cluster.resources import Resources
from remask.launcher.cluster.script import Job, render

SQUEUE = (
    "echo $* >>asked; n=$(wc -l <asked); [ $n -gt ${SILENT:-0} ] || { echo 'slurm_load_jobs error' >&2; exit 1; }; echo ${STATE-RUNNING}"
)
STAND_INS = {
    # One rank; srun's own options come first.
    "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; "$@"; code=$?; exit "${SRUN_CODE:-$code}"',
    "squeue": SQUEUE,
    "scontrol": '[ "$1" != show ] || { hostname; exit; }; echo "$*" >>requeued',
    "sleep": 'echo "$1" >>slept',
    "remask": 'echo "$MASTER_PORT" >port; [ -z "$END" ] || echo "{\\"end\\": \\"$END\\"}" >run/end.json; exit "${CODE:-0}"',
}


class Script:
    """Runs in a folder of its own, whose `run` is the run's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.commands = folder, folder / "bin"
        self.commands.mkdir()
        for name, text in STAND_INS.items():
            (self.commands / name).write_text(f"#!/bin/bash\n{text}\n")
            (self.commands / name).chmod(0o755)
        (folder / "train.sbatch").write_text(render(Job(template="pretrain.sbatch.j2", resources=Resources(attempts=2))))

    def start(self, **environment: str) -> tuple[int, str]:
        (self.folder / "asked").unlink(missing_ok=True)
        given = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node1", "SLURM_CPUS_PER_TASK": "1", **environment}
        path = f"{self.commands}:{os.environ['PATH']}"
        result = subprocess.run(
            ["bash", "train.sbatch"], cwd=self.folder, env={"PATH": path, **given}, capture_output=True, text=True, timeout=60, check=False
        )
        return result.returncode, result.stdout + result.stderr

    def lines(self, file: str) -> list[str]:
        return (self.folder / file).read_text().splitlines() if (self.folder / file).exists() else []


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_a_finished_run_ends_the_job_whatever_squeue_says(script: Script) -> None:
    assert script.start(END="finished", SILENT="99")[0] == 0
    assert not script.lines("requeued") and not script.lines("asked")


def test_a_stopped_run_is_queued_again(script: Script) -> None:
    code, said = script.start(END="stopped")
    assert code != 0 and script.lines("requeued") == ["requeue 12"] and "try 1 of 2" in said


def test_a_task_of_an_array_is_named_by_both_numbers(script: Script) -> None:
    """SLURM gives one task of every array the array's own number: alone it would mean all of them."""
    script.start(END="stopped", SLURM_ARRAY_JOB_ID="12", SLURM_ARRAY_TASK_ID="3")
    assert script.lines("requeued") == ["requeue 12_3"] and "--jobs=12_3" in script.lines("asked")[0]


def test_a_controller_that_is_away_for_a_while_is_asked_again(script: Script) -> None:
    script.start(END="stopped", SILENT="3")
    assert script.lines("requeued") == ["requeue 12"] and len(script.lines("slept")) == 3


@pytest.mark.parametrize("end", ["stopped", ""])
def test_an_unfinished_run_never_ends_well(end: str, script: Script) -> None:
    """A job that waits for it would export a half-trained model."""
    for told in ({"SILENT": "99"}, {"STATE": "CANCELLED"}, {"STATE": ""}):
        code, said = script.start(END=end, **told)
        assert code == 1 and "not queued again" in said and not script.lines("requeued")


def test_a_mistake_of_one_rank_is_not_tried_again_though_srun_tells_143(script: Script) -> None:
    code, said = script.start(CODE="2", SRUN_CODE="143")
    assert code == 2 and "it is not tried again" in said and not script.lines("requeued")
    code, said = script.start(CODE="1", SRUN_CODE="143")  # the note of the start before is gone
    assert code == 143 and script.lines("requeued")


def test_tries_of_an_earlier_submission_do_not_count(script: Script) -> None:
    assert "try 1 of 2" in script.start(CODE="1")[1]
    code, said = script.start(CODE="1")
    assert code == 1 and "try 2 of 2" in said and len(script.lines("requeued")) == 1
    assert "try 1 of 2" in script.start(CODE="1", SLURM_JOB_ID="13")[1] and script.lines("requeued")[-1] == "requeue 13"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.78.200"])
def test_a_port_that_is_taken_at_any_address_is_left_alone(address: str, script: Script) -> None:
    with socket.socket() as other:
        other.bind((address, 0))
        other.listen()
        port = other.getsockname()[1]
        # The script's ports lie from 20000 to 39999, the kernel's free ones may lie above.
        (script.folder / "train.sbatch").write_text((script.folder / "train.sbatch").read_text().replace("% 20000", "% 60000"))
        script.start(END="finished", SLURM_JOB_ID=str(port - 20000))
    assert port < int(script.lines("port")[0]) < port + 50
