"""Runs for other tools: a CSV with the column names people know, and the lines that MLPerf's parsers read."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from remask.launcher.reporting.runs import Run
from remask.launcher.reporting.values import Record, mapping, number

_COLUMNS = (
    "run", "step", "consumed_samples", "consumed_tokens", "loss", "learning_rate", "grad_norm", "global_batch_size", "step_time_s",
    "tokens_per_sec", "tokens_per_sec_per_gpu", "model_tflops_per_gpu", "mfu", "data_wait_fraction", "comm_bytes_per_step", "world_size",
    "validation_loss", "validation_perplexity",
)  # fmt: skip
_TOLD = {
    "consumed_tokens": "tokens",
    "loss": "loss",
    "learning_rate": "lr",
    "grad_norm": "gradient_norm",
    "tokens_per_sec": "tokens_per_s",
    "mfu": "mfu",
    "data_wait_fraction": "data_wait",
}
"""Columns that stand in the records, under our names."""


def write_csv(runs: Sequence[Run]) -> str:
    """A row for each step that a run told of, evaluations in the row of their step; what is not known is left empty."""
    parts = list(dict.fromkeys(name for run in runs for name in run.parts))
    out = io.StringIO()
    table = csv.DictWriter(out, [*_COLUMNS, *(f"loss_{name}" for name in parts)], restval="", lineterminator="\n")
    table.writeheader()
    for run in runs:
        rows: dict[int, dict[str, Any]] = {}
        for record, samples in _with_samples(run):
            rows[record["step"]] = _row(run, record, samples)
        for record in run.evaluations:
            rows.setdefault(record["step"], {"run": run.name, "step": record["step"]}).update(
                validation_loss=_told(record, "validation/masked_tokens"),
                validation_perplexity=_told(record, "validation/perplexity"),
            )
        table.writerows(rows[step] for step in sorted(rows))
    return out.getvalue()


def _with_samples(run: Run) -> Iterator[tuple[Record, int]]:
    """The records, each with the rows of the run so far."""
    samples = 0
    for record in run.training:
        rows = number(record, "rows")
        samples += int(rows) if math.isfinite(rows) else 0
        yield record, samples


def _row(run: Run, record: Record, samples: int) -> dict[str, Any]:
    steps, speed = max(number(record, "steps"), 1.0), number(record, "tokens_per_s")
    ranks, sent = run.ranks or math.nan, mapping(record, "bytes_per_step")
    derived = {
        "global_batch_size": number(record, "rows") / steps,
        "step_time_s": number(record, "seconds") / steps,
        "tokens_per_sec_per_gpu": speed / ranks,
        "model_tflops_per_gpu": number(record, "tflops"),
        "comm_bytes_per_step": sum(number(sent, name) for name in sent),
        "world_size": ranks,
    }
    return {
        "run": run.name,
        "step": record["step"],
        "consumed_samples": samples,
        **{column: _told(record, name) for column, name in _TOLD.items()},
        **{column: "" if math.isnan(value) else _cell(value) for column, value in derived.items()},
        **{f"loss_{name}": _told(mapping(record, "losses"), name) for name in run.parts},
    }


def _told(record: Record, name: str) -> str:
    """A loss that the run told as nan is nan; what it did not tell is empty."""
    return _cell(number(record, name)) if name in record else ""


def _cell(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)


def write_mllog(runs: Sequence[Run]) -> str:
    """One line an event, with the time that its record tells; the settings have the first start's."""
    return "".join(f":::MLLOG {json.dumps(event, allow_nan=False)}\n" for run in runs for event in _events(run))


def _events(run: Run) -> Iterator[dict[str, Any]]:
    begin = _milliseconds(run.starts[0]) if run.starts else 0

    def event(key: str, value: Any, record: Record | None = None, kind: str = "POINT_IN_TIME", **more: Any) -> dict[str, Any]:
        about = {"file": str(run.folder / "metrics" / "rank-00000.jsonl"), "lineno": 0, **more}
        seconds = number(record or {}, "time")
        when = round(1000 * seconds) if math.isfinite(seconds) else begin
        return {"namespace": run.name, "time_ms": when, "event_type": kind, "key": key, "value": value, "metadata": about}

    for key, value in _settings(run).items():
        yield event(key, value)
    yield event("run_start", None, kind="INTERVAL_START")
    evaluations = {record["step"]: record for record in run.evaluations}
    if 0 in evaluations:
        yield from _evaluated(event, evaluations.pop(0), 0)
    for record, samples in _with_samples(run):
        where = {"step": record["step"], "samples_count": samples}
        yield event("train_loss", _value(number(record, "loss")), record, **where, lr=_value(number(record, "lr")))
        speed, rows, passed = (number(record, name) for name in ("tokens_per_s", "rows", "seconds"))
        stats = {"throughput": rows / passed if passed > 0 else math.nan, "tokens_per_sec": speed, "mfu": number(record, "mfu")}
        yield event("tracked_stats", {name: _value(value) for name, value in stats.items()}, record, **where)
        for step in sorted(step for step in evaluations if step <= record["step"]):
            yield from _evaluated(event, evaluations.pop(step), samples)
    if run.end is not None:
        status = "success" if run.end.get("end") == "finished" else "aborted"
        last = max([*run.training, *run.evaluations], key=lambda record: number(record, "time"), default=None)
        yield event("run_stop", None, last, kind="INTERVAL_END", status=status)


def _evaluated(event: Any, record: Record, samples: int) -> Iterator[dict[str, Any]]:
    where = {"step": record["step"], "samples_count": samples}
    yield event("eval_start", None, record, kind="INTERVAL_START", **where)
    for key, name in (("eval_loss", "validation/masked_tokens"), ("eval_perplexity", "validation/perplexity")):
        if name in record:
            yield event(key, _value(number(record, name)), record, **where)
    yield event("eval_stop", None, record, kind="INTERVAL_END", **where)


def _settings(run: Run) -> dict[str, Any]:
    """What MLPerf's rules ask a run to tell of itself, as far as it has a name there."""
    config = run.parsed_config
    if config is None:
        return {}
    family = "lamb" if config.optimizer.name == "lamb" else "adam"
    return {
        "submission_benchmark": config.model.family,
        "seed": config.seed,
        "global_batch_size": config.data.batch_rows,
        "max_sequence_length": config.data.pack.sequence_length,
        "opt_name": config.optimizer.name,
        "opt_base_learning_rate": config.optimizer.lr,
        "opt_learning_rate_warmup_steps": config.schedule.warmup_steps,
        "opt_learning_rate_training_steps": config.schedule.steps,
        "opt_gradient_clip_norm": config.optimizer.clip_norm,
        "opt_weight_decay": config.optimizer.weight_decay,
        f"opt_{family}_beta_1": config.optimizer.betas[0],
        f"opt_{family}_beta_2": config.optimizer.betas[1],
        f"opt_{family}_epsilon": config.optimizer.eps,
        "eval_samples": config.metrics.evaluate_rows,
    }


def _milliseconds(start: dict[str, Any]) -> int:
    try:
        return round(1000 * datetime.strptime(str(start.get("time")), "%Y-%m-%dT%H:%M:%S%z").timestamp())
    except ValueError:
        return 0


def _value(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)
