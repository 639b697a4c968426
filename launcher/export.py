"""`remask export`: a checkpoint as a Hugging Face folder that computes the same, proved before it gets its name."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import tyro

from remask.launcher.errors import UserError
from remask.launcher.options import parse


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write a checkpoint as a Hugging Face folder with the same scores.

    Opens what it wrote through AutoModel and AutoTokenizer and compares scores on rows of text and random rows (largest
    difference 1e-5) and token ids of cased, accented, CJK and emoji text. A folder that does not match is not left behind.

    Examples:
      remask export run my-encoder
      remask export run/checkpoints/step-00001000 my-encoder
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINT")]
    """A run (its newest whole checkpoint), a checkpoint, or what remask import wrote."""
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """The folder to write; an existing one is not overwritten."""


def main(args: Sequence[str]) -> int:
    """write a checkpoint as a Hugging Face folder with the same scores"""
    options = parse(ExportOptions, args, "export")
    for line in export(options.source, options.folder):
        print(line)
    return 0


def export(source: Path, folder: Path) -> list[str]:
    """What was written and how it was checked."""
    from remask.launcher.hub_files import compare, write_files
    from remask.launcher.model_card import write_card
    from remask.launcher.model_folder import read_model
    from remask.launcher.sealed import appearing
    from remask.model.huggingface import choose_form

    model = read_model(source)
    if (entries := len(model.vocabulary.pieces)) > model.config.vocab_size:
        raise UserError(f"{source}: its tokenizer has {entries} entries, the model {model.config.vocab_size}; they do not belong together")
    try:
        form = choose_form(model.config, model.sentence_task, model.vocabulary.specials)
    except ValueError as error:
        raise UserError(f"{source}: cannot be exported: {error}") from error
    with appearing(folder) as partial:
        write_files(partial, model, form)
        compared = compare(partial, folder, model, form)
        checks = {
            "largest difference of scores": f"{compared.largest_difference:.1g} over {compared.scores:,} scores ({compared.precision})",
            "equal token ids": f"{compared.texts} texts, cased, accented, CJK and emoji",
        }
        card = write_card(folder.name, model, form, version("remask"), checks)
        (partial / "README.md").write_text(card, encoding="utf-8")
    about = f"{folder}: {compared.architecture}, {model.config.unique_parameters:,} parameters"
    return [about, *(f"note: {note}" for note in form.notes), *(f"{name}: {told}" for name, told in checks.items())]
