"""Runs submitted to a real SLURM: whatever happens to a job, the run ends with the weights of an undisturbed one."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import REMASK
from launcher.training.ranks import digests, end_of, losses, records, run_args, train
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

STEPS = ["--schedule.steps", "200", "--checkpoint.save-every-steps", "25", "--metrics.evaluate-every-steps", "1000"]
ON_TWO = ["--nodes", "2", "--ranks-per-node", "2", "--cpus-per-rank", "1", "--time", "10"]


@pytest.fixture(scope="session")
def undisturbed(recipe: str, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    train(4, *run_args(recipe, shards, run, *STEPS))
    assert len(losses(run)) == 200
    return run


class Cluster:
    """remask's verbs on the cluster."""

    def __init__(self, slurm: SlurmCluster, recipe: str, shards: Path) -> None:
        self.slurm, self.recipe, self.shards = slurm, recipe, shards

    def remask(self, *args: object, code: int = 0) -> str:
        result = subprocess.run(
            [REMASK, *map(str, args)], env=self.slurm.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == code, result.stderr
        return result.stdout + result.stderr

    def submit(self, run: Path, *args: str) -> str:
        said = self.remask("submit", *run_args(self.recipe, self.shards, run, *STEPS), *ON_TWO, *args)
        assert "to start at" in said, "sbatch --test-only was not asked"
        return said.split("train: job ")[1].split()[0]

    def state(self, job: str) -> str:
        return self.slurm.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def wait_until(self, what: str, there: Callable[[], bool], run: Path, seconds: float = 200, every: float = 0.2) -> None:
        try:
            self.slurm.wait(what, there, seconds, every)
        except TimeoutError as error:
            printed = "\n".join(file.read_text(errors="replace")[-5000:] for file in (run / "job").glob("*.out"))
            raise AssertionError(f"{error}\n{self.slurm.run('scontrol', 'show', 'jobs')}\n{printed}") from None

    @contextmanager
    def paused(self, run: Path, step: int = 30, ranks: int = 4) -> "Iterator[list[psutil.Process]]":
        """The ranks, halted at this step or soon after: a fast machine would be at the run's end before the test has acted."""

        def there() -> bool:
            steps = records(run, "training") if (run / "metrics" / "rank-00000.jsonl").exists() else []
            return bool(steps) and steps[-1]["step"] >= step

        self.wait_until(f"{ranks} ranks", lambda: len(rank_processes(run)) == ranks, run)
        found = rank_processes(run)
        self.wait_until(f"step {step}", there, run, every=0.03)
        for rank in found:
            rank.send_signal(signal.SIGSTOP)
        assert not (run / "end.json").exists(), "the run was over too soon; give it more steps"
        try:
            yield found
        finally:
            for rank in found:
                with suppress(psutil.NoSuchProcess):
                    rank.send_signal(signal.SIGCONT)

    def wait_for_end(self, job: str, run: Path) -> None:
        self.wait_until("the end", lambda: self.state(job) in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), run)
        assert self.state(job) == "COMPLETED", (run / "job" / f"{job}.out").read_text()[-5000:]


@pytest.fixture
def cluster(slurm_cluster: SlurmCluster, recipe: str, shards: Path) -> Cluster:
    return Cluster(slurm_cluster, recipe, shards)


def check_same(run: Path, whole: Path, starts: int) -> None:
    """As if nothing had happened, over at least so many starts."""
    assert end_of(run)["end"] == "finished" and end_of(run)["weights"] == end_of(whole)["weights"]
    assert losses(run) == losses(whole) and digests(run, 4) == digests(whole, 4)
    assert len(json.loads((run / "environment.json").read_text())) >= starts


def rank_processes(run: Path) -> list[psutil.Process]:
    """Of the run's ranks, python processes that hold its folder as --out; srun and the ranks' shells do, too."""
    found = []
    for process in psutil.process_iter(["cmdline", "name"]):
        command = process.info["cmdline"] or []
        if "--out" in command and str(run) in command and "train" in command and process.info["name"] not in ("srun", "bash"):
            found.append(process)
    return found


def status_of(cluster: Cluster, run: Path) -> dict[str, Any]:
    (found,) = json.loads(cluster.remask("status", run, "--json"))
    assert isinstance(found, dict)
    return found


