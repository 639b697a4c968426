"""The offline stage: a corpus becomes a shard set, once.

The corpus is cut into work items by names and sizes alone. Each item is scanned for its documents' hashes, duplicates are marked over all
items, and each item is built into its own shards. Every step leaves a file that appears whole or not at all, so a run that was killed
goes on where it stopped, and ends with the same bytes whoever did the work.

    OUT/.prep/plan.json        what this folder is for: config, files and sizes; another one is refused
    OUT/.prep/scan-00000.npy   hashes of an item's documents
    OUT/.prep/item-00000.json  record of a finished item
    OUT/train-00000.tar …      its shards
    OUT/manifest.json          written last
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from remask.data_prep import item, manifest
from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Piece, Source, plan, sample
from remask.data_prep.duplicates import mark_duplicates
from remask.data_prep.engines import choose_engine
from remask.data_prep.errors import InputError
from remask.data_prep.files import locked, written_whole
from remask.data_prep.item import Job
from remask.data_prep.manifest import Manifest
from remask.data_prep.pack import PackConfig
from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.tokenizer import load as load_tokenizer
from remask.data_prep.workers import Workers

log = logging.getLogger(__name__)

Report = Callable[[str, int, int, int], None]
"""(stage, bytes of the corpus done, bytes in all, tokens made by this run)"""

_RECORD_KEYS = {"shards", "duplicates", "documents", "examples", "lengths"}

# About 400 KB: Hugging Face's tokenizers, the reference, take a fifth of a second for them.
_SAMPLE_BYTES, _SAMPLE_DOCUMENTS, _SAMPLE_CHARACTERS = 4 << 20, 200, 2000


@dataclass(frozen=True, kw_only=True)
class PrepConfig:
    """What the shards are made from, and how."""

    sources: tuple[Source, ...]
    tokenizer: Path
    pack: PackConfig = field(default_factory=PackConfig)
    clean: CleanConfig = field(default_factory=CleanConfig)
    chinese_words: tuple[str, ...] | None = None
    """None: in Chinese each ideograph is a word; else rjieba cuts words, with these added to its dictionary."""
    block_rows: int = 512
    """Rows of one tar sample: fewer shuffle better, more read faster; from 256 on there is no difference in speed."""
    shard_mb: int = 512
    """MB of stored text that become one shard; a small corpus is cut finer, so that all cores have work."""

    def __post_init__(self) -> None:
        for name in ("block_rows", "shard_mb"):
            if not 1 <= (value := getattr(self, name)) <= 10**6:
                raise ValueError(f"{name}: {value} was given, it must be from 1 to 1000000")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run made, and what it could not."""

    manifest: Manifest | None
    """None if an item failed: then there is no set yet."""
    failures: dict[int, str]
    """Item -> why it failed, with its files."""
    built: int
    """Items built by this run; the others were there."""


def prepare(config: PrepConfig, out: Path, workers: Workers, report: Report, strict: bool = False) -> Outcome:
    """Make the set in `out`, or what is missing of it; `strict` stops at the first document that cannot be read."""
    vocabulary = load_tokenizer(config.tokenizer)
    vocabulary.specials  # noqa: B018 (a missing one is told before any work)
    items = _items(config)
    with locked(out):
        jobs = _jobs(config, vocabulary, items, out, strict)
        failures: dict[int, str] = {}
        missing: list[Job] = []
        if not (out / manifest.NAME).exists() or not all(_is_built(job) for job in jobs):
            sizes = [sum(piece.stored_bytes for piece in job.pieces) for job in jobs]
            failures = _run(workers, _scan_and_save, [(job,) for job in jobs if _scan_of(job) is None], "scan", sizes, report)
            scanned = [job for job in jobs if job.index not in failures]
            marks = dict(zip((job.index for job in scanned), _duplicates(scanned, config.clean), strict=True))
            missing = [job for job in scanned if not _is_built(job, marks[job.index])]
            if missing:
                engine = proven_engine(vocabulary, scanned)
                tasks = [(dataclasses.replace(job, engine=engine), marks[job.index]) for job in missing]
                failures |= _run(workers, _build_and_save, tasks, "build", sizes, report)
        made = None if failures else _compose(config, vocabulary, jobs)
        if made is not None:
            if strict:
                _refuse_problems(made)
            manifest.write(made, out)
    return Outcome(manifest=made, failures=failures, built=len(missing) - len(failures.keys() & {job.index for job in missing}))


