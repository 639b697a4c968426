"""A model on disk in our own form: weights, config, tokenizer and the record of how it came to be, sealed.

model.safetensors   the weights under our names, each once
model.json          the config, whether there is a sentence head, and the record
tokenizer.json      as the shards were made with
digests.json        of the others
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.tokenizer import load as load_tokenizer
from remask.launcher.decode import decode, encode
from remask.launcher.errors import UserError
from remask.launcher.sealed import SEAL, appearing, check_seal, seal
from remask.model.config import EncoderConfig

if TYPE_CHECKING:
    from torch import Tensor

    from remask.model.heads import PretrainingModel

_FORMAT = 1
_ABOUT, _WEIGHTS, _TOKENIZER = "model.json", "model.safetensors", "tokenizer.json"
_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """What a model folder holds."""

    config: EncoderConfig
    sentence_task: bool
    state: "dict[str, Tensor]"
    vocabulary: Vocabulary
    record: dict[str, Any]
    """How it came to be, for the model card: plain values by name."""

    def build(self) -> "PretrainingModel":
        """The model itself, ready to score."""
        from remask.model.heads import PretrainingModel

        model = PretrainingModel(self.config, sentence_task=self.sentence_task)
        model.load_state_dict(self.state)
        return model.eval()


def write_model(folder: Path, model: StoredModel) -> None:
    """The folder appears whole or not at all; an existing one is not overwritten."""
    from safetensors.torch import save_file

    about = {"format": _FORMAT, "model": encode(model.config), "sentence_task": model.sentence_task, "record": model.record}
    with appearing(folder) as partial:
        save_file({name: weight.contiguous() for name, weight in model.state.items()}, partial / _WEIGHTS)
        (partial / _ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (partial / _TOKENIZER).write_text(model.vocabulary.text, encoding="utf-8")
        seal(partial)


def read_model(folder: Path) -> StoredModel:
    """The model in a folder, or the newest whole checkpoint of a run; digests are checked before anything is used."""
    from safetensors.torch import load_file

    found = _newest_checkpoint(folder) if (folder / _CHECKPOINTS).is_dir() else folder
    if not (found / SEAL).is_file():
        raise UserError(
            f"{folder}: neither a run nor a checkpoint (it has no {_CHECKPOINTS} and no {SEAL}); give a folder that remask made"
        )
    check_seal(found)
    try:
        about = json.loads((found / _ABOUT).read_text(encoding="utf-8"))
        if about["format"] != _FORMAT:
            raise UserError(f"{found}: written in format {about['format']}, this remask reads {_FORMAT}; use the one that wrote it")
        config = decode(EncoderConfig, about["model"], lambda _: str(found / _ABOUT))
        state = load_file(found / _WEIGHTS)
        return StoredModel(
            config=config,
            sentence_task=bool(about["sentence_task"]),
            state=state,
            vocabulary=load_tokenizer(found / _TOKENIZER),
            record=dict(about["record"]),
        )
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{found}: not a checkpoint that remask wrote ({type(error).__name__}: {error})") from error


def _newest_checkpoint(run: Path) -> Path:
    """By name; one that is not whole is passed over."""
    reasons = []
    for folder in sorted((run / _CHECKPOINTS).iterdir(), reverse=True):
        try:
            check_seal(folder)
            return folder
        except UserError as error:
            reasons.append(str(error))
    raise UserError(f"{run}: no whole checkpoint in it{f' ({reasons[0]})' if reasons else ''}")
