"""Rows of the runs' own shards with the runs' own masks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from remask.data_prep.errors import InputError
from remask.launcher.config import RunConfig
from remask.launcher.inspect_masks import Stretch, show_rows
from remask.launcher.reporting.parts import Masks, Note, Part, Section
from remask.launcher.reporting.runs import Run
from remask.launcher.reporting.values import parse_json
from remask.launcher.training.run_folder import hash_data

_ROWS, _EPOCHS, _MOST_LETTERS, _MOST_PREVIEWS = 2, 2, 600, 4

Seen = dict[str, Part]
"""Previews by what they depend on: a report that is written again and again opens the shards once."""


def masks(runs: Sequence[Run], seen: Seen) -> Section:
    """One preview for all runs that have the same rows and masks."""
    names: dict[str, list[str]] = {}
    parts: list[Part] = []
    for run in runs:
        config = run.parsed_config
        if config is None:
            parts.append(Note(text=f"{run.name}: its config cannot be read, so its masks are not shown."))
            continue
        key = repr((config.data.sets, config.data.pack, config.data.sentence_task, config.masking, config.seed))
        if key not in seen and len(names) < _MOST_PREVIEWS:
            seen[key] = _preview(run.folder, config)
        names.setdefault(key, []).append(run.name)
    shown = [(", ".join(who), seen[key]) for key, who in names.items() if key in seen]
    parts += [
        replace(part, title=f"{who}: {part.title}") if isinstance(part, Masks) else Note(text=f"{who}: {part.text}")
        for who, part in shown
        if isinstance(part, Masks | Note)
    ]
    if left := len(names) - len(shown):
        parts.append(Note(text=f"{left} more with other rows or masks are not shown; remask inspect shows any."))
    return Section(title="Masks", parts=parts)


def _preview(run: Path, config: RunConfig) -> Part:
    """The rows, or why there are none."""
    from remask.data_prep.loader import open_loader
    from remask.data_prep.tokenizer import load as load_tokenizer

    try:
        if hash_data(config.data) != _read_hashes(run / "data.json"):
            return Note(text="its shards are not what they were when it was started, so its masks cannot be shown.")
        shards = Path(config.data.sets[0])
        load_tokenizer(shards)
        # How many rows the run has is for rates that change on the way; what is shown has the first rate.
        loader = open_loader(config.data, config.masking, config.seed, total_rows=1)
        rows = show_rows(loader, shards, _ROWS, _EPOCHS)
    except (InputError, OSError, IndexError) as error:
        return Note(text=f"its shards are not here, so its masks cannot be shown ({error}).")
    title = f"{config.masking.strategy}, {config.masking.rate:.0%} of the tokens"
    return Masks(title=title, rows=[(row, epoch, _cut(stretches)) for row, epoch, stretches in rows])


def _read_hashes(file: Path) -> Any:
    """Of the run's shards; what is missing or damaged is equal to no hashes."""
    try:
        return parse_json(file.read_bytes())
    except (OSError, ValueError):
        return None


def _cut(stretches: Sequence[Stretch]) -> list[Stretch]:
    """The row's begin, so that a row of 512 tokens does not fill the page."""
    found: list[Stretch] = []
    letters = 0
    for stretch in stretches:
        letters += len(stretch[0])
        if letters > _MOST_LETTERS:
            return [*found, ("…", "…", "special")]
        found.append(stretch)
    return found
