"""`remask prep`: a corpus becomes a shard set."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import tyro

from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import AskedFormat
from remask.data_prep.marks import MarkConfig
from remask.data_prep.pack import PackConfig
from remask.launcher import similar_words
from remask.launcher.corpora import sources_of
from remask.launcher.errors import UserError, wrong_option
from remask.launcher.options import parse
from remask.launcher.progress import Progress, progress
from remask.launcher.ranks import place_of

if TYPE_CHECKING:
    from remask.data_prep.prep import PrepConfig, Report
    from remask.data_prep.workers import Workers

_ESTIMATE_SHARE = 0.01
MAX_WORKERS = 1024


@dataclass(frozen=True, kw_only=True)
class PrepOptions:
    """Turn a corpus of any size into a shard set, once, for every objective.

    A run that was killed goes on where it stopped. The shards are the same, to the byte, for any number of workers. Under
    mpirun the ranks are the workers, else processes of this machine.

    Examples:
      remask prep corpus.jsonl --tokenizer tokenizer.json --out shards
      remask prep 'wiki/*.jsonl.gz' books/ --tokenizer roberta/ --out shards --pack.mode doc-sentences
      mpirun -n 64 remask prep news.jsonl --tokenizer tokenizer.json --out shards
      remask prep --verify --out shards
      remask prep similar shards --out similar.tsv   (a table for the masking strategy similar; has a --help of its own)
    """

    inputs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Files, folders, globs: .txt (a blank line between documents), .jsonl, .parquet, .gz or .zst of the first two; or a corpus .yaml."""
    out: Path
    """Folder for the shards and their manifest; given again, it is continued."""
    tokenizer: Path | None = None
    """A tokenizer.json, or a Hugging Face folder that holds one; its hash is kept with the shards."""
    format: AskedFormat = "auto"
    """How to read the inputs: by their ending, or as said here; file makes each file one document."""
    field: str = "text"
    """JSON field or Parquet column that holds the text; rows without it are dropped and counted."""
    workers: int = os.cpu_count() or 1
    """Local processes; changes the time and the memory, never the shards."""
    block_rows: int = 512
    """Rows of one tar sample; fewer shuffle better, and from 256 on more do not read faster."""
    shard_mb: int = 512
    """MB of stored text that become one shard; a small corpus is cut finer, so that all cores have work."""
    chinese_words: bool = False
    """Cut Chinese text into words with rjieba, so that whole-word masking masks words; else each ideograph counts as one."""
    word_list: Path | None = None
    """Words to add to rjieba's dictionary, one a line; turns --chinese-words on."""
    chinese_entities: bool = False
    """Mark the people, places and organisations that rjieba tags in Chinese, for phrase masking; turns --chinese-words on."""
    phrase_list: Path | None = None
    """Phrases to mark for phrase masking, one a line; of several that fit, the longest is marked."""
    entity_list: Path | None = None
    """Names to mark as entities, one a line."""
    strict: bool = False
    """Stop at the first document that is empty or cannot be read, naming its line, instead of dropping and counting it."""
    estimate: bool = False
    """Only process about 1% of the corpus and print what all of it takes: core-hours, disk, tokens; nothing is kept."""
    estimate_gb: float | None = None
    """With --estimate: tell it for a corpus of so many GB, as it is stored, of which the inputs are a sample."""
    verify: bool = False
    """Only read every shard of --out again, and name what is missing or altered."""
    pack: PackConfig = dataclasses.field(default_factory=PackConfig)
    clean: CleanConfig = dataclasses.field(default_factory=CleanConfig)


def main(args: Sequence[str]) -> int:
    """turn a corpus into shards, or --verify a shard set"""
    if args[:1] == ["similar"]:
        return similar_words.main(args[1:])
    options = parse(PrepOptions, args, "prep")
    if options.verify:
        return _verify(options.out)
    if not options.inputs or options.tokenizer is None:
        raise UserError(
            "remask prep: the corpus and --tokenizer are needed, such as remask prep corpus.jsonl --tokenizer tokenizer.json --out shards"
        )
    if not 1 <= options.workers <= MAX_WORKERS:
        raise UserError(f"remask prep: --workers: {options.workers} was given, it must be from 1 to {MAX_WORKERS}")
    if options.estimate:
        from remask.data_prep.estimate import estimate

        if place_of(os.environ).rank == 0:
            print(estimate(_config(options, options.tokenizer), _ESTIMATE_SHARE, options.estimate_gb))
        return 0
    with _workers(options.workers) as workers:
        return 0 if workers is None else _prepare(options, options.tokenizer, workers)


