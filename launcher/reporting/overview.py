"""Runs next to each other in tables: how they ended, what differs, what went wrong, how they were started."""

import json
import math
import shlex
from collections.abc import Sequence
from typing import Any

from remask.launcher.reporting.parts import Note, Part, Section, Table, show_number
from remask.launcher.reporting.runs import Run
from remask.launcher.reporting.values import mapping, number
from remask.launcher.training.telling import clock

_MOST_INCIDENTS, _MOST_LETTERS = 20, 240


def summary(runs: Sequence[Run]) -> Table:
    """One row a run."""
    columns = [
        "run", "state", "step", "loss", "validation loss", "perplexity", "tokens/s", "middle 80%",
        "MFU", "wall time", "starts", "ranks", "parameters", "incidents",
    ]  # fmt: skip
    note = "Loss: mean over the last line's steps. Wall time: with evaluations and saves, without the time between two starts."
    return Table(title="Runs" if len(runs) > 1 else "Run", columns=columns, rows=[_summarise(run) for run in runs], note=note)


def _summarise(run: Run) -> list[str]:
    last = run.training[-1] if run.training else {}
    checked = run.evaluations[-1] if run.evaluations else {}
    speed, low, high = run.speed
    config = run.parsed_config
    return [
        run.name,
        state_of(run),
        f"{last['step']:,}" if last else "0",
        _shown(number(last, "loss"), ".4f"),
        _shown(number(checked, "validation/masked_tokens"), ".4f"),
        _shown(number(checked, "validation/perplexity"), ",.2f"),
        _shown(speed, ",.0f"),
        f"{low:,.0f} to {high:,.0f}" if math.isfinite(low) else "",
        _shown(number(last, "mfu"), ".1%"),
        clock(run.seconds) if run.training else "",
        str(len(run.starts)),
        str(run.ranks or ""),
        f"{config.model.unique_parameters:,}" if config else "",
        str(len(run.incidents)),
    ]


def state_of(run: Run) -> str:
    if run.end is not None:
        return str(run.end.get("end", "ended"))
    return "no end yet" if run.starts else "not started"


def _shown(value: float, how: str) -> str:
    """Empty only where there is no such figure; a run that diverged says nan or inf."""
    return "" if math.isnan(value) else format(value, how) if math.isfinite(value) else str(value)


def overview(runs: Sequence[Run]) -> Section:
    parts: list[Part] = [summary(runs)]
    parts += [Note(text=f"{run.name}: {note}.") for run in runs for note in run.notes]
    if len(runs) > 1:
        rows = differences(runs)
        columns = ["key", *(run.name for run in runs)]
        parts.append(
            Table(title="What differs in the configs", columns=columns, rows=rows) if rows else Note(text="The configs are equal.")
        )
    return Section(title="Overview", parts=parts)


def differences(runs: Sequence[Run]) -> list[list[str]]:
    """Keys of the resolved configs that do not have one value in all runs, with each run's."""
    flat = [_flatten("", run.config) for run in runs]
    keys = dict.fromkeys(key for config in flat for key in config)
    rows = [[key, *(_written(config[key]) if key in config else "" for config in flat)] for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flatten(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {key: inner for name, below in value.items() for key, inner in _flatten(f"{path}.{name}" if path else name, below).items()}


def incidents(runs: Sequence[Run]) -> Section:
    rows = []
    for run in runs:
        for incident in run.incidents[-_MOST_INCIDENTS:]:
            guilty = incident.get("rows")
            worst = guilty[0] if isinstance(guilty, list) and guilty and isinstance(guilty[0], dict) else {}
            losses = ", ".join(f"{name} {show_number(number(incident['losses'], name))}" for name in mapping(incident, "losses"))
            rows.append(
                [
                    run.name,
                    str(incident.get("step", "")),
                    str(incident.get("why", "")),
                    str(incident.get("policy", "")),
                    losses,
                    _shown(number(incident, "gradient_norm"), ".4g") or str(incident.get("gradient_norm", "")),
                    cut(str(worst.get("text", ""))),
                ]
            )
    columns = ["run", "step", "why", "what was done", "losses", "gradient norm", "worst row"]
    parts: list[Part] = [Table(title="", columns=columns, rows=rows)] if rows else [Note(text="No step went wrong.")]
    if any(len(run.incidents) > _MOST_INCIDENTS for run in runs):
        parts.append(Note(text=f"Of each run the last {_MOST_INCIDENTS}; all of them, with all their rows, are in its incidents folder."))
    return Section(title="Incidents", parts=parts)


def filled(runs: Sequence[Run]) -> Section | None:
    """Words that the model puts into fixed sentences, at the last evaluation."""
    rows = []
    for run in runs:
        checked = run.evaluations[-1] if run.evaluations else {}
        for sentence, guesses in mapping(checked, "filled").items():
            pairs = [guess for guess in guesses if isinstance(guess, list) and len(guess) == 2] if isinstance(guesses, list) else []
            told = ", ".join(f"{word} {share:.0%}" for word, share in pairs if isinstance(share, int | float))
            rows.append([run.name, f"{checked['step']:,}", str(sentence), told])
    table = Table(title="", columns=["run", "step", "sentence", "likeliest words"], rows=rows)
    return Section(title="Filled masks", parts=[table]) if rows else None


def starts(runs: Sequence[Run]) -> Section:
    """With what, where and by which command."""
    rows = []
    for run in runs:
        for place, start in enumerate(run.starts, start=1):
            command = start.get("command")
            rows.append(
                [
                    run.name,
                    str(place),
                    str(start.get("time", "")),
                    str(start.get("ranks", "")),
                    cut(_joined(start.get("hosts"))),
                    cut(_joined(start.get("devices"))),
                    ", ".join(f"{name} {version}" for name, version in mapping(start, "versions").items()),
                    shlex.join(map(str, command)) if isinstance(command, list) else "",
                ]
            )
    columns = ["run", "start", "time", "ranks", "hosts", "devices", "versions", "command"]
    parts: list[Part] = [Table(title="", columns=columns, rows=rows)] if rows else [Note(text="No run was started yet.")]
    return Section(title="Starts", parts=parts)


def _joined(values: Any) -> str:
    return ", ".join(map(str, values)) if isinstance(values, list) else ""


def cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + " …"
