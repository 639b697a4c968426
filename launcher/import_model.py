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
    from remask.data_prep.tokenizer import load as load_tokenizer
    from remask.launcher.decode import decode
    from remask.launcher.hub_files import compare
    from remask.launcher.model_folder import StoredModel, write_model
    from remask.launcher.sealed import refuse_existing
    from remask.model.config import EncoderConfig
    from remask.model.huggingface import choose_form, from_hugging_face, read_settings

    refuse_existing(options.folder)
    settings = _read_settings(options.source)
    theirs = _read_weights(options.source)
    vocabulary = load_tokenizer(options.source)
    sentence_task = any(name.startswith(("cls.seq_relationship.", "sop_classifier.")) for name in theirs)
    try:
        config = decode(EncoderConfig, read_settings(settings), lambda _: str(options.source / "config.json"))
        form = choose_form(config, sentence_task, vocabulary.specials)
        state = from_hugging_face(theirs, config, form)
    except KeyError as error:
        raise UserError(
            f"{options.source}: {error.args[0]} is missing; a folder saved from a model with a masked-token head has it"
        ) from error
    except (ValueError, RuntimeError) as error:  # torch's own, of pieces that do not go together
        raise UserError(f"{options.source}: cannot be imported: {error}") from error
    record = {"imported from": options.source.name, "class": form.architecture}
    stored = StoredModel(config=config, sentence_task=sentence_task, state=state, vocabulary=vocabulary, record=record)
    compared = compare(options.source, options.source, stored, form)
    write_model(options.folder, stored)
    print(f"{options.folder}: {form.architecture}, {config.unique_parameters:,} parameters")
    if "encoder.pooler.weight" not in state:
        print("note: there is no pooler in it; training starts with a new one, and an export has none until then")
    print(f"largest difference of scores: {compared.largest_difference:.1g} over {compared.scores:,} scores ({compared.precision})")
    print(f"equal token ids: {compared.texts} texts, cased, accented, CJK and emoji")
    return 0


def _read_settings(folder: Path) -> dict[str, Any]:
    """What config.json says, and what it leaves out because it is its class's default."""
    import transformers

    file = folder / "config.json"
    try:
        given = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{file}: cannot be read ({error}); give a folder that Hugging Face's save_pretrained wrote") from error
    try:
        return {**transformers.AutoConfig.for_model(str(given.get("model_type"))).to_dict(), **given}
    except ValueError:  # a kind of model that even Hugging Face does not know
        return given


def _read_weights(folder: Path) -> "dict[str, Tensor]":
    """All weights in fp32, from one file or those that the index names; LayerNorms under the names of today."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        try:
            weights.update(load_file(file))
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file}: cannot be read ({error}); fetch it again") from error
    for old, new in {".gamma": ".weight", ".beta": ".bias"}.items():
        weights = {f"{name.removesuffix(old)}{new}" if name.endswith(old) else name: weight for name, weight in weights.items()}
    for name, weight in weights.items():
        if not weight.is_floating_point() and not name.endswith("position_ids"):
            raise UserError(f"{folder}: {name} is {weight.dtype}, it must be floating point; quantised weights cannot be trained on")
    return {name: weight.to(torch.float32) for name, weight in weights.items()}


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise UserError(f"{folder}: no model.safetensors in it; open it with AutoModel and call save_pretrained, which writes one")
    try:
        return sorted({folder / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{index}: cannot be read ({error}); fetch it again") from error
