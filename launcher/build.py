"""A model as a run trains it: its operations chosen for this machine, its layers recomputed or compiled as the config says."""

import logging
from typing import TYPE_CHECKING

from remask.launcher.engine import EngineConfig
from remask.launcher.errors import UserError
from remask.model.config import EncoderConfig
from remask.model.kernels.choose import build_operations, choose_kernels, foreign_apex, look_around

if TYPE_CHECKING:
    from remask.model.heads import PretrainingModel

log = logging.getLogger(__name__)


def build_model(config: EncoderConfig, engine: EngineConfig, *, sentence_task: bool, seed: int) -> "PretrainingModel":
    """With new weights, the same for one seed on any machine. UserError if the kernels that are pinned cannot be had here."""
    import torch

    from remask.model.heads import PretrainingModel

    if foreign := foreign_apex():
        log.warning("the package apex in %s is not NVIDIA's and is ignored", foreign)
    try:
        choices = choose_kernels(look_around(), engine.kernels)
    except ValueError as error:
        raise UserError(f"engine.{error}") from error
    log.info("kernels: %s", ", ".join(f"{name} {choice.rung}" for name, choice in choices.items()))
    torch.manual_seed(seed)
    model = PretrainingModel(config, sentence_task=sentence_task, operations=build_operations(choices))
    freeze_unread(model, sentence_task)
    model.encoder.recompute(engine.activation_checkpointing)
    if engine.compile:
        model.encoder.compile_parts()
    return model


def freeze_unread(model: "PretrainingModel", sentence_task: bool) -> None:
    """Only the sentence task reads the pooler; a gradient of 0 would still let weight decay wear it away."""
    model.encoder.pooler.requires_grad_(sentence_task)