def test_a_run_on_three_nodes_is_submitted_shown_and_finishes(cluster: Cluster, tmp_path: Path) -> None:
    """The run's folder has a name that a shell would act on."""
    whole, run = tmp_path / "whole", tmp_path / "a $(touch gone) 'q' \"d\"\n %j ünï"
    short = ["--schedule.steps", "60"]
    job = cluster.submit(run, *short, "--nodes", "3", "--name", "job $(touch gone) 'q'\nnext")
    with cluster.paused(run, step=5, ranks=6):
        found = status_of(cluster, run)
        assert found["jobs"][0]["job"] == job and found["jobs"][0]["state"] == "RUNNING" and "node[1-3]" in found["jobs"][0]["where"]
        assert found["training"]["step"] >= 5 and found["training"]["seconds_left"] > 0 and found["end"] is None
        assert cluster.slurm.run("squeue", "-h", "-j", job, "-o", "%j") == "job $(touch gone) 'q'\nnext-train\n"
        assert f"job {job} is running" in cluster.remask("submit", *run_args(cluster.recipe, cluster.shards, run, *short), code=2)
    followed = cluster.remask("logs", "-f", run)  # until its end
    assert f"job {job}, restart 0, on node[1-3]" in followed and "finished at step 60" in followed
    cluster.wait_for_end(job, run)
    assert not list(tmp_path.rglob("gone")) and not (Path.cwd() / "gone").exists()
    train(6, *run_args(cluster.recipe, cluster.shards, whole, *STEPS, *short))
    assert end_of(run)["weights"] == end_of(whole)["weights"] and losses(run) == losses(whole)
    preflight = json.loads((run / "preflight.json").read_text())
    assert preflight["hosts"] == ["node1", "node2", "node3"] and preflight["all_reduce_gb_per_s"] > 0
    text = cluster.remask("status", run)
    assert "step 60 (100.0%)" in text and "finished at step 60" in text
    check_that_nothing_is_left_to_do(cluster, run)


def check_that_nothing_is_left_to_do(cluster: Cluster, run: Path) -> None:
    """Started again, by hand, a finished run ends at once and well."""
    before = losses(run)
    output = f"--output={str(run).replace('%', '%%')}/job/%j.out"
    again = cluster.slurm.run("sbatch", "--parsable", output, str(run / "job" / "train.sbatch")).strip()
    cluster.wait_for_end(again, run)
    shown = status_of(cluster, run)["jobs"][-1]
    assert shown["job"] == again and shown["state"] == "COMPLETED" and shown["restarts"] == 0
    assert losses(run) == before and "finished at step 60" in (run / "job" / f"{again}.out").read_text()


