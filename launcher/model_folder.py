"""A model on disk in our own form: weights, config, tokenizer and the record of how it came to be, sealed.

model.safetensors   the weights under our names, each once
model.json          the config, whether there is a sentence head, and the record
tokenizer.json      as the shards were made with
digests.json        of the others
"""

import json
from collections.abc import Mapping
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
_FILES = (_ABOUT, _WEIGHTS, _TOKENIZER)
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """What a model folder holds."""

    config: EncoderConfig
    sentence_task: bool
    state: "dict[str, Tensor]"
    """Weights by our names; without the pooler's where nothing has trained one."""
    vocabulary: Vocabulary
    record: dict[str, Any]
    """How it came to be, for the model card: plain values by name."""

    def build(self) -> "PretrainingModel":
        """The model itself in fp32, ready to score. ValueError names a weight that is not finite or does not fit the config."""
        import torch

        from remask.model.heads import PretrainingModel

        with torch.device("meta"):
            model = PretrainingModel(self.config, sentence_task=self.sentence_task)
        wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
        state = {name: weight.to(torch.float32) for name, weight in self.state.items()}
        if not any(name.startswith("encoder.pooler.") for name in state):
            state |= {name: torch.zeros(shape) for name, shape in wanted.items() if name.startswith("encoder.pooler.")}
        for name in {**wanted, **state}:
            found = tuple(state[name].shape) if name in state else "no place"
            if found != wanted.get(name, "no place"):
                raise ValueError(f"{name}: has {found} in the file and {wanted.get(name, 'no place')} in the config")
            if not torch.isfinite(state[name]).all():
                raise ValueError(f"{name}: holds numbers that are not finite; the training had broken down")
        model.load_state_dict(state, assign=True)
        return model.eval()


def write_model(folder: Path, model: StoredModel) -> None:
    """The folder appears whole or not at all; an existing one is not overwritten."""
    with appearing(folder) as partial:
        write_model_files(partial, model)
        seal(partial)


def write_model_files(folder: Path, model: StoredModel) -> None:
    """Into a folder that the caller seals."""
    about = {"format": _FORMAT, "model": encode(model.config), "sentence_task": model.sentence_task, "record": model.record}
    write_weights(folder / _WEIGHTS, model.state)
    (folder / _ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / _TOKENIZER).write_text(model.vocabulary.text, encoding="utf-8")


def write_weights(file: Path, weights: "Mapping[str, Tensor]") -> None:
    """All in fp32, as safetensors."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: weight.detach().cpu().to(torch.float32).clone() for name, weight in weights.items()}, file, {"format": "pt"})
    except SafetensorError as error:  # its form of an OSError
        raise UserError(f"{file.name}: cannot be written ({error}); choose another folder or make room") from error


def read_model(folder: Path) -> StoredModel:
    """The model in a folder, or the newest whole checkpoint of a run; digests are checked before anything is used."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found = _find_whole(folder)
    try:
        about = json.loads((found / _ABOUT).read_text(encoding="utf-8"))
        if about["format"] != _FORMAT:
            raise UserError(f"{found}: written in format {about['format']}, this remask reads {_FORMAT}; use the one that wrote it")
        return StoredModel(
            config=decode(EncoderConfig, about["model"], lambda _: str(found / _ABOUT)),
            sentence_task=bool(about["sentence_task"]),
            state=load_file(found / _WEIGHTS),
            vocabulary=load_tokenizer(found / _TOKENIZER),
            record=dict(about["record"]),
        )
    except (OSError, KeyError, ValueError, TypeError, SafetensorError) as error:
        raise UserError(f"{found}: not a checkpoint that remask wrote ({type(error).__name__}: {error})") from error


def _find_whole(folder: Path) -> Path:
    """The folder itself, or of a run the newest checkpoint by name; one that is not whole is passed over."""
    if not (folder / CHECKPOINTS).is_dir():
        if not (folder / SEAL).is_file():
            raise UserError(f"{folder}: neither a run nor a checkpoint (no {CHECKPOINTS}, no {SEAL}); give a folder that remask made")
        check_seal(folder, _FILES)
        return folder
    reasons = []
    for checkpoint in sorted((folder / CHECKPOINTS).glob("step-*"), reverse=True):
        try:
            check_seal(checkpoint, _FILES)
            return checkpoint
        except UserError as error:
            reasons.append(str(error))
    raise UserError(f"{folder}: no whole checkpoint in it{f' ({reasons[0]})' if reasons else ''}")
