"""The communication lab on real ranks: what is counted at the calls, and on the wire, is what the model predicts."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

from remask.benchmarks import comm, comm_links, comm_papers
from remask.benchmarks.comm_cells import complete, run_job
from remask.benchmarks.machines import Machines
from remask.benchmarks.page import table_of
from remask.launcher.config import RunConfig, dump, load

SHARINGS = ("none", "attention", "ffn", "all", "groups")
# Odd sizes, so that everything that is cut into parts is padded; the matrices are above ZeRO-3's threshold.
ODD = {"hidden": 195, "heads": 5, "ffn": 521, "embedding": 33, "vocab_size": 601, "layers": 2}


def lab_config(model: dict[str, Any], **sections: dict[str, Any]) -> RunConfig:
    return load(comm.CommOptions.preset, {"model": model, **sections})


def measure(config: RunConfig, folder: Path, world: int, cells: list[dict[str, Any]], repeats: int = 1) -> list[dict[str, Any]]:
    (folder / "config.yaml").write_text(dump(config))
    return complete(config, world, run_job(folder, world, cells, [], repeats))


def cells_of(sharings: tuple[str, ...], stages: tuple[int, ...], accumulations: tuple[int, ...], layers: int) -> list[dict[str, Any]]:
    options = comm.CommOptions(sharing=sharings, zero=stages, accumulation=accumulations, micro_batch=(1,), length=8)  # type: ignore[arg-type]
    return [cell for cell in comm.plan(options, load("albert-tiny", {"model": {"layers": layers}})) if cell["layers"] == layers]


def check_exact(cells: list[dict[str, Any]], expected: int) -> None:
    assert len(cells) == expected
    for cell in cells:
        assert cell["payload_by_collective"] == cell["predicted_payload_by_collective"], cell
        assert cell["calls"] == cell["predicted_calls"] and cell["payload_bytes"] > 4 * cell["parameters"], cell
        assert cell["step_s"] > 0 and cell["payload_bytes"] == cell["predicted_payload_bytes"]


@pytest.mark.dist
def test_payload_is_as_predicted_to_the_byte_in_every_cell(tmp_path: Path) -> None:
    config = lab_config(ODD)
    cells = measure(config, tmp_path, 3, cells_of(SHARINGS, (0, 1, 2, 3), (1, 2), layers=2))
    check_exact(cells, len(SHARINGS) * 4 * 2)
    whole, shared = (next(one for one in cells if one["sharing"] == sharing and one["zero"] == 0) for sharing in ("none", "all"))
    assert shared["payload_bytes"] < 0.7 * whole["payload_bytes"]


@pytest.mark.dist
def test_half_precision_and_adamw_without_clipping_are_predicted_too(tmp_path: Path) -> None:
    config = lab_config(ODD, engine={"precision": "bf16", "zero_stage": 1}, optimizer={"name": "adamw", "clip_norm": None})
    check_exact(measure(config, tmp_path, 2, cells_of(("all",), (1, 2, 3), (2,), layers=2)), 3)


@pytest.mark.netns
def test_wire_bytes_are_within_three_percent_and_depth_costs_nothing(tmp_path: Path) -> None:
    config = lab_config({})
    deep = [{**cells_of(("all",), (3,), (1,), layers=4)[0], "layers": layers} for layers in (4, 12, 24)]
    # On a busy machine TCP sends some packets twice: of five steps the middle one tells.
    cells = measure(config, tmp_path, 2, [*cells_of(("none", "all"), (0, 1, 2, 3), (1,), layers=4), *deep], repeats=5)
    check_exact(cells, 8 + 3)
    for cell in cells:
        assert cell["wire_bytes"] == pytest.approx(cell["predicted_wire_bytes"], rel=0.03) and cell["wire_bytes"] > 1e6, cell
        assert cell["alone_wire_bytes"] < 0.01 * cell["wire_bytes"], "the wires were not cut"
    gathers = [(cell["payload_by_collective"]["all_gather"], cell["calls_by_collective"]["all_gather"]) for cell in cells[-3:]]
    assert len(set(gathers)) == 1, "a shared layer was gathered once a use"


@pytest.mark.netns
def test_a_link_slows_the_unshared_model_more(tmp_path: Path) -> None:
    config = lab_config({"hidden": 128, "ffn": 512})
    (tmp_path / "config.yaml").write_text(dump(config))
    links = comm_links.measure(config, tmp_path, (0.02,), repeats=1)
    slow = {row["sharing"]: row for row in links.figures["links"] if row["link_gbit"] == 0.02}
    transfer = 8 * slow["none"]["wire_bytes"] / 0.02e9
    assert slow["none"]["step_s"] - slow["none"]["alone_s"] == pytest.approx(transfer, rel=0.25), "the exposed time is the transfer's"
    assert transfer > 3
    assert slow["all"]["speedup"] > 1.5 and slow["all"]["predicted_speedup"] > 1.5 and links.figures["breakeven_gbit"] > 0.02
    ready = {row["sharing"]: row["ready_before_the_end"] for row in links.figures["overlap"]}
    assert ready["all"] < 0.3 < ready["none"]
    assert len(links.tables) == 2 and "0.02 Gbit/s" in str(links.tables[0])


@pytest.mark.netns
def test_machines_that_fail_to_come_up_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines(2)
    machines.addresses[1] = "no address"
    with pytest.raises(Exception, match="no address"), machines:
        pass
    assert not any((Path("/run/netns") / name).exists() for name in machines.names)


@pytest.mark.dist
def test_the_command_writes_all_that_a_report_reads(remask: Callable[..., Any], tmp_path: Path) -> None:
    args = ["--quick", "--sharing", "none", "all", "--zero", "0", "--accumulation", "1", "--repeats", "1", "--links", "--json", "c.json"]
    shape = ["--model.hidden", "64", "--model.ffn", "128", "--model.embedding", "32"]
    result = remask("bench", "comm", *args, *shape)
    assert result.returncode == 0, result.stderr
    record = json.loads((tmp_path / "c.json").read_text())
    needed = {
        "sharing", "zero", "world", "accumulation", "micro_batch", "payload_bytes", "predicted_payload_bytes", "wire_bytes", "calls",
        "step_s", "exposed_s",
    }  # fmt: skip
    assert len(record["cells"]) == 2 + 3 and all(needed <= set(cell) for cell in record["cells"])
    assert record["links"] == [] and record["breakeven_gbit"] is None and "No link was tried" in result.stdout
    assert len(record["papers"]) == 4 * 4 * 6 and record["command"].startswith("remask bench comm --quick")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--world", "1"], "--world: 1 was given, it must be from 2 to 64"),
        (["--zero", "4"], "--zero: 4 was given"),
        (["--links", "0"], "--links: 0.0 was given, each must be from 0.001"),
        (["--repeats", "0"], "--repeats 0"),
        (["--length", "100000"], "from 1 to 128 tokens, the model's positions"),
        (["--sharing", "groups", "--model.layers", "1"], "sharing groups, stage 0: groups: 2 was given"),
        (["--json", "/dev/null"], "/dev/null is no file that could be replaced"),
        (["--json", "nowhere/c.json"], "the folder of nowhere/c.json does not exist"),
    ],
)
def test_bad_options_are_told(remask: Callable[..., Any], args: list[str], told: str) -> None:
    result = remask("bench", "comm", *args)
    assert result.returncode == 2 and told in result.stderr


def test_at_the_papers_sizes_sharing_pays_on_slow_links_and_hardly_on_fast_ones() -> None:
    rows = comm_papers.paper_rows()
    assert {row["preset"] for row in rows} == set(comm_papers.PRESETS)
    by_link = {link.name: [row["speedup"] for row in rows if row["link"] == link.name] for link in comm_papers.NETWORKS}
    assert max(by_link["InfiniBand NDR"]) < 1.1 < min(max(speedups) for name, speedups in by_link.items() if "GbE" in name)
    xlarge = next(row for row in rows if row["preset"] == "albert-xlarge" and row["gpus"] == 64 and row["link"] == "25 GbE")
    # By hand: fp32 gradients both ways and bf16 weights, of 1217 M and 59 M parameters with their heads.
    assert xlarge["unshared"]["wire_bytes"] == pytest.approx((2 * 4 + 2) * 1217.3e6 * 63 / 64, rel=1e-3)
    assert xlarge["shared"]["wire_bytes"] == pytest.approx((2 * 4 + 2) * 59.0e6 * 63 / 64, rel=1e-2)


def test_the_published_tables_of_the_papers_sizes_are_what_the_model_computes() -> None:
    published = (REPOSITORY / "BENCHMARKS.md").read_text(encoding="utf-8")
    for table in comm_papers.tables(comm_papers.paper_rows()):
        assert table_of(asdict(table)) in published, f"run remask bench all --only comm --quick: {table.title}"


def test_the_break_even_is_where_the_saved_bytes_take_a_twentieth_of_the_step() -> None:
    def row(sharing: str, wire: int, alone: float) -> dict[str, Any]:
        return {"sharing": sharing, "predicted_wire_bytes": wire, "alone_s": alone}

    found = comm_links.breakeven([row("none", 1_050_000_000, 1.0), row("all", 0, 9.0), row("none", 1_050_000_000, 2.0), row("all", 0, 9.0)])
    low, high = found["breakeven_gbit_range"]
    assert high == pytest.approx(8 * 1.05 / 0.05) and low == pytest.approx(high / 2) and low < found["breakeven_gbit"] < high
    none = comm_links.breakeven([row("none", 100, 1.0), row("all", 99, 1.0)])
    assert none["breakeven_gbit"] is None and "too few bytes" in none["breakeven_reason"]


def test_a_preset_in_half_precision_leaves_stage_0_out() -> None:
    cells = comm.plan(comm.CommOptions(sharing=("all",)), load("albert-base"))
    assert {cell["zero"] for cell in cells} == {1, 2, 3}
