"""`remask demo`: the whole path, on this machine, with no download."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Source
from remask.data_prep.files import hash_of, locked, written_whole
from remask.data_prep.harvest import harvest
from remask.data_prep.pack import PackConfig
from remask.launcher import logs
from remask.launcher.config import RunConfig, dump, load
from remask.launcher.errors import UserError
from remask.launcher.export import export
from remask.launcher.local_ranks import run_ranks
from remask.launcher.options import parse_with_config
from remask.launcher.prep import MAX_WORKERS, prep_report
from remask.launcher.progress import Progress, progress
from remask.launcher.train_tokenizer import train_on

if TYPE_CHECKING:
    from remask.data_prep.tokenizer import Kind

log = logging.getLogger(__name__)

# Installed with remask, so never missing.
PACKAGES = ("python", "numpy", "torch")
_KINDS: "dict[str, Kind]" = {"bert": "wordpiece", "roberta": "bpe", "albert": "unigram"}
_TOKENIZER_SAMPLE_MB = 4  # Unigram takes half a minute on all of it
_RANKS = 2


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
    """Preset or YAML file of the model; the -tiny ones are made for two cores."""
    workers: int = os.cpu_count() or 1
    """Processes that read the corpus; changes the time, not the result."""
    dry_run: bool = False
    """Only print the steps and the resolved config."""


def main(args: Sequence[str]) -> int:
    """run the whole path on this machine, with no download"""
    options, config = parse_with_config(DemoOptions, args, "demo", preset=DemoOptions.preset)
    if not 1 <= options.workers <= MAX_WORKERS:
        raise UserError(f"remask demo: --workers: {options.workers} was given, it must be from 1 to {MAX_WORKERS}")
    if options.dry_run:
        for name, step in STEPS.items():
            print(f"# {name}: {step.__doc__}")
        print(dump(config).rstrip())
        return 0
    try:
        with locked(options.out):
            logs.also_to(options.out / "demo.log")
            for number, (name, step) in enumerate(STEPS.items(), start=1):
                start = time.monotonic()
                outcome = step(options, config)
                log.info("%d/%d %s: %s (%.0f s)", number, len(STEPS), name, outcome, time.monotonic() - start)
    except OSError as error:
        where = error.filename or options.out
        raise UserError(f"remask demo: {where}: {error.strerror}; mend it, or give another folder with --out") from error
    for name, step in STEPS.items():
        print(f"{name:<10} {step.__doc__}")
    print(f"everything is in {options.out.resolve()}")
    return 0


def save_config(options: DemoOptions, config: RunConfig) -> str:
    """config.yaml, the resolved config of the run"""
    file = options.out / "config.yaml"
    if file.exists():
        if load(str(file)) != config:
            raise UserError(f"{file}: the folder was made with another config; give the same options, or another folder with --out")
        return f"{file} is there, the same"
    with written_whole(file) as stream:
        stream.write(dump(config).encode())
    return f"{options.preset}, {config.model.unique_parameters:,} unique parameters, in {file}"


def make_corpus(options: DemoOptions, _: RunConfig) -> str:
    """corpus.jsonl, the documentation of the installed Python packages, one document a source file"""
    corpus, record = options.out / "corpus.jsonl", options.out / "corpus.json"
    if record.exists() and corpus.is_file():
        if json.loads(record.read_bytes()).get("hash") == hash_of(corpus):
            return f"{corpus} is there, used again"
        log.warning("%s is not as it was written; it is made again", corpus)
    with progress("files") as report:
        found = harvest(corpus, PACKAGES, options.workers, lambda done, total: report(Progress(stage="corpus", done=done, total=total)))
    with written_whole(record) as stream:
        stream.write(json.dumps(asdict(found)).encode())
    return f"{found.documents:,} documents, {found.text_bytes / 1e6:.1f} MB of text from {found.files:,} files in {corpus}"


def make_tokenizer(options: DemoOptions, config: RunConfig) -> str:
    """tokenizer.json, of the kind that the model's family uses, trained on that corpus"""
    from remask.data_prep.tokenizer import load as load_tokenizer

    file = options.out / "tokenizer.json"
    if file.exists():
        return f"{file} with {len(load_tokenizer(file).pieces):,} entries is there, used again"
    kind = _KINDS[config.model.family]
    log.info("training a %s tokenizer", kind)
    vocabulary = train_on(_sources(options), CleanConfig(), kind, config.model.vocab_size, lowercase=False, sample_mb=_TOKENIZER_SAMPLE_MB)
    with written_whole(file) as stream:
        stream.write(vocabulary.text.encode())
    return f"{kind} with {len(vocabulary.pieces):,} entries in {file}"