def test_before_the_time_limit_the_run_saves_and_is_queued_again(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = cluster.submit(run, "--time", "3", "--warn-seconds", "110")
    output = run / "job" / f"{job}.out"
    with cluster.paused(run):  # SLURM's warning wakes the ranks
        cluster.wait_until("another try", lambda: "try 1 of 5" in output.read_text(), run)
    cluster.wait_for_end(job, run)
    printed = output.read_text()
    assert "(SIGUSR1)" in printed and "exit code 0, try 1 of 5 since checkpoint step-" in printed and f"job {job}, restart 1" in printed
    check_same(run, undisturbed, starts=2)


def test_scontrol_requeue_goes_on_exactly(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = cluster.submit(run)
    with cluster.paused(run):
        cluster.slurm.run("scontrol", "requeue", job)
    cluster.wait_for_end(job, run)
    check_same(run, undisturbed, starts=2)
    assert status_of(cluster, run)["jobs"][0]["restarts"] == 1


def test_preemption_saves_and_goes_on_when_the_machines_are_free(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = cluster.submit(run)
    with cluster.paused(run):  # SLURM's signal wakes the ranks
        urgent = cluster.slurm.run(
            "sbatch", "--parsable", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 3"
        ).strip()
        cluster.wait_until("a preempted job", lambda: "stopped at step" in (run / "job" / f"{job}.out").read_text(), run)
    cluster.wait_for_end(job, run)
    assert cluster.state(urgent) == "COMPLETED"
    assert "(SIGTERM)" in (run / "job" / f"{job}.out").read_text()
    check_same(run, undisturbed, starts=2)


def test_a_killed_rank_is_tried_again_but_not_for_ever(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = cluster.submit(run, "--attempts", "2")
    with cluster.paused(run) as ranks:
        ranks[-1].kill()
    output = run / "job" / f"{job}.out"
    cluster.wait_until("another try", lambda: "try 1 of 2 since checkpoint step-" in output.read_text(), run)
    cluster.wait_for_end(job, run)
    check_same(run, undisturbed, starts=2)

    hopeless = tmp_path / "hopeless"
    job = cluster.submit(hopeless, "--attempts", "1")
    cluster.wait_until("ranks", lambda: bool(rank_processes(hopeless)), hopeless)
    rank_processes(hopeless)[0].kill()
    cluster.wait_until("the end", lambda: cluster.state(job) == "FAILED", hopeless)
    assert "try 1 of 1 since checkpoint none" in (hopeless / "job" / f"{job}.out").read_text()


def test_a_lost_node_is_replaced_by_a_spare_one(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = cluster.submit(run)
    with cluster.paused(run):
        lost = cluster.slurm.run("scontrol", "show", "hostnames", status_of(cluster, run)["jobs"][0]["where"]).split()[1]
        cluster.slurm.kill_node(lost)
    try:
        cluster.wait_for_end(job, run)
        check_same(run, undisturbed, starts=2)
        hosts = [start["hosts"] for start in json.loads((run / "environment.json").read_text())]
        assert lost in hosts[0] and lost not in hosts[-1]
    finally:
        cluster.slurm.start_node(lost)
        cluster.wait_until("the node", cluster.slurm.all_idle, run)


def test_a_cancelled_run_saves_and_is_not_queued_again(cluster: Cluster, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = cluster.submit(run)
    with cluster.paused(run):
        assert f"cancelled: {job}" in cluster.remask("cancel", run)
    cluster.wait_until("the end", lambda: cluster.state(job) == "CANCELLED", run)
    assert end_of(run)["end"] == "stopped" and end_of(run)["why"] == "SIGTERM"
    assert "no job of it is waiting or running" in cluster.remask("cancel", run)
    again = cluster.submit(run)  # goes on
    cluster.wait_for_end(again, run)
    check_same(run, undisturbed, starts=2)


def test_a_chain_from_text_to_an_exported_model(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    """prep by MPI over two nodes, training, export."""
    run, shards, exported = tmp_path / "run", tmp_path / "made shards", tmp_path / "exported"
    said = cluster.remask(
        "submit", "--corpus", corpus / "corpus.jsonl", "--tokenizer", corpus / "tokenizer.json", "--export", exported,
        *run_args(cluster.recipe, shards, run, "--schedule.steps", "10"), *ON_TWO,
    )  # fmt: skip
    jobs = {name: said.split(f"{name}: job ")[1].split()[0] for name in ("prep", "train", "export")}
    assert [job["name"] for job in status_of(cluster, run)["jobs"]] == ["prep", "train", "export"]
    for job in jobs.values():
        cluster.wait_for_end(job, run)
    assert json.loads((exported / "config.json").read_text())["model_type"] == "albert"
    assert end_of(run)["step"] == 10
    tars = sorted(file.name for file in shards.glob("*.tar"))
    assert tars and tars == sorted(file.name for file in cluster.shards.glob("*.tar"))
    assert "rows" in cluster.remask("prep", "--verify", "--out", shards)


def test_a_sweep_is_a_job_array_with_a_run_for_each_value(cluster: Cluster, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    args = run_args(cluster.recipe, cluster.shards, sweep, "--schedule.steps", "8", "--time", "10", "--cpus-per-rank", "1")
    said = cluster.remask("submit", *args, "--sweep", "optimizer.lr=1e-3,3e-3")
    job = said.split("train: job ")[1].split()[0]
    for task in (1, 2):
        cluster.wait_until("the end", lambda: cluster.state(f"{job}_{task}") == "COMPLETED", sweep / f"{task:03d}")  # noqa: B023
    found = {one["run"]: one for one in json.loads(cluster.remask("status", sweep, "--json"))}
    assert sorted(found) == [str(sweep / "001"), str(sweep / "002")]
    rates = [float(records(Path(run), "training")[3]["lr"]) for run in sorted(found)]
    assert rates == [pytest.approx(1e-3), pytest.approx(3e-3)]
    assert all((sweep / f"{task:03d}" / "job" / f"{job}_{task}.out").exists() for task in (1, 2))


def test_machines_that_differ_or_shards_that_are_not_whole_are_named_and_not_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    shards, run = tmp_path / "shards", tmp_path / "run"
    shutil.copytree(cluster.shards, shards)
    said = cluster.remask("submit", *run_args(cluster.recipe, shards, run, *STEPS), *ON_TWO, "--sbatch=--hold")
    job = said.split("train: job ")[1].split()[0]
    tar = sorted(shards.glob("train-*.tar"))[0]
    os.truncate(tar, tar.stat().st_size - 100)
    cluster.slurm.run("scontrol", "release", job)
    cluster.wait_until("the end", lambda: cluster.state(job) == "FAILED", run)
    printed = (run / "job" / f"{job}.out").read_text()
    assert f"{tar}: " in printed and "were written" in printed and "it is not tried again" in printed and "Traceback" not in printed


def test_scripts_for_gpu_machines_are_valid(cluster: Cluster, tmp_path: Path) -> None:
    cluster.slurm.start_gpu_nodes()
    asked = ["--nodes", "8", "--gpus-per-node", "8", "--cpus-per-rank", "16", "--partition", "gpu", "--time", "24:00:00", "--memory", "0"]
    shared = ["--data.batch-rows", "4608", "--data.lanes", "576"]  # by 8 x 8 ranks, and by 8 x 9
    args = [*run_args(cluster.recipe, cluster.shards, tmp_path / "run", *shared), *asked, "--sbatch=--hold"]
    said = cluster.remask("submit", *args)
    assert "using 1024 processors on nodes gpu[1-8]" in said
    cluster.remask("cancel", tmp_path / "run")
    refused = cluster.remask("submit", *args, "--out", tmp_path / "other", "--gpus-per-node", "9", code=2)
    assert "Requested node configuration is not available" in refused and "Traceback" not in refused