def _items(config: PrepConfig) -> list[tuple[Piece, ...]]:
    """The work list, from names and sizes alone."""
    total = sum(piece.stored_bytes for pieces in plan(config.sources, 1 << 62) for piece in pieces)
    if not total:
        raise InputError(f"the corpus is empty: all files of {', '.join(source.name for source in config.sources)} have no bytes")
    return plan(config.sources, item_bytes(total, config.shard_mb))


def item_bytes(corpus_bytes: int, shard_mb: int) -> int:
    """Stored bytes of one item: the shard's, or less so that a small corpus has at least 32 items of at least 2 MB."""
    return min(shard_mb * 10**6, max(2 * 10**6, corpus_bytes // 32))


def _jobs(config: PrepConfig, vocabulary: Vocabulary, items: list[tuple[Piece, ...]], out: Path, strict: bool) -> list[Job]:
    """The jobs of a folder that is for this work list; the folder remembers its own and refuses another."""
    described = {**_settings(config, vocabulary), "items": [list(map(dataclasses.asdict, pieces)) for pieces in items]}
    file = out / ".prep" / "plan.json"
    file.parent.mkdir(exist_ok=True)
    before = _read_json(file)
    if before is None and file.exists():
        raise InputError(f"{file}: damaged, so that nobody knows what the folder was made for; remove {out} and run again")
    if before is not None and before != described:
        raise InputError(f"{out}: made with {_difference(before, described)}; give the same options and corpus, or another folder")
    tokenizer = out / "tokenizer.json"
    if not tokenizer.exists() or tokenizer.read_text(encoding="utf-8") != vocabulary.text:
        with written_whole(tokenizer) as stream:
            stream.write(vocabulary.text.encode())
    if before is None:
        manifest.save(file, described)
    shared = shared_job(config, vocabulary, tokenizer, out, strict)
    return [dataclasses.replace(shared, index=index, pieces=pieces) for index, pieces in enumerate(items)]


def _read_json(file: Path) -> dict[str, Any] | None:
    """A mapping from a file of ours; None if it is not there or not whole, and then it is made again."""
    try:
        value = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def shared_job(config: PrepConfig, vocabulary: Vocabulary, tokenizer: Path, out: Path, strict: bool) -> Job:
    """What all jobs of a run have in common; each adds its index and pieces, and the engine once it is proven."""
    return Job(
        index=0,
        pieces=(),
        clean=config.clean,
        pack=config.pack,
        block_rows=config.block_rows,
        tokenizer=tokenizer,
        tokenizer_hash=vocabulary.digest,
        engine="",
        chinese_words=config.chinese_words,
        out=out,
        strict=strict,
    )


def _settings(config: PrepConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """The config as JSON reads it back; the tokenizer by its content, wherever it lies."""
    settings: dict[str, Any] = orjson.loads(orjson.dumps({**dataclasses.asdict(config), "tokenizer": vocabulary.digest}))
    return settings


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The first thing that is not the same, in words."""
    for name in now:
        if before.get(name) != now[name]:
            if name == "items":
                return "other files in the corpus, or files of other sizes"
            if isinstance(now[name], dict) and isinstance(before.get(name), dict):
                inner = next(key for key in now[name] if before[name].get(key) != now[name][key])
                return f"{name}.{inner} {before[name].get(inner)!r}, now it is {now[name][inner]!r}"
            return f"{name} {before.get(name)!r}, now it is {now[name]!r}"
    return "another version of remask"


def _scan_file(job: Job) -> Path:
    return job.out / ".prep" / f"scan-{job.index:05d}.npy"


def _record_file(job: Job) -> Path:
    return job.out / ".prep" / f"item-{job.index:05d}.json"


def _is_built(job: Job, duplicate: NDArray[np.uint8] | None = None) -> bool:
    """Whether the item's record and shards are there, the shards with the sizes that the record says, without these duplicates.

    What is a duplicate can change for an item that is built: when one before it could not be read at first.
    """
    record = _read_json(_record_file(job))
    if record is None or not record.keys() >= _RECORD_KEYS:
        return False
    files = [(job.out / shard["name"], shard["bytes"]) for shard in record["shards"].values() if shard]
    same = duplicate is None or record["duplicates"] == item.digest_of(duplicate)
    return same and all(file.exists() and file.stat().st_size == size for file, size in files)


def _scan_of(job: Job) -> NDArray[np.uint64] | None:
    """The item's scan, mapped from its file; None if it is not there or not whole."""
    try:
        scan: NDArray[np.uint64] = np.load(_scan_file(job), mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return scan


def _scan_and_save(job: Job) -> int:
    with written_whole(_scan_file(job)) as stream:
        np.save(stream, item.scan(job))
    return 0


def _build_and_save(job: Job, duplicate: NDArray[np.uint8]) -> int:
    record = item.build(job, duplicate)
    manifest.save(_record_file(job), record)
    return sum(counts.get("tokens", 0) for counts in record["documents"].values())


def _duplicates(jobs: list[Job], config: CleanConfig) -> list[NDArray[np.uint8]]:
    scans = [scan for job in jobs if (scan := _scan_of(job)) is not None]
    if config.exact_duplicates == "keep":
        return [np.zeros(len(scan), dtype=np.uint8) for scan in scans]
    return mark_duplicates(scans)


def proven_engine(vocabulary: Vocabulary, jobs: list[Job]) -> str:
    """The fastest engine that encodes a sample of this very corpus as Hugging Face's tokenizers do."""
    counts = item.Counts()
    spread = sample([job.pieces for job in jobs], _SAMPLE_BYTES)
    pieces = chain(spread, (piece for job in jobs for piece in job.pieces))  # all of it, where the sample holds no good document
    documents = item.cleaned_documents(pieces, jobs[0].clean, counts)
    texts = [data.decode()[:_SAMPLE_CHARACTERS] for _, data in islice(documents, _SAMPLE_DOCUMENTS)]
    if not texts:
        reasons = "; ".join(f"{reason}, first at {places[0]}" for reason, places in counts.examples.items())
        raise InputError(f"no document of the corpus can be used: {reasons}")
    engine = choose_engine(vocabulary.text, texts)
    log.info("tokenizer engine: %s", engine)
    return engine.package


def _refuse_problems(made: Manifest) -> None:
    """For a strict run over items that an earlier one built without being strict."""
    problems = {reason: count for counts in made.documents.values() for reason, count in counts.items() if reason not in item.NO_PROBLEM}
    if problems:
        told = ", ".join(f"{count} x {reason}" for reason, count in problems.items())
        raise InputError(f"the corpus has documents that cannot be used ({told}), and --strict does not allow them")


def _run(
    workers: Workers, work: Callable[..., int], tasks: list[tuple[Any, ...]], stage: str, sizes: list[int], report: Report
) -> dict[int, str]:
    """Do the tasks, each starting with its job; what failed for good is returned with its files."""
    done = total = sum(sizes)
    done -= sum(sizes[task[0].index] for task in tasks)
    failures = {}
    tokens = 0
    report(stage, done, total, tokens)
    for task, made, error in workers.run(work, tasks):
        job: Job = task[0]
        if isinstance(error, InputError) and job.strict:
            raise error
        if error:
            files = ", ".join(sorted({piece.file for piece in job.pieces}))
            failures[job.index] = str(error) if isinstance(error, InputError) else f"{files}: {type(error).__name__}: {error}"
            log.error("item %d failed: %s", job.index, failures[job.index])
        done += sizes[job.index]
        tokens += made or 0
        report(stage, done, total, tokens)
    return failures


def _compose(config: PrepConfig, vocabulary: Vocabulary, jobs: list[Job]) -> Manifest:
    records = [orjson.loads(_record_file(job).read_bytes()) for job in jobs]
    documents: dict[str, Counter[str]] = {}
    for record in records:
        for source, counts in record["documents"].items():
            documents.setdefault(source, Counter()).update(counts)
    shards = {
        split: tuple(manifest.shard_of(record["shards"][split]) for record in records if record["shards"][split])
        for split in ("train", "validation")
    }
    return Manifest(
        schema=manifest.SCHEMA,
        config=_settings(config, vocabulary),
        tokenizer_hash=vocabulary.digest,
        vocab_size=len(vocabulary.pieces),
        specials=vocabulary.specials,
        documents={source: dict(sorted(counts.items())) for source, counts in documents.items()},
        **shards,
    )