def _config(options: PrepOptions, tokenizer: Path) -> "PrepConfig":
    from remask.data_prep.prep import PrepConfig

    try:
        return PrepConfig(
            sources=sources_of(options.inputs, options.format, options.field),
            tokenizer=tokenizer,
            pack=options.pack,
            clean=options.clean,
            marks=_marks(options),
            block_rows=options.block_rows,
            shard_mb=options.shard_mb,
        )
    except ValueError as error:
        raise wrong_option("prep", error) from error


def _prepare(options: PrepOptions, tokenizer: Path, workers: "Workers") -> int:
    from remask.data_prep import manifest, report
    from remask.data_prep.prep import prepare

    config = _config(options, tokenizer)
    try:
        with progress("MB") as tell:
            outcome = prepare(config, options.out, workers, prep_report(tell), options.strict)
    except OSError as error:
        raise UserError(f"{error.filename or options.out}: {error.strerror}; what is done is kept, mend it and run again") from error
    if outcome.manifest is None:
        first = next(iter(outcome.failures.values()))
        raise UserError(f"{len(outcome.failures)} items failed, all others are done; mend this and run again: {first}")
    summary = report.summarise(outcome.manifest, options.out)
    manifest.save(options.out / "report.json", summary)
    print(report.as_text(summary))
    return 0


def _marks(options: PrepOptions) -> MarkConfig:
    return MarkConfig(
        chinese_words=options.chinese_words or options.chinese_entities or options.word_list is not None,
        chinese_entities=options.chinese_entities,
        words=_entries("--word-list", options.word_list, options.clean),
        phrases=_entries("--phrase-list", options.phrase_list, options.clean),
        entities=_entries("--entity-list", options.entity_list, options.clean),
    )


def _entries(option: str, file: Path | None, config: CleanConfig) -> tuple[str, ...]:
    """The lines of a list, each once, cleaned as the corpus is."""
    if file is None:
        return ()
    from remask.data_prep.scrub import clean

    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option}: {file} cannot be read ({error}); give a text file with one entry a line") from error
    each = dataclasses.replace(config, min_characters=0)
    entries = tuple(dict.fromkeys(cleaned.decode() for line in lines if (cleaned := clean(line, each)[0])))
    if not entries:
        raise UserError(f"{option}: {file} has no entry; give a text file with one entry a line")
    return entries


def prep_report(tell: Callable[[Progress], None]) -> "Report":
    """The offline stage's reports in MB and tokens."""
    return lambda stage, done, total, tokens: tell(
        Progress(stage=stage, done=done / 1e6, total=total / 1e6, also="tokens", also_done=tokens)
    )


def _verify(out: Path) -> int:
    from remask.data_prep import manifest

    described = manifest.read(out)
    with progress("MB") as tell:
        found = list(
            manifest.damages(described, out, lambda done, total: tell(Progress(stage="verify", done=done / 1e6, total=total / 1e6)))
        )
    if found:
        raise UserError(f"{len(found)} files are not as they were written, remove them and run prep again: {'; '.join(found)}")
    print(f"{len(described.shards)} shards with {sum(shard.rows for shard in described.shards):,} rows are as they were written")
    return 0


@contextmanager
def _workers(count: int) -> "Iterator[Workers | None]":
    """The ranks of the MPI job that this process is in, or local processes; None on a rank that only works for rank 0."""
    from remask.data_prep.workers import Workers, local_workers

    if place_of(os.environ).world_size == 1:
        with local_workers(count) as workers:
            yield workers
        return
    from remask.data_prep.mpi import load_mpi

    world = load_mpi().COMM_WORLD
    if world.size == 1:
        raise UserError("several tasks were started, but MPI sees only one; start with mpirun, or srun --mpi=pmix")
    from mpi4py.futures import MPICommExecutor

    with MPICommExecutor(world, root=0) as executor:
        yield None if executor is None else Workers(lambda: cast(Executor, executor), world.size - 1)
