"""The model card of an export: what it is, how it came to be, how it was checked."""

from collections.abc import Mapping
from typing import Any

from remask.launcher.model_folder import StoredModel
from remask.model.huggingface import Form

_CARD = """\
---
library_name: transformers
pipeline_tag: fill-mask
tags: [{tags}]
---

# {title}

{kind} encoder of {unique:,} parameters{total}: {layers} layers of width {hidden}, {heads} heads, {vocab:,} tokens, rows of up to
{positions} tokens. Exported by remask {version}; opens in Hugging Face as `{architecture}`.

```python
from transformers import pipeline
pipeline("fill-mask", model="{title}")("The capital of France is {mask}.")
```

## How it was made

{record}

## How the export was checked

{checks}
{notes}"""


def write_card(title: str, model: StoredModel, form: Form, version: str, checks: Mapping[str, str]) -> str:
    """Markdown, with the front matter that the hub reads."""
    config = model.config
    shared = f" ({config.total_parameters:,} counted once per use; sharing {config.sharing})" if config.sharing != "none" else ""
    return _CARD.format(
        tags=", ".join(["fill-mask", config.family, "remask"]),
        title=title,
        kind={"bert": "A BERT", "roberta": "A RoBERTa", "albert": "An ALBERT"}[config.family],
        unique=config.unique_parameters,
        total=shared,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        vocab=config.vocab_size,
        positions=config.positions,
        version=version,
        architecture=form.architecture,
        mask=model.vocabulary.pieces[model.vocabulary.specials["mask"]],
        record=_table(model.record) if model.record else "Nothing is recorded.",
        checks=_table(checks),
        notes="".join(f"\nNote: {note}.\n" for note in form.notes),
    )


def _table(values: Mapping[str, Any]) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in _flat("", values)]
    return "\n".join(["| | |", "|---|---|", *lines])


def _flat(path: str, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Nested values under dotted names."""
    rows: list[tuple[str, Any]] = []
    for name, value in values.items():
        key = f"{path}.{name}" if path else str(name)
        rows.extend(_flat(key, value) if isinstance(value, Mapping) else [(key, value)])
    return rows


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
