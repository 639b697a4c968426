"""`remask presets`: what can be trained, with its size, and any config resolved to its last value."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remask.data_prep.files import written_whole
from remask.launcher.config import RunConfig, dump, load, preset_names
from remask.launcher.decode import encode
from remask.launcher.errors import UserError
from remask.launcher.options import parse_with_config, split_overrides
from remask.launcher.tables import format_table


@dataclass(frozen=True, kw_only=True)
class PresetsOptions:
    """List the presets, or resolve one.

    Without --preset: a table of all presets. Unique parameters are stored, trained and sent; total counts a shared weight
    once per use. With --preset: the whole config that a run would have, as YAML, after inheritance and overrides.

    Examples:
      remask presets
      remask presets --preset albert-base --model.layers 24
      remask presets --preset my-run.yaml --save resolved.yaml
    """

    preset: str | None = None
    """A preset's name or a YAML file to resolve; without it all presets are listed."""
    save: Path | None = None
    """With --preset: also write the resolved YAML here, where --preset can load it again; refuses to overwrite."""
    json: bool = False
    """Print JSON instead of a table or YAML, for scripts."""


def main(args: Sequence[str]) -> int:
    """list what can be trained with its size, or resolve one config"""
    options, config = parse_with_config(PresetsOptions, args, "presets", preset="bert-base")
    if options.preset is None:
        if options.save or split_overrides(args)[1]:
            raise UserError("remask presets: --save and overrides need --preset NAME, the config that they apply to")
        rows = [row_of(name, load(name)) for name in preset_names()]
        print(json.dumps(rows, indent=2) if options.json else table_of(rows))
        return 0
    if options.save is not None:
        _save(dump(config), options.save)
    print(json.dumps(encode(config), indent=2) if options.json else dump(config).rstrip())
    return 0


def row_of(name: str, config: RunConfig) -> dict[str, Any]:
    """What the table tells of one preset."""
    model = config.model
    return {
        "name": name,
        "family": model.family,
        "layers": model.layers,
        "hidden": model.hidden,
        "embedding": model.embedding_size,
        "sharing": model.sharing,
        "unique_parameters": model.unique_parameters,
        "total_parameters": model.total_parameters,
        "batch": config.data.batch_rows,
        "optimizer": config.optimizer.name,
    }


def table_of(rows: list[dict[str, Any]]) -> str:
    columns = list(rows[0])
    cells = [
        [f"{row[column] / 1e6:,.1f}M" if column.endswith("_parameters") else str(row[column]) for column in columns]
        for row in sorted(rows, key=lambda row: (row["family"], row["total_parameters"]))
    ]
    numeric = [column for column in columns if isinstance(rows[0][column], int)]
    short = {column: column.removesuffix("_parameters") for column in columns}
    return format_table(list(short.values()), cells, numeric=[short[column] for column in numeric])


def _save(text: str, file: Path) -> None:
    if file.suffix not in (".yaml", ".yml"):
        raise UserError(f"--save: {str(file)!r} was given, the name must end in .yaml, so that --preset can load it")
    try:
        with written_whole(file, overwrite=False) as stream:
            stream.write(text.encode())
    except FileExistsError:
        raise UserError(f"--save: {file} exists and is not overwritten; choose another name or remove it") from None
    except OSError as error:
        raise UserError(f"--save: {file} cannot be written ({error.strerror})") from error
