"""The shipped JSONs against the real DeepSpeed engine."""

import json
import subprocess
import sys

import pytest
from conftest import REPOSITORY

from remask.launcher.engine import EngineConfig, read_ds_config

# The launcher fills these from the run's config; a JSON that set one would be a second source of truth.
FILLED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer",
    "scheduler",
)
FILLED_PRECISION = ("fp16", "bf16")

TRAIN = """
import json, os, sys
from remask.launcher import distributed, ranks
from remask.launcher.engine import EngineConfig, read_ds_config
stage = int(sys.argv[1])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(distributed.free_port()))
distributed.start(ranks.Place(), seconds=60)
import deepspeed, torch

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))

def losses(module, backward, step):
    torch.manual_seed(1)
    seen = []
    for _ in range(5):
        loss = module(torch.randn(4, 8)).pow(2).mean()
        backward(loss); step()
        seen.append(loss.item())
    return seen

def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=1e-2)

plain = model()
optimizer = adamw(plain)
expected = losses(plain, lambda loss: loss.backward(), lambda: (optimizer.step(), optimizer.zero_grad()))
filled = {**read_ds_config(EngineConfig(zero_stage=stage, precision="fp32")), "train_batch_size": 4, "gradient_clipping": 0.0}
module = model()
engine, *_ = deepspeed.initialize(model=module, optimizer=adamw(module), config=filled)
got = losses(engine, engine.backward, engine.step)
print("RESULT", json.dumps({"stage": engine.zero_optimization_stage(), "expected": expected, "got": got}))
"""


def test_the_folder_holds_one_json_a_stage() -> None:
    names = ["zero0.json", "zero1.json", "zero2.json", "zero3-offload.json", "zero3.json"]
    assert sorted(file.name for file in (REPOSITORY / "ds_configs").glob("*.json")) == names


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_jsons_leave_to_the_launcher_what_it_fills(stage: int) -> None:
    config = read_ds_config(EngineConfig(zero_stage=stage, precision="fp32"))  # type: ignore[arg-type]
    assert config["zero_optimization"]["stage"] == stage
    assert not set(config) & {*FILLED, *FILLED_PRECISION}


@pytest.mark.dist
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_trains_with_the_json_as_plain_torch_does(stage: int) -> None:
    result = subprocess.run([sys.executable, "-c", TRAIN, str(stage)], capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    told = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("RESULT")).removeprefix("RESULT"))
    assert told["stage"] == stage
    assert len(told["expected"]) == 5 and told["expected"][0] != told["expected"][-1]
    assert told["got"] == pytest.approx(told["expected"], abs=1e-6)
