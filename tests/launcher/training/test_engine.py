"""Our engine under real DeepSpeed against a plain torch loop: losses and weights after 20 steps, for every combination."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from launcher.training.ranks import start, wait

pytestmark = pytest.mark.dist

SHARINGS = ["none", "attention", "ffn", "all"]


def run_matrix(world: int, **asked: Any) -> list[dict[str, Any]]:
    codes, said = wait(start(world, json.dumps(asked), script=str(Path(__file__).with_name("matrix.py"))), seconds=280)
    assert codes == [0] * world, said[-4000:]
    return [json.loads(line.removeprefix("CELL ")) for line in said.splitlines() if line.startswith("CELL ")]


def changed(folder: Path, stage: int, **settings: int) -> str:
    """A copy of a stage's JSON with other settings."""
    config = json.loads((REPOSITORY / "ds_configs" / f"zero{stage}.json").read_text())
    assert set(settings) <= set(config["zero_optimization"])
    config["zero_optimization"] |= settings
    file = folder / f"zero{stage}.json"
    file.write_text(json.dumps(config))
    return str(file)


@pytest.fixture
def all_sharded(tmp_path: Path) -> dict[str, str]:
    """Stage 3's JSON keeps small weights whole; here even the smallest is cut and gathered, as large ones are."""
    return {"3": changed(tmp_path, 3, stage3_param_persistence_threshold=0)}


@pytest.fixture
def small_buckets(tmp_path: Path) -> dict[str, str]:
    """As large models meet them: many buckets, and weights that are larger than one."""
    small = {"reduce_bucket_size": 5000}
    deep = {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 5000}
    return {"1": changed(tmp_path, 1, **small), "2": changed(tmp_path, 2, **small), "3": changed(tmp_path, 3, **small, **deep)}


def check(cells: list[dict[str, Any]], expected: int) -> None:
    assert len(cells) == expected
    for cell in cells:
        assert cell["moved"] > 0.1 and cell["losses"] <= 1e-5 and cell["weights"] <= 1e-5, cell


@pytest.mark.parametrize(("preset", "jsons", "recomputed"), [("bert-tiny", "all_sharded", 0.5), ("albert-tiny", "small_buckets", 1.0)])
def test_every_stage_sharing_accumulation_and_recomputation_trains_as_plain_torch(
    preset: str, jsons: str, recomputed: float, request: pytest.FixtureRequest
) -> None:
    """In a small shape, for a step of the presets' own takes twice as long."""
    asked = {"presets": [preset], "optimizers": ["adamw"], "sharings": SHARINGS, "stages": [0, 1, 2, 3]}
    ds_configs = request.getfixturevalue(jsons)
    check(run_matrix(2, **asked, accumulations=[1, 2], checkpointings=[0.0, recomputed], ds_configs=ds_configs), 4 * 4 * 2 * 2)


@pytest.mark.parametrize("preset", ["bert-tiny", "albert-tiny"])
def test_a_presets_own_shape_trains_as_plain_torch_at_every_stage_and_sharing(preset: str) -> None:
    asked = {"presets": [preset], "optimizers": ["adamw"], "sharings": SHARINGS, "stages": [0, 1, 2, 3], "own_shape": True}
    check(run_matrix(2, **asked, accumulations=[2], checkpointings=[1.0]), 4 * 4)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_lamb_is_exact_at_every_stage_and_world_size(world: int, all_sharded: dict[str, str]) -> None:
    asked = {"presets": ["albert-tiny"], "optimizers": ["lamb"], "sharings": ["none", "all"], "stages": [0, 1, 2, 3]}
    check(run_matrix(world, **asked, accumulations=[2], checkpointings=[0.0], ds_configs=all_sharded), 8)


def test_stage_3_with_offload_trains_as_plain_torch() -> None:
    asked = {"presets": ["albert-tiny"], "optimizers": ["adamw", "lamb"], "sharings": ["all"], "stages": [3], "offload": True}
    check(run_matrix(2, **asked, accumulations=[1, 2], checkpointings=[0.0]), 4)
