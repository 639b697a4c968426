"""`remask inspect`: what masks look like on a set's own rows, and whether they are what the config says."""

import html
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from remask.data_prep.masking import MaskingConfig, Strategy
from remask.launcher.errors import UserError, wrong_option
from remask.launcher.options import parse
from remask.launcher.tables import format_table

if TYPE_CHECKING:
    from remask.data_prep.lint import Finding
    from remask.data_prep.loader import Loader
    from remask.data_prep.masks import Masked
    from remask.data_prep.rows import Rows

Kind = Literal["text", "special", "masked", "random", "kept"]
Stretch = tuple[str, str, Kind]
"""What stood there, what the model sees, and why."""

_COLOURS: dict[Kind, str] = {"text": "", "special": "\33[2m", "masked": "\33[41m", "random": "\33[45m", "kept": "\33[42m"}
_PLAIN: dict[Kind, str] = {"text": "{now}", "special": "{now}", "masked": "[{then}]", "random": "[{then}→{now}]", "kept": "[{then}=]"}
MASK_STYLE = ".special { color: #999 } .masked { background: #f4a6a0 } .random { background: #d9b3ff } .kept { background: #b7e1b0 }"
_STYLE = f"""
body {{ font: 15px/1.6 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
{MASK_STYLE}
table {{ border-collapse: collapse }} td, th {{ padding: .2em .8em; text-align: left }} .fail {{ color: #c00 }}
"""


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """Show rows of a shard set with their masks, the same rows over several epochs, and judge the masks by many rows.

    Colours: red what the model must predict behind the mask token, purple behind a random token, green behind the word itself.
    The linter compares rate, replacement, run lengths, words and epochs with what the config promises; exit code 1 if one fails.

    Examples:
      remask inspect shards --strategy span
      remask inspect shards --strategy ngram --rows 2 --epochs 4 --html masks.html
    """

    shards: Annotated[Path, tyro.conf.Positional]
    """Folder that remask prep has made."""
    strategy: Strategy = "token"
    """What is masked together."""
    rate: float = 0.15
    """Share of the tokens that become targets."""
    mask_share: float = 0.8
    """Share of the targets that become the mask token, or with similar a similar word."""
    random_share: float = 0.1
    """Share of the targets that become a random token."""
    max_words: int | None = None
    """Longest run that ngram, span and similar draw; None is the paper's."""
    refresh: Literal["never", "copies", "epoch"] = "epoch"
    """When masks change; with never the linter expects the same masks in every epoch."""
    similar_words: str | None = None
    """With similar: a table made by remask prep similar; without it every changed word is random."""
    seed: int = 1
    """Of the run whose masks are shown."""
    rows: int = 2
    """Rows to show."""
    epochs: int = 3
    """Epochs to show of each row, and to judge."""
    lint_rows: int = 2000
    """Rows to judge by; with fewer a fault must be larger to be seen."""
    html: Path | None = None
    """Also write the same as a page."""


def main(args: Sequence[str]) -> int:
    """show a set's rows with their masks, and judge the masks"""
    options = parse(InspectOptions, args, "inspect")
    for name in ("rows", "epochs", "lint_rows"):
        if (value := getattr(options, name)) < 1:
            raise UserError(f"remask inspect: --{name.replace('_', '-')}: {value} was given, it must be at least 1")
    if options.html and (not options.html.parent.is_dir() or options.html.is_dir()):
        raise UserError(f"remask inspect: --html: {options.html} is a folder, or its own does not exist")
    loader = _loader(options)
    shown = show_rows(loader, options.shards, options.rows, options.epochs)
    findings = judge(loader, options.lint_rows, options.epochs)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for row, epoch, stretches in shown:
        print(f"row {row}, epoch {epoch}: {''.join(_terminal(stretch, colour) for stretch in stretches)}")
    print(format_table(["", "what", "expected", "observed", "verdict rests on"], [_cells(finding) for finding in findings]))
    if options.html:
        options.html.write_text(_page(options, shown, findings), encoding="utf-8")
    return 0 if all(finding.ok for finding in findings) else 1


