"""Real runs that are signalled, killed, stopped, starved of disk or fed with numbers that are not finite."""

import json
import random
import re
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from launcher.training.ranks import Rank, digests, end_of, keep_only, losses, records, run_args, start, train, wait, wait_until
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from remask.launcher.guard import Guard, GuardConfig
from remask.launcher.sealed import seal

pytestmark = pytest.mark.dist


def step_of(run: Path) -> int:
    file = run / "metrics" / "rank-00000.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return sum('"training"' in line for line in lines)


@pytest.mark.parametrize(("number", "rank"), [(signal.SIGTERM, 0), (signal.SIGUSR1, 1)])
def test_a_signal_to_one_rank_ends_all_after_the_step_with_a_checkpoint(
    number: signal.Signals, rank: int, recipe: str, shards: Path, tmp_path: Path
) -> None:
    whole, signalled = tmp_path / "whole", tmp_path / "signalled"
    args = ["--schedule.steps", "120", "--checkpoint.save-every-steps", "1000"]
    train(2, *run_args(recipe, shards, whole, *args))
    processes = start(2, *run_args(recipe, shards, signalled, *args))
    wait_until(lambda: step_of(signalled) >= 5)
    processes[rank].send_signal(number)
    codes, said = wait(processes)
    assert codes == [0, 0], said
    end = end_of(signalled)
    assert end["end"] == "stopped" and end["why"] == number.name and 5 <= end["step"] < 120
    assert [path.name for path in (signalled / "checkpoints").iterdir()] == [f"step-{end['step']:08d}"]
    train(2, *run_args(recipe, shards, signalled, *args))
    assert end_of(signalled)["weights"] == end_of(whole)["weights"] and losses(signalled) == losses(whole)


def let_it_go_on(run: Path, rank: Rank, steps: int, inside_a_save: bool) -> None:
    """Until so many steps are new, or a moment later, when a checkpoint is being written. By what is done, not by the clock: a machine that
    is ten times as fast must not come to the end before it was killed."""
    enough, end = step_of(run) + steps, time.monotonic() + 200
    while step_of(run) < enough or (inside_a_save and not is_saving(run)):
        assert rank.alive and time.monotonic() < end, rank.said()[-3000:]
        time.sleep(0.001)


def is_saving(run: Path) -> bool:
    return any((run / "checkpoints").glob(".step-*.partial"))


@pytest.mark.timeout(1500)
def test_a_run_that_is_killed_thirty_times_ends_as_if_it_had_not_been(recipe: str, shards: Path, tmp_path: Path) -> None:
    """SIGKILL of either rank at any time: while it starts, in a step, inside a save."""
    whole, killed, steps = tmp_path / "whole", tmp_path / "killed", 600
    args = ["--schedule.steps", str(steps), "--checkpoint.save-every-steps", "4", "--metrics.evaluate-every-steps", "1000"]
    train(2, *run_args(recipe, shards, whole, *args))
    draw = random.Random(5)  # noqa: S311
    resumed, inside_saves = set(), 0
    for kill in range(30):
        processes, before = start(2, *run_args(recipe, shards, killed, *args)), step_of(killed)
        if kill % 5:
            let_it_go_on(killed, processes[0], draw.randrange(3, 10), inside_a_save=kill % 5 == 4)
        else:
            end = time.monotonic() + draw.uniform(0, 2)
            while time.monotonic() < end and step_of(killed) <= before:
                time.sleep(0.01)
        assert processes[0].alive, "the run ended before it was killed thirty times"
        processes[0 if kill % 5 == 4 else draw.randrange(2)].kill()
        inside_saves += is_saving(killed)
        if kill % 5 == 0:  # a rank that never met the other waits for it; a launcher ends it
            processes[0].kill()
            processes[1].kill()
        codes, said = wait(processes, 60)
        assert "Traceback" not in said and set(codes) <= {-signal.SIGKILL, 3}, said[-3000:]
        resumed |= {line.split("resumed at step ")[1].split()[0] for line in said.splitlines() if "resumed at step" in line}
    train(2, *run_args(recipe, shards, killed, *args))
    assert len(resumed) >= 10 and inside_saves >= 1
    seen = digests(killed, 2)
    assert len(seen) == steps and seen == digests(whole, 2)
    stream = sorted(int(position) for rows in seen.values() for position in rows)
    assert stream == list(range(steps * 24)), "a row was lost or came twice"
    assert losses(killed) == losses(whole) and end_of(killed)["weights"] == end_of(whole)["weights"]


@pytest.mark.parametrize("when", ["before its first step", "in its steps"])
def test_a_rank_that_stops_answering_is_named_in_time_and_the_run_ends(when: str, recipe: str, shards: Path, tmp_path: Path) -> None:
    run, timeout = tmp_path / "run", 6
    args = ["--schedule.steps", "100000", "--engine.timeout-seconds", str(timeout), "--engine.cpu-threads", "1"]
    processes = start(2, *run_args(recipe, shards, run, *args))
    first = when == "before its first step"
    wait_until(lambda: all((run / "beats" / f"rank-0000{rank}.json").exists() for rank in range(2)) if first else step_of(run) >= 5, 200)
    processes[1].send_signal(signal.SIGSTOP)
    step, begin = step_of(run), time.monotonic()
    processes[0].wait(timeout + 60)
    seconds = time.monotonic() - begin
    processes[1].kill()
    codes, said = wait(processes)
    assert codes[0] == 3 and "Traceback" not in said, said[-3000:]
    line = next(line for line in said.splitlines() if "gave no sign of life" in line)
    assert seconds < timeout + 4, line
    assert f"ERROR rank 1 on {socket.gethostname()} (process {processes[1].pid}) gave no sign" in line
    last = re.search(r"last seen at step (\d+) after (\w+), its collective ([\d,]+); rank 0 waits for it at step (\d+) in (\w+), its", line)
    assert last is not None, line
    seen, _, number, waiting, _ = last.groups()
    assert int(seen) <= step + 1 and int(number.replace(",", "")) > 0 and step <= int(waiting) <= step + 1
    assert (seen, waiting) == ("0", "0") if first else int(waiting) >= 5


