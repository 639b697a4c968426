"""`remask demo`: the whole path that exists, on this machine, with no download."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from remask.data_prep.harvest import harvest
from remask.launcher import logs
from remask.launcher.config import RunConfig, dump, load
from remask.launcher.errors import UserError
from remask.launcher.options import parse_with_config
from remask.launcher.progress import progress

log = logging.getLogger(__name__)

# Installed with remask, so never missing.
PACKAGES = ("python", "numpy", "torch")


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Run the whole path on this machine's CPU, with no download.

    The corpus is the documentation of the installed Python packages. What a step has made is kept and used again, so
    an interrupted demo goes on where it stopped.

    Examples:
      remask demo
      remask demo --out /tmp/demo --preset bert-tiny --model.layers 2 --dry-run
    """

    out: Path = Path("remask-demo")
    """Folder for everything that the demo makes."""
    preset: str = "albert-tiny"
    """Preset or YAML file of the model; the -tiny ones train in seconds on two cores."""
    workers: int = os.cpu_count() or 1
    """Processes that read the corpus; changes the time, not the result."""
    dry_run: bool = False
    """Only print the steps and the resolved config."""


def main(args: Sequence[str]) -> int:
    """run the whole path on this machine, with no download"""
    options, config = parse_with_config(DemoOptions, args, "demo", preset=DemoOptions.preset)
    if options.workers < 1:
        raise UserError(f"remask demo: --workers: {options.workers} was given, it must be at least 1")
    if options.dry_run:
        for name, step in STEPS.items():
            print(f"# {name}: {step.__doc__}")
        print(dump(config).rstrip())
        return 0
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        logs.also_to(options.out / "demo.log")
        for number, (name, step) in enumerate(STEPS.items(), start=1):
            start = time.monotonic()
            outcome = step(options, config)
            log.info("%d/%d %s: %s (%.0f s)", number, len(STEPS), name, outcome, time.monotonic() - start)
    except OSError as error:
        raise UserError(f"remask demo: {error.filename or options.out}: {error.strerror}; choose another folder with --out") from error
    print(f"everything is in {options.out.resolve()}")
    return 0


def make_corpus(options: DemoOptions, _: RunConfig) -> str:
    """corpus.jsonl, the documentation of the installed Python packages, one document a source file"""
    corpus = options.out / "corpus.jsonl"
    if corpus.exists():
        return f"{corpus} is there, used again"
    with progress("corpus", "files") as report:
        found = harvest(corpus, PACKAGES, options.workers, report)
    return f"{found.documents:,} documents, {found.text_bytes / 1e6:.1f} MB of text from {found.files:,} files in {corpus}"


def save_config(options: DemoOptions, config: RunConfig) -> str:
    """config.yaml, the resolved config of the run"""
    file = options.out / "config.yaml"
    if file.exists():
        if load(str(file)) != config:
            raise UserError(f"{file}: the folder was made with another config; give the same options, or another folder with --out")
        return f"{file} is there, the same"
    file.write_text(dump(config), encoding="utf-8")
    return f"{options.preset}, {config.model.unique_parameters:,} unique parameters, in {file}"


STEPS: dict[str, Callable[[DemoOptions, RunConfig], str]] = {
    "corpus": make_corpus,
    "config": save_config,
}
