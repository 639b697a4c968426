"""The DeepSpeed engine's settings and the JSON files that stand for each ZeRO stage."""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

ZeroStage = Literal[0, 1, 2, 3]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How the step is spread over devices and in which numbers it is computed."""

    zero_stage: ZeroStage = 1
    """0 replicates all; 1 splits the optimizer's state over the devices, 2 also gradients, 3 also weights: less memory, more traffic."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Number format of the forward and backward pass; fp32 on CPU."""
    micro_batch_rows: int | None = None
    """Rows a device takes at once, None to find what fits; changes memory and speed, never the result's batch."""
    activation_checkpointing: float = 0.0
    """Share of the layers whose activations are computed again in the backward pass: less memory, up to a third more time."""
    kernels: Literal["auto", "triton", "vendor", "torch"] = "auto"
    """What computes the operations around the matrix products: auto takes the fastest that can be had (remask doctor tells which),
    the others pin our Triton kernels, NVIDIA's packages, or plain torch. Results agree within rounding."""
    compile: bool = False
    """torch.compile for the layers: fuses what stands between the matrix products on a GPU; the first step takes a minute or more."""

    def __post_init__(self) -> None:
        if self.micro_batch_rows is not None and self.micro_batch_rows < 1:
            raise ValueError(f"micro_batch_rows: {self.micro_batch_rows} was given, it must be at least 1, or null to find what fits")
        if not 0 <= self.activation_checkpointing <= 1:
            raise ValueError(f"activation_checkpointing: {self.activation_checkpointing} was given, it must be from 0 to 1")
        if self.precision == "bf16" and self.zero_stage == 0:
            # DeepSpeed 0.19.8 runs it through another optimizer wrapper: a loss gap of 0.07 after 12 steps.
            raise ValueError(
                "precision: bf16 was given with zero_stage 0, where DeepSpeed's losses drift; use zero_stage 1, 2 or 3, or fp32"
            )


def read_ds_config(stage: ZeroStage) -> dict[str, Any]:
    """The shipped DeepSpeed JSON of a stage, without what the launcher fills."""
    text = resources.files("remask.ds_configs").joinpath(f"zero{stage}.json").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text)
    return config
