"""`remask report`: runs and benchmarks as one page, as Markdown, and as tables for other tools."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from remask.data_prep.files import written_whole
from remask.launcher.errors import UserError
from remask.launcher.options import parse, refuse_target
from remask.launcher.reporting.document import compose
from remask.launcher.reporting.exports import write_csv, write_mllog
from remask.launcher.reporting.markdown import write_markdown
from remask.launcher.reporting.measurements import Benchmark, read_benchmark
from remask.launcher.reporting.overview import summary
from remask.launcher.reporting.page import write_page
from remask.launcher.reporting.preview import Seen
from remask.launcher.reporting.runs import Run, find_runs, name_runs, read_run
from remask.launcher.tables import format_table

_SHOWN = ("run", "state", "step", "loss", "perplexity", "tokens/s", "wall time", "starts", "incidents")
_OUTPUTS = ("html", "markdown", "csv", "mllog")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Put runs and benchmarks on one page: curves, communication, comparison, masks, incidents.

    The page is one file that needs no network and no server: copy it from a login node and open it. Several runs are laid over each
    other, with a table of what differs. Without any output option report.html is written.

    Examples:
      remask report run
      remask report run-a run-b --html both.html --markdown both.md
      remask report sweep comm.json --html sweep.html
      remask report run --html live.html --watch
      remask report run --csv run.csv --mllog run.log
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATHS")]
    """Folders of runs, folders with runs right below them such as a sweep's, and JSON files of remask bench."""
    html: Path | None = None
    """Write the page here; a page that is there is replaced."""
    markdown: Path | None = None
    """Write the same as Markdown here; of a curve eight points stand in a table."""
    csv: Path | None = None
    """Write the runs here, a row for each line of metrics: tokens_per_sec_per_gpu, model_tflops_per_gpu and so on."""
    mllog: Path | None = None
    """Write the runs here as MLPerf's :::MLLOG lines."""
    watch: bool = False
    """Write everything again and again until the runs have ended; Ctrl-C ends only the watching."""
    interval_seconds: float = 30.0
    """With --watch: how long to wait before writing it again; the page reloads itself as often."""


def main(args: Sequence[str]) -> int:
    """put runs and benchmarks on one page: curves, comparison, tables"""
    options = parse(ReportOptions, args, "report")
    targets = _targets(options)
    folders, benchmarks = _sort(options.paths)
    if not folders and (options.watch or "csv" in targets or "mllog" in targets):
        raise UserError("remask report: --watch, --csv and --mllog are about runs, but only benchmarks were given; add a run's folder")
    seen: Seen = {}
    runs = _write(folders, benchmarks, targets, seen, options)
    if not options.watch:
        _tell(runs, targets)
        return 0
    try:
        _tell(runs, targets)
        while not all(run.end for run in runs):
            time.sleep(options.interval_seconds)
            runs = _write(folders, benchmarks, targets, seen, options)
            if all(run.end for run in runs):
                _tell(runs, targets)
    except KeyboardInterrupt:
        print("no longer watching; the files are as they were written last")
    return 0


def _targets(options: ReportOptions) -> dict[str, Path]:
    """What to write where; refused before any work if it cannot be."""
    if not 0 < options.interval_seconds <= 86400:
        raise UserError(
            f"remask report: --interval-seconds: {options.interval_seconds} was given, it must be more than 0 and at most 86400"
        )
    found = {name: file for name in _OUTPUTS if (file := getattr(options, name)) is not None} or {"html": Path("report.html")}
    for name, file in found.items():
        refuse_target("report", f"--{name}", file)
    if len({file.resolve() for file in found.values()}) < len(found):
        raise UserError(f"remask report: {', '.join(f'--{name}' for name in found)}: two outputs have the same name; give each its own")
    return found


def _sort(paths: Sequence[Path]) -> tuple[list[Path], list[Benchmark]]:
    """Runs' folders, each once, and benchmarks."""
    if not paths:
        raise UserError("remask report: nothing was given; give folders of runs or JSON files of remask bench (see remask report --help)")
    folders: dict[Path, Path] = {}
    benchmarks = []
    for path in paths:
        if path.is_dir():
            folders |= {run.resolve(): run for run in find_runs(path) if run.resolve() not in folders}
        else:
            benchmarks.append(read_benchmark(path))
    return list(folders.values()), benchmarks


def _write(folders: list[Path], benchmarks: list[Benchmark], targets: dict[str, Path], seen: Seen, options: ReportOptions) -> list[Run]:
    runs = [read_run(folder, name) for folder, name in zip(folders, name_runs(folders), strict=True)]
    report = compose(runs, benchmarks, seen)
    goes_on = options.watch and not all(run.end for run in runs)
    writers = {
        "html": lambda: write_page(report, options.interval_seconds if goes_on else None),
        "markdown": lambda: write_markdown(report),
        "csv": lambda: write_csv(runs),
        "mllog": lambda: write_mllog(runs),
    }
    for name, file in targets.items():
        content = writers[name]().encode("utf-8", errors="replace")
        try:
            with written_whole(file.resolve()) as stream:  # a link stays one
                stream.write(content)
        except OSError as error:
            raise UserError(f"remask report: --{name}: {file} cannot be written ({error.strerror}); give another name") from error
    return runs


def _tell(runs: list[Run], targets: dict[str, Path]) -> None:
    if runs:
        table = summary(runs)
        chosen = [table.columns.index(name) for name in _SHOWN]
        _print(format_table(_SHOWN, [[row[i] for i in chosen] for row in table.rows], numeric=_SHOWN[2:]))
    _print(f"{', '.join(str(file) for file in targets.values())} written")


def _print(text: str) -> None:
    """Names of folders, and words of others, may hold what no terminal takes: halves of characters."""
    print(text.encode("utf-8", errors="replace").decode(), flush=True)
