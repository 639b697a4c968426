"""`remask import`: a Hugging Face folder as a checkpoint of ours, for continued pretraining."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from remask.launcher.errors import UserError
from remask.launcher.options import parse

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Read a Hugging Face folder into a checkpoint of ours.

    BERT, RoBERTa (also with norms first) and ALBERT with a masked-token head, in safetensors. Scores and token ids are
    compared with Hugging Face's before the checkpoint gets its name. remask export of it gives the same weights again.

    Examples:
      remask import roberta-base/ imported
      remask import my-albert/ imported && remask export imported again
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="HF_DIR")]
    """A folder with config.json, model.safetensors and tokenizer.json."""
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """The folder to write; an existing one is not overwritten."""


def main(args: Sequence[str]) -> int:
    """read a Hugging Face folder into a checkpoint, for continued pretraining"""
    options = parse(ImportOptions, args, "import")
    import torch

    from remask.data_prep.tokenizer import load as load_tokenizer
    from remask.launcher.hub_files import compare
    from remask.launcher.model_folder import StoredModel, write_model
    from remask.model.heads import PretrainingModel
    from remask.model.huggingface import choose_form, from_hugging_face, read_config

    settings = _read_settings(options.source)
    theirs = _read_weights(options.source)
    vocabulary = load_tokenizer(options.source)
    sentence_task = any(name.startswith(("cls.seq_relationship.", "sop_classifier.")) for name in theirs)
    try:
        config = read_config(settings)
        form = choose_form(config, sentence_task, vocabulary.specials)
        state = from_hugging_face(theirs, config, form)
    except KeyError as error:
        raise UserError(
            f"{options.source}: {error.args[0]} is missing; a folder saved from a model with a masked-token head has it"
        ) from error
    except (ValueError, TypeError) as error:
        raise UserError(f"{options.source}: cannot be imported: {error}") from error
    torch.manual_seed(1)  # of a pooler that they do not have
    model = PretrainingModel(config, sentence_task=sentence_task)
    try:
        model.load_state_dict({**model.state_dict(), **state})
    except RuntimeError as error:
        raise UserError(f"{options.source}: its weights do not fit its config ({str(error).splitlines()[-1].strip()})") from error
    record = {"imported from": options.source.name, "class": form.architecture}
    stored = StoredModel(config=config, sentence_task=sentence_task, state=model.state_dict(), vocabulary=vocabulary, record=record)
    compared = compare(options.source, stored, form)
    write_model(options.folder, stored)
    print(f"{options.folder}: {form.architecture}, {config.unique_parameters:,} parameters")
    print(f"largest difference of scores: {compared.largest_difference:.1g} over {compared.scores:,} scores ({compared.precision})")
    print(f"equal token ids: {compared.texts} texts, cased, accented, CJK and emoji")
    return 0


def _read_settings(folder: Path) -> dict[str, Any]:
    import transformers

    file = folder / "config.json"
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
        # Files leave out what is a class's default.
        return {**transformers.AutoConfig.for_model(given["model_type"]).to_dict(), **given}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: cannot be read ({error}); give a folder that Hugging Face's save_pretrained wrote") from error


def _read_weights(folder: Path) -> "dict[str, Tensor]":
    """All weights in fp32, from one file or several; LayerNorms under the names of today."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise UserError(f"{folder}: no model.safetensors in it; open it with AutoModel and call save_pretrained, which writes one")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights.update(load_file(file))
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file}: cannot be read ({error}); fetch it again") from error
    renamed = {".gamma": ".weight", ".beta": ".bias"}
    for old, new in renamed.items():
        weights = {f"{name.removesuffix(old)}{new}" if name.endswith(old) else name: weight for name, weight in weights.items()}
    return {name: weight.to(torch.float32) for name, weight in weights.items()}
