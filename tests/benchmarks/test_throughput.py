"""Throughput cells that really run: ranks, shards, loader, masks, our engine under DeepSpeed, and peers beside it."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import REMASK
from sample_corpus import DOCUMENTS, trained
from slurm_cluster import SlurmCluster

from remask.benchmarks.throughput_figures import PARTS
from remask.benchmarks.throughput_team import Team
from remask.data_prep.corpus import Source
from remask.data_prep.pack import PackConfig
from remask.data_prep.prep import PrepConfig, prepare
from remask.data_prep.workers import local_workers
from remask.launcher.cluster.resources import Resources
from remask.launcher.cluster.script import Job, render
from remask.launcher.ranks import Place

SMALL = [
    "--model.vocab-size", "600", "--model.hidden", "32", "--model.heads", "2", "--model.layers", "2", "--model.ffn", "64",
    "--data.pack.sequence-length", "32", "--micro-batch-tokens", "128", "--steps", "3", "--warm-up", "1", "--repeats", "2",
]  # fmt: skip


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("throughput")
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS[:200]))
    (folder / "tokenizer.json").write_text(trained("bpe").text)
    sources = (Source(name="documents", paths=(str(folder / "corpus.jsonl"),)),)
    pack = PackConfig(mode="full-sentences", sequence_length=32)
    with local_workers(1) as workers:
        prepare(PrepConfig(sources=sources, tokenizer=folder / "tokenizer.json", pack=pack), folder / "shards", workers, lambda *_: None)
    return folder / "shards"


def bench(*args: object, starter: tuple[str, ...] = (sys.executable,)) -> subprocess.CompletedProcess[str]:
    command = [*starter, "-m", "remask.benchmarks.throughput", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def check_figures(found: dict[str, Any], steps: int) -> None:
    """There, not zero, and in agreement with each other."""
    assert found["steps"] == steps and 0 < found["tokens"] <= found["padded_tokens"]
    assert found["tokens_per_s"] * found["seconds"] == pytest.approx(found["tokens"])
    assert found["padded_tokens_per_s"] * found["seconds"] == pytest.approx(found["padded_tokens"])
    assert found["flops"] > 0 and found["mfu"] == pytest.approx(found["flops"] / found["seconds"] / found["peak_flops"])
    assert found["peak_bytes"] > 10**7
    for name in ("tokens_per_s_of_steps", "step_seconds"):
        assert 0 < found[name]["p10"] <= found[name]["median"] <= found[name]["p90"]


@pytest.mark.dist
def test_a_cell_of_two_ranks_has_figures_that_agree(shards: Path, tmp_path: Path) -> None:
    file = tmp_path / "cell.json"
    ended = bench("--shards", shards, "--world", 2, "--zero", 1, "--peers", "hf_deepspeed", "hf_trainer", *SMALL, "--json", file)
    assert ended.returncode == 0, ended.stderr[-3000:]
    record = json.loads(file.read_text())
    (cell,) = record["cells"]
    assert (cell["world"], cell["zero_stage"], cell["micro_batch_tokens"], cell["batch_rows"]) == (2, 1, 128, 8)
    ours = cell["remask"]
    check_figures(ours, steps=6)
    assert set(ours["shares"]) == set(PARTS) and all(share >= 0 for share in ours["shares"].values())
    assert 0.5 < sum(ours["shares"].values()) <= 1.001 and min(ours["shares"][name] for name in ("forward", "backward", "optimizer")) > 0
    assert ours["tokens_per_s_a_device"] == pytest.approx(ours["tokens_per_s"] / 2)
    peers = {peer["name"]: peer for peer in cell["peers"]}
    if not find_spec("accelerate"):
        assert peers.pop("hf_trainer")["reason"].startswith("accelerate is not installed")
    assert "hf_deepspeed" in peers
    for peer in peers.values():
        assert peer["reason"] == ""
        check_figures(peer, steps=6)
        assert peer["tokens"] == ours["tokens"], "another's rows"
        assert 0 < peer["ratio"]["lowest"] <= peer["ratio"]["median"] <= peer["ratio"]["highest"]
    assert [table["title"] for table in record["tables"]] == ["Training throughput", "Next to peers"]
    assert "MFU = " in ended.stdout and record["command"].startswith("remask bench throughput --shards")


@pytest.mark.dist
def test_ranks_that_another_started_are_one_cell_and_fewer_may_take_part(shards: Path, tmp_path: Path) -> None:
    torchrun = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2")
    args = ["--shards", shards, "--zero", 0, 3, "--world", 1, 2, "--peers", "--json"]
    for cell, (world, stage) in {2: (1, 3), 3: (2, 0)}.items():
        ended = bench(*args, tmp_path / f"{cell}.json", "--cell", cell, *SMALL, starter=torchrun)
        assert ended.returncode == 0, ended.stderr[-3000:]
        (found,) = json.loads((tmp_path / f"{cell}.json").read_text())["cells"]
        assert (found["world"], found["zero_stage"]) == (world, stage) and not found["peers"]
        check_figures(found["remask"], steps=6)
    ended = bench("--merge", tmp_path / "3.json", tmp_path / "2.json", "--json", tmp_path / "all.json")
    assert ended.returncode == 0, ended.stderr
    merged = json.loads((tmp_path / "all.json").read_text())
    assert [cell["world"] for cell in merged["cells"]] == [1, 2] and len(merged["tables"][0]["rows"]) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--data.pack.sequence-length", "64"], "packed with sequence_length 32, the run wants 64"),
        (["--model.vocab-size", "500"], "model.vocab_size: 500 was given"),
        (
            ["--engine.precision", "fp16", "--engine.zero-stage", "1"],
            "engine.precision: fp16 was given, which DeepSpeed does not run on a CPU",
        ),
    ],
)
def test_shards_that_do_not_go_with_the_run_are_one_sentence(shards: Path, wrong: list[str], said: str) -> None:
    ended = bench("--shards", shards, "--world", 2, "--zero", 1, "--peers", *SMALL, *wrong)
    assert ended.returncode == 2 and ended.stdout == ""
    assert said in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.dist
def test_a_rank_that_ends_is_told_with_its_words(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"(?s)remask ended: .*nowhere.yaml"),
        Team("remask", tmp_path / "nowhere.yaml", [Place()], ("::1", 1)) as team,
    ):
        team.ask(1)


@pytest.mark.slurm
@pytest.mark.timeout(400)
def test_a_job_array_measures_a_cell_a_task(slurm_cluster: SlurmCluster, shards: Path, tmp_path: Path) -> None:
    out, script = tmp_path / "cells $(touch gone)", tmp_path / "throughput.sbatch"
    job = Job(
        template="throughput.sbatch.j2",
        resources=Resources(nodes=2, ranks_per_node=1, cpus_per_rank=1, time="10"),
        remask=str(REMASK),
        run=str(out),
        args=(("--shards", str(shards), "--zero", "1", "--world", "1", "2", "--peers", *SMALL),),
        tasks=2,
    )
    script.write_text(render(job))
    number = slurm_cluster.run("sbatch", "--parsable", f"--output={tmp_path}/%a.out", str(script)).strip()
    for task, world in ((1, 1), (2, 2)):
        state = slurm_cluster.wait_for_job(f"{number}_{task}", seconds=180)
        assert state == "COMPLETED", (tmp_path / f"{task}.out").read_text()[-3000:]
        record = json.loads((out / f"cell-{task}.json").read_text())
        (cell,) = record["cells"]
        assert (cell["world"], cell["machines"]) == (world, world)
        check_figures(cell["remask"], steps=6)
    assert not list(tmp_path.rglob("gone"))
