"""Real starts that go on from elsewhere, or cannot go well: every rank hears of it, and nothing of anybody's is lost."""

import json
import signal
import time
from pathlib import Path

import pytest
from launcher.training.ranks import Rank, records, run_args, start, train, wait, wait_until

from remask.launcher.config import load
from remask.launcher.distributed import free_port
from remask.launcher.errors import UserError
from remask.launcher.ranks import Place
from remask.launcher.sealed import seal
from remask.launcher.training.heartbeat import Heartbeat
from remask.launcher.training.records import Records
from remask.launcher.training.start import open_loaders
from remask.launcher.training.traffic import Traffic


def start_apart(*args_of_ranks: list[str]) -> list[Rank]:
    """Ranks that were not given the same, as on machines that differ."""
    shared = {"WORLD_SIZE": str(len(args_of_ranks)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    places = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(len(args_of_ranks))]
    return [Rank("remask.launcher.train", tuple(args), place, None) for args, place in zip(args_of_ranks, places, strict=True)]


@pytest.mark.dist
def test_a_branch_with_a_longer_budget_follows_that_budget(recipe: str, shards: Path, tmp_path: Path) -> None:
    run, branch = tmp_path / "run", tmp_path / "branch"
    mine = run / "checkpoints" / "step-00000002-mine"
    mine.mkdir(parents=True)
    few = ["--schedule.steps", "12", "--checkpoint.save-every-steps", "3", "--checkpoint.keep-last", "2"]
    train(1, *run_args(recipe, shards, run, *few))
    assert sorted(entry.name for entry in mine.parent.iterdir()) == ["step-00000002-mine", "step-00000009", "step-00000012"]
    longer = ["--schedule.steps", "30", "--resume", str(run / "checkpoints" / "step-00000009")]
    train(1, *run_args(recipe, shards, branch, *longer))
    schedule = load(recipe, {"schedule": {"steps": 30}}).schedule
    told = {record["step"]: record["lr"] for record in records(branch, "training")}
    assert sorted(told) == list(range(10, 31))
    assert told == {step: pytest.approx(3e-2 * schedule.rate_at(step - 1)) for step in told}
    said = train(1, *run_args(recipe, shards, branch, *longer))
    assert "goes on from them" in said and "resumed at step 30 " in said
    inside = run_args(recipe, shards, branch, "--schedule.steps", "30", "--resume", str(branch / "checkpoints" / "step-00000030"))
    codes, said = wait(start(1, *inside))
    assert codes == [2] and "lies in this run itself" in said


@pytest.mark.dist
def test_a_sentence_task_without_questions_is_told_and_has_no_loss(recipe: str, one_document: Path, tmp_path: Path) -> None:
    args = run_args(recipe, one_document, tmp_path / "run", "--schedule.steps", "6")
    said = train(1, *args, "--data.sentence-task", "nsp", "--schedule.warmup-steps", "2")
    assert said.count("nsp has a question about 0 of the last 24 rows only") == 1
    told = records(tmp_path / "run", "training")
    assert len(told) == 6 and all(set(record["losses"]) == {"masked_tokens"} and not record["labelled_rows"] for record in told)


@pytest.mark.dist
def test_what_only_one_machine_lacks_is_told_to_all(recipe: str, shards: Path, tmp_path: Path) -> None:
    good = run_args(recipe, shards, tmp_path / "run")
    codes, said = wait(start_apart(good, run_args(recipe, tmp_path / "nowhere", tmp_path / "run")), 60)
    assert codes == [2, 2] and said.count("nowhere") >= 2 and "Traceback" not in said, said
    codes, said = wait(start_apart(good, run_args(recipe, shards, tmp_path / "elsewhere")), 60)
    assert codes == [2, 2] and said.count("has another folder there") == 2 and "Traceback" not in said, said
    assert not list((tmp_path / "run").glob(".seen-*"))


@pytest.mark.dist
def test_a_rank_that_falls_silent_before_the_first_step_is_noticed(recipe: str, shards: Path, tmp_path: Path) -> None:
    seconds = 6
    processes = start(2, *run_args(recipe, shards, tmp_path / "run", "--engine.timeout-seconds", str(seconds)))
    wait_until((tmp_path / "run" / "beats" / "rank-00001.json").exists)
    processes[1].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        assert processes[0].wait(seconds + 4) == 3
    finally:
        processes[1].kill()
    assert time.monotonic() - began < seconds + 4
    assert "rank 1" in processes[0].said() and "its collective" in processes[0].said()


def test_a_full_disk_costs_metrics_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics").mkdir()
    records = Records(tmp_path, Place(rank=1, world_size=2), tensorboard=False, resumed_step=None)
    records._stream.close()
    records._stream = open("/dev/full", "a", encoding="utf-8")  # noqa: PTH123, SIM115
    for step in range(3):
        records.write({"step": step, "kind": "training"})
    records.sync()
    assert caplog.text.count("No space left on device") == 1 and "the run goes on" in caplog.text


def test_a_full_disk_does_not_silence_a_rank(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path, Place(), Traffic(), 600.0)
    heartbeat.start()
    before = heartbeat.last_sign(0)
    assert before["beat"] == 1 and before["step"] == 0
    (tmp_path / "rank-00000.partial").symlink_to("/dev/full")
    time.sleep(0.01)
    heartbeat._beat()
    after = heartbeat.last_sign(0)
    assert after != before and after["beat"] == 1, "the file was touched"


def test_a_file_that_another_machine_wrote_and_this_one_does_not_see_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("x")
    with pytest.raises(UserError, match="cannot be seen from here"):
        seal(tmp_path, {"optimizer-00001.safetensors": "ab"})
    seal(tmp_path, {"here": "ab"})
    assert json.loads((tmp_path / "digests.json").read_text()) == {"here": "ab"}


def test_a_rising_mask_rate_needs_a_budget_in_steps(recipe: str, shards: Path) -> None:
    config = load(recipe, {"data": {"sets": [str(shards)]}, "masking": {"final_rate": 0.2}, "schedule": {"tokens": 1000}})
    with pytest.raises(UserError, match=r"masking\.final_rate: was given with schedule\.tokens"):
        open_loaders(config, Place())
