"""The DeepSpeed JSON: filled from the run's config, and refused where it says the same again or what does not work."""

import json
from pathlib import Path
from typing import Any

import pytest

from remask.launcher.engine import EngineConfig, fill_ds_config, read_ds_config
from remask.launcher.errors import UserError


def test_the_launcher_fills_batch_precision_and_clipping() -> None:
    filled = fill_ds_config(EngineConfig(zero_stage=2), batch_rows=64, clip_norm=None, world=4)
    assert (filled["train_batch_size"], filled["train_micro_batch_size_per_gpu"], filled["gradient_accumulation_steps"]) == (64, 16, 1)
    assert filled["gradient_clipping"] == 0.0 and filled["bf16"] == {"enabled": True} and "fp16" not in filled
    assert fill_ds_config(EngineConfig(precision="fp32"), batch_rows=8, clip_norm=0.5, world=1)["gradient_clipping"] == 0.5
    assert "bf16" not in fill_ds_config(EngineConfig(precision="fp32"), batch_rows=8, clip_norm=1.0, world=1)
    assert "offload_param" in read_ds_config(EngineConfig(zero_stage=3, offload=True))["zero_optimization"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"train_batch_size": 8}, "sets train_batch_size, which the run's config says (data.batch_rows)"),
        ({"gradient_clipping": 1.0}, "sets gradient_clipping, which the run's config says (optimizer.clip_norm)"),
        ({"optimizer": {"type": "Lamb"}}, "sets optimizer, which"),
        ({"bf16": {"enabled": True}}, "sets bf16, which the run's config says (engine.precision)"),
        ({"zero_optimization": {"stage": 2}}, "has stage 2, engine.zero_stage is 3; make them equal"),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, "sets zero_hpz_partition_size"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "offload_param to 'nvme'"),
        ({"zero_optimization": 3}, "has no zero_optimization"),
        ({"zero_optimization": {"stage": "3"}}, "has stage '3', engine.zero_stage is 3"),
        ({"zero_optimization": {"stage": 3, "offload_param": "cpu"}}, "offload_param to 'cpu', engine.offload is false"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": None}}, "offload_optimizer to None"),
        ({"zero_optimization": {"stage": 3, "reduce_bucket_size": "big"}}, "zero_optimization.reduce_bucket_size: 'big' was given"),
        ({"torch_autocast": {"enabled": True}}, "sets torch_autocast, which the run's config says (engine.precision)"),
        ({"communication_data_type": "bogus"}, 'communication_data_type is "bogus"; allowed: "fp32", "fp16", "bf16"'),
        ({"wall_clock_breakdown": 1}, "wall_clock_breakdown is 1; allowed: true, false"),
        ({"steps_per_print": "often"}, 'steps_per_print is "often", it must be a number of steps'),
        ({"steps_per_print": True}, "steps_per_print is true"),
        ({"comms_logger": 3}, "'comms_logger' is nothing that such a JSON may say here"),
        ({"zero_optimisation": {}}, "did you mean zero_optimization?"),
        ({"zero_allow_untested_optimizer": False}, "zero_allow_untested_optimizer is False, our optimizer needs true"),
    ],
)
def test_an_own_json_that_says_too_much_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    own = {**read_ds_config(EngineConfig(zero_stage=3)), "communication_data_type": "fp16"}
    file = tmp_path / "own.json"
    file.write_text(json.dumps(own))
    assert read_ds_config(EngineConfig(zero_stage=3, ds_config=str(file)))["communication_data_type"] == "fp16"
    file.write_text(json.dumps({**own, **change}))
    with pytest.raises(UserError) as caught:
        read_ds_config(EngineConfig(zero_stage=3, ds_config=str(file)))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"zero_stage": 0, "precision": "bf16"}, "precision: bf16 was given with zero_stage 0"),
        ({"zero_stage": 0, "precision": "fp16"}, "precision: fp16 was given with zero_stage 0"),
        ({"zero_stage": 2, "offload": True}, "offload: true was given with zero_stage 2"),
        ({"timeout_seconds": 0.5}, "timeout_seconds"),
    ],
)
def test_combinations_that_deepspeed_gets_wrong_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EngineConfig(**options)


def test_an_own_json_need_not_say_what_our_optimizer_needs(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    assert read_ds_config(EngineConfig(ds_config=str(file)))["zero_allow_untested_optimizer"] is True
    shipped = read_ds_config(EngineConfig(zero_stage=3, offload=True))
    file.write_text(json.dumps(shipped))
    assert read_ds_config(EngineConfig(zero_stage=3, offload=True, ds_config=str(file))) == shipped
    with pytest.raises(UserError, match=r"offload_optimizer to 'cpu', engine\.offload is false"):
        read_ds_config(EngineConfig(zero_stage=3, ds_config=str(file)))


def test_a_json_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.json: cannot be read"):
        read_ds_config(EngineConfig(ds_config="nowhere.json"))