def _loader(options: InspectOptions) -> "Loader":
    from remask.data_prep.blocks import Blocks
    from remask.data_prep.data import DataConfig
    from remask.data_prep.loader import open_loader

    names = ("strategy", "rate", "mask_share", "random_share", "max_words", "refresh", "similar_words")
    try:
        masking = MaskingConfig(**{name: getattr(options, name) for name in names})
    except ValueError as error:
        raise wrong_option("inspect", error) from error
    data = DataConfig(sets=(str(options.shards),), pack=Blocks(options.shards).pack)
    return open_loader(data, masking, options.seed)


def judge(loader: "Loader", rows: int, epochs: int) -> "list[Finding]":
    """The linter on the first rows of the corpus, with their masks of the first epochs."""
    import numpy as np

    from remask.data_prep.lint import lint

    chosen = np.arange(min(rows, loader.orders[0].rows))
    made = loader.rows_in_epoch(chosen, 0)[0]
    masked = [loader.rows_in_epoch(chosen, epoch)[1] for epoch in range(epochs)]
    return lint(loader.masker.config, made, masked, loader.masker.mask_id, loader.masker.ordinary)


def show_rows(loader: "Loader", shards: Path, rows: int, epochs: int) -> list[tuple[int, int, list[Stretch]]]:
    """Rows spread over the corpus, each in some epochs."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(shards / "tokenizer.json"))

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    total = loader.orders[0].rows
    found = []
    for row in dict.fromkeys(int(i * total / rows) for i in range(min(rows, total))):
        for epoch in range(epochs):
            made, masked = loader.rows_in_epoch(np.array([row]), epoch)
            found.append((row, epoch, _stretches(made, masked, loader.masker.mask_id, decode)))
    return found


def _stretches(rows: "Rows", masked: "Masked", mask_id: int, decode: Callable[[list[int]], str]) -> list[Stretch]:
    """The row in stretches of one kind, decoded."""
    from remask.data_prep.masks import PROTECTED

    targets = set(masked.positions.tolist())

    def kind_of(place: int) -> Kind:
        if place in targets:
            now = masked.inputs[place]
            return "masked" if now == mask_id else "kept" if now == rows.ids[place] else "random"
        return "special" if rows.marks[place] & PROTECTED else "text"

    found: list[Stretch] = []
    for kind, places in groupby(range(len(rows.ids)), kind_of):
        at = list(places)
        then, now = (decode(ids[at].tolist()).replace("\n", "⏎") for ids in (rows.ids, masked.inputs))
        found.append((then, now, kind))
    return found


def _terminal(stretch: Stretch, colour: bool) -> str:
    then, now, kind = stretch
    if colour and _COLOURS[kind]:
        shown = f"{then}→{now}" if kind == "random" else then
        return f" {_COLOURS[kind]}{shown.strip()}\33[0m "
    return " " + in_brackets(stretch)


def in_brackets(stretch: Stretch) -> str:
    """[word] behind the mask token, [word→other] behind a random one, [word=] behind itself."""
    then, now, kind = stretch
    return _PLAIN[kind].format(then=then.strip(), now=now.strip())


def _cells(finding: "Finding") -> list[str]:
    return ["ok" if finding.ok else "FAIL", finding.name, finding.expected, finding.observed, finding.how]


def in_colour(stretch: Stretch) -> str:
    """A piece of a page; the style gives each class its colour."""
    then, now, kind = stretch
    return f'<span class="{kind}" title="{html.escape(now)}">{html.escape(f"{then}→{now}" if kind == "random" else then)}</span>'


def _page(options: InspectOptions, shown: list[tuple[int, int, list[Stretch]]], findings: "list[Finding]") -> str:
    rows = "".join(
        f"<p><b>row {row}, epoch {epoch}</b> " + " ".join(map(in_colour, stretches)) + "</p>\n" for row, epoch, stretches in shown
    )
    table = "".join(
        f'<tr class="{"ok" if finding.ok else "fail"}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(finding)) + "</tr>\n"
        for finding in findings
    )
    head = "<tr><th></th><th>what</th><th>expected</th><th>observed</th><th>verdict rests on</th></tr>"
    title = f"Masks of {html.escape(str(options.shards))}, strategy {options.strategy}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1>\n{rows}<table>{head}\n{table}</table></html>\n"
    )