def make_shards(options: DemoOptions, config: RunConfig) -> str:
    """shards/, the corpus tokenised and packed into rows, readable by plain webdataset; for a phase of short rows shards-short/"""
    made = [_prepare(options, config.data.pack, options.out / "shards")]
    if config.schedule.short_fraction:
        made.append(
            _prepare(options, replace(config.data.pack, sequence_length=config.schedule.short_length), options.out / "shards-short")
        )
    return "; ".join(made)


def _prepare(options: DemoOptions, pack: PackConfig, folder: Path) -> str:
    from remask.data_prep.prep import PrepConfig, prepare
    from remask.data_prep.workers import local_workers

    settings = PrepConfig(sources=_sources(options), tokenizer=options.out / "tokenizer.json", pack=pack)
    with local_workers(options.workers) as workers, progress("MB") as report:
        outcome = prepare(settings, folder, workers, prep_report(report))
    if outcome.manifest is None:
        raise UserError(f"remask demo: the shards failed: {next(iter(outcome.failures.values()))}")
    rows = sum(shard.rows for shard in outcome.manifest.train)
    return f"{rows:,} rows to train in {len(outcome.manifest.train)} shards, {outcome.built} of them made now, in {folder}"


def check_masks(options: DemoOptions, config: RunConfig) -> str:
    """masks as the config draws them, judged on the shards' own rows"""
    from remask.data_prep.loader import open_loader
    from remask.launcher.inspect_masks import judge

    loader = open_loader(replace(config.data, sets=(str(options.out / "shards"),), sentence_task="none"), config.masking, config.seed)
    findings = judge(loader, rows=2000, epochs=3)
    if wrong := [f"{finding.name} {finding.observed} instead of {finding.expected}" for finding in findings if not finding.ok]:
        raise RuntimeError(f"the masks are not what the config says: {'; '.join(wrong)}")
    batch = loader.batch(0)
    size = f"{len(batch)} rows, {batch.tokens:,} tokens, {len(batch.targets):,} targets"
    return f"{len(findings)} verdicts, all good; the first batch has {size}"


def train_model(options: DemoOptions, config: RunConfig) -> str:
    """run/, the model trained on 2 ranks, with metrics and checkpoints"""
    run = options.out / "run"
    args = ["--preset", str(options.out / "config.yaml"), "--data", str(options.out / "shards"), "--out", str(run)]
    if config.schedule.short_fraction:
        args += ["--data.short-sets", str(options.out / "shards-short")]
    if code := run_ranks(_RANKS, [sys.executable, "-m", "remask.launcher.train", *args]):
        raise UserError(f"remask demo: the training ended with exit code {code}; what it said stands above")
    first, *_, last = [record for record in _read_records(run) if record["kind"] == "evaluation"]
    before, after = (record["validation/masked_tokens"] for record in (first, last))
    if not after < before - 0.1:
        raise RuntimeError(f"the validation loss did not fall: {before:.3f} at first, {after:.3f} at step {last['step']}")
    return f"validation loss of masked tokens {before:.3f} at first, {after:.3f} after {last['step']} steps, in {run}"


def export_model(options: DemoOptions, _: RunConfig) -> str:
    """model/, a Hugging Face folder with the same scores"""
    folder = options.out / "model"
    if folder.exists():
        return f"{folder} is there, used again"
    return "; ".join(export(options.out / "run", folder))


def fill_masks(options: DemoOptions, config: RunConfig) -> str:
    """words that Hugging Face's own fill-mask puts into sentences with that model"""
    from transformers import pipeline
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    fill: Any = pipeline("fill-mask", model=str(options.out / "model"), device="cpu")
    for sentence in config.metrics.sentences:
        guesses = fill(sentence.replace("[MASK]", fill.tokenizer.mask_token), top_k=5)
        log.info("%s  %s", sentence, ", ".join(f"{guess['token_str']} {guess['score']:.0%}" for guess in guesses))
    return f"{len(config.metrics.sentences)} sentences; so small a model in so short a time knows which words are frequent, not more"


def _read_records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics" / "rank-00000.jsonl").read_text(encoding="utf-8").splitlines()]


def _sources(options: DemoOptions) -> tuple[Source, ...]:
    return (Source(name="documentation", paths=(str(options.out / "corpus.jsonl"),)),)


# The config comes first: a folder that was made with another one is refused before any work.
STEPS: dict[str, Callable[[DemoOptions, RunConfig], str]] = {
    "config": save_config,
    "corpus": make_corpus,
    "tokenizer": make_tokenizer,
    "shards": make_shards,
    "masks": check_masks,
    "training": train_model,
    "export": export_model,
    "fill-mask": fill_masks,
}