def test_numbers_that_are_not_finite_are_written_down_with_the_guilty_rows(recipe: str, shards: Path, tmp_path: Path) -> None:
    """One position's embedding is poisoned, so that only rows which reach it are."""
    run = tmp_path / "run"
    args = run_args(recipe, shards, run, "--guard.policy", "stop")
    train(2, *args)
    keep_only(run, 13)
    checkpoint = run / "checkpoints" / "step-00000013"
    weights = load_file(checkpoint / "model.safetensors")
    weights["encoder.embeddings.positions.weight"][31] = float("nan")
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    seal(checkpoint)
    codes, said = wait(start(2, *args))
    assert codes == [1, 1] and "Traceback" not in said, said[-3000:]
    assert ": the loss is not finite; the run ends as guard.policy says" in said
    (file,) = (run / "incidents").iterdir()
    incident = json.loads(file.read_text())
    assert incident["why"] == "the loss is not finite" and 2 <= len(incident["rows"]) <= 8
    guilty = [row for row in incident["rows"] if row["loss"] == "nan"]
    assert guilty and guilty == incident["rows"][: len(guilty)]
    tokenizer = Tokenizer.from_file(str(shards / "tokenizer.json"))
    for row in incident["rows"]:
        assert "[MASK]" in row["masked"] and "[MASK]" not in row["text"]
        reaches = len(tokenizer.encode(row["masked"], add_special_tokens=False).ids) >= 31
        assert reaches or row not in guilty


def factor_with_one_incident(run: Path) -> float:
    """The largest spike factor that a step of an undisturbed run exceeds, after the guard has seen enough."""
    steps = records(run, "training")
    for factor in np.linspace(8, 1.05, 600):
        guard = Guard(GuardConfig(spike_factor=float(factor)), [], [])
        bad = 0
        for step in steps:
            if guard.judge(step["loss"], step["gradient_norm"]):
                bad += 1
            else:
                guard.remember(step["loss"], step["gradient_norm"])
        if bad == 1:
            return float(factor)
    raise AssertionError("no factor finds one step")


def test_an_outlying_step_is_left_out_and_the_run_goes_on(recipe: str, shards: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    steps = ["--schedule.steps", "60", "--checkpoint.save-every-steps", "10", "--guard.most-in-a-row", "100"]
    train(2, *run_args(recipe, shards, whole, *steps))
    factor = str(factor_with_one_incident(whole))
    for policy in ("skip", "rollback"):
        run = tmp_path / policy
        said = train(2, *run_args(recipe, shards, run, *steps, "--guard.policy", policy, "--guard.spike-factor", factor))
        incidents = [json.loads(file.read_text()) for file in sorted((run / "incidents").iterdir())]
        assert incidents and all(incident["policy"] == policy and "times" in incident["why"] for incident in incidents)
        first = incidents[0]["step"]
        assert losses(run)[:10] == losses(whole)[:10] and [step for step, _ in losses(run)] == list(range(1, 61))
        state = json.loads((run / "checkpoints" / "step-00000060" / "state.json").read_text())["state"]
        seen = {step: sorted(map(int, rows)) for step, rows in digests(run, 2).items()}
        assert len(seen) == 60 and all(len(rows) == 24 for rows in seen.values())
        if policy == "skip":
            assert state["optimizer_steps"] == 60 - len(incidents) and seen == {
                step + 1: list(range(24 * step, 24 * step + 24)) for step in range(60)
            }
        else:
            assert f"back to step {first // 10 * 10}" in said and state["optimizer_steps"] == 60
            assert not {incident["position"] for incident in incidents} & {row for rows in seen.values() for row in rows}, (
                "bad rows came again"
            )


def test_a_disk_that_is_full_is_said_and_leaves_nothing_half_written(recipe: str, shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    codes, said = wait(start(2, *run_args(recipe, shards, run, "--metrics.row-digests", "false"), largest_file=30_000))
    assert codes == [1, 1] and "Traceback" not in said, said[-2000:]
    assert said.count("the checkpoint could not be written") == 4 and "the run goes on" in said
    assert not list((run / "checkpoints").iterdir())


def test_a_folder_that_cannot_be_used_ends_every_rank(recipe: str, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    codes, said = wait(start(2, *run_args(recipe, shards, tmp_path / "file")), 60)
    assert codes == [2, 2] and "Traceback" not in said and said.count("file: cannot be written") == 2
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics").touch()
    before = sorted(path.name for path in shards.iterdir())
    for folder, why in ((tmp_path / "run", "metrics: a file is where a run keeps a folder"), (shards, "holds shards; choose another")):
        codes, said = wait(start(1, *run_args(recipe, shards, folder)), 60)
        assert codes == [2] and "Traceback" not in said and why in said
    assert sorted(path.name for path in shards.iterdir()) == before


def test_a_rank_that_waits_for_the_others_can_be_ended(recipe: str, shards: Path, tmp_path: Path) -> None:
    processes = start(2, *run_args(recipe, shards, tmp_path / "run"))
    processes[1].kill()
    time.sleep(8)
    processes[0].send_signal(signal.SIGTERM)
    codes, _ = wait(processes, 20)
    assert codes[0] in (-signal.SIGTERM, 143, 3)
