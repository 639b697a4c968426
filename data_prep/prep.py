"""The offline stage: a corpus becomes a shard set, once.

The corpus is cut into work items by names and sizes alone. Each item is read and encoded, duplicates are marked over all items, and each
item is packed into its own shards. Every step leaves files that appear whole or not at all, so a run that was killed goes on where it
stopped, and ends with the same bytes whoever did the work.

    OUT/tokenizer.json           the tokenizer, as it was given
    OUT/.prep/plan.json          what this folder is for: config, files and sizes; another one is refused
    OUT/.prep/marks.json         lists of words and phrases
    OUT/.prep/tokens-00000.spool the tokens of an item that is not packed yet; they take about as much disk as its shards
    OUT/.prep/counts-00000.json  what was met while it was read
    OUT/.prep/keys-00000.npy     hashes of its documents
    OUT/.prep/item-00000.json    record of a finished item
    OUT/train-00000.tar …        its shards
    OUT/manifest.json            written last
"""

import dataclasses
import errno
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from remask.data_prep import item, manifest, storage
from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Piece, Source, plan
from remask.data_prep.duplicates import mark_duplicates
from remask.data_prep.errors import InputError
from remask.data_prep.files import locked, written_whole
from remask.data_prep.job import MARKS, STATE, TOKENIZER, Job, digest_of
from remask.data_prep.manifest import Manifest
from remask.data_prep.marks import MarkConfig
from remask.data_prep.pack import PackConfig
from remask.data_prep.proof import proven_engine, tell_unknown
from remask.data_prep.state import is_built, is_encoded, keys_of, read_json, tell_damages
from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.tokenizer import load as load_tokenizer
from remask.data_prep.workers import Workers

log = logging.getLogger(__name__)

Report = Callable[[str, int, int, int], None]
"""(stage, bytes of the corpus done, bytes in all, tokens made by this run)"""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


@dataclass(frozen=True, kw_only=True)
class PrepConfig:
    """What the shards are made from, and how."""

    sources: tuple[Source, ...]
    tokenizer: Path
    pack: PackConfig = field(default_factory=PackConfig)
    clean: CleanConfig = field(default_factory=CleanConfig)
    marks: MarkConfig = field(default_factory=MarkConfig)
    block_rows: int = 512
    """Rows of one tar sample: fewer shuffle better, more read faster; from 256 on there is no difference in speed. NSP finds its strangers
    in the same block, so it wants many."""
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
        for partial in [*out.glob(".*.partial"), *(out / STATE).glob(".*.partial")]:
            partial.unlink()  # of a run that was killed
        jobs = _jobs(config, vocabulary, items, out, strict)
        tell_damages(jobs)
        failures: dict[int, str] = {}
        missing: list[Job] = []
        if not (out / manifest.NAME).exists() or not all(is_built(job) for job in jobs):
            engine = proven_engine(vocabulary, jobs)
            tell_unknown(config.marks, vocabulary, engine)
            jobs = [dataclasses.replace(job, engine=engine) for job in jobs]
            sizes = [sum(piece.stored_bytes for piece in job.pieces) for job in jobs]
            failures = _run(workers, item.encode, [(job,) for job in jobs if not is_encoded(job)], "encode", sizes, report)
            encoded = [job for job in jobs if job.index not in failures]
            marks = dict(zip((job.index for job in encoded), _duplicates(encoded, config.clean), strict=True))
            missing = [job for job in encoded if not is_built(job, marks[job.index])]
            failures |= _run(workers, _pack, [(job, marks[job.index]) for job in missing], "pack", sizes, report)
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
    """Stored bytes of one item: the shard's, or less so that a small corpus has 32 items, but not less than a second's work, 8 MB."""
    return min(shard_mb * 10**6, max(8 * 10**6, corpus_bytes // 32))


def _jobs(config: PrepConfig, vocabulary: Vocabulary, items: list[tuple[Piece, ...]], out: Path, strict: bool) -> list[Job]:
    """The jobs of a folder that is for this work list; the folder remembers its own and refuses another."""
    described = {**_settings(config, vocabulary), "items": orjson.loads(orjson.dumps(items))}
    file = out / STATE / "plan.json"
    file.parent.mkdir(exist_ok=True)
    before = read_json(file)
    if before is None and (file.exists() or any(file.parent.glob("*-*"))):
        raise InputError(f"{file}: missing or damaged, so that nobody knows what the folder was made for; remove {out} and run again")
    times = {piece.file: storage.changed_at(piece.file) for pieces in items for piece in pieces}
    if before is not None:
        for name, time in before.pop("times", {}).items():
            if times.get(name, time) != time:
                log.warning("%s: written to since this folder was begun; if its text changed, prepare into another folder", name)
        if before != described:
            raise InputError(f"{out}: made with {_difference(before, described)}; give the same options and corpus, or another folder")
    shared = shared_job(config, vocabulary, out, strict)
    if before is None:
        manifest.save(file, {**described, "times": times})
    return [dataclasses.replace(shared, index=index, pieces=pieces) for index, pieces in enumerate(items)]


def shared_job(config: PrepConfig, vocabulary: Vocabulary, out: Path, strict: bool) -> Job:
    """What all jobs of a run have in common, with its files in place; each adds its index and pieces, and the engine once it is proven."""
    marks = orjson.dumps(config.marks)
    for name, content in ((TOKENIZER, vocabulary.text.encode()), (MARKS, marks)):
        if not (out / name).exists() or (out / name).read_bytes() != content:
            with written_whole(out / name) as stream:
                stream.write(content)
    return Job(
        index=0,
        pieces=(),
        clean=config.clean,
        pack=config.pack,
        block_rows=config.block_rows,
        separator=vocabulary.specials["sep"],
        has_phrases=config.marks.has_phrases,
        tokenizer_hash=vocabulary.digest,
        marks_hash=digest_of(marks),
        engine="",
        out=out,
        strict=strict,
    )


def _settings(config: PrepConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """The config as JSON reads it back; the tokenizer and the lists by their content, wherever they lie."""
    lists = {name: digest_of(orjson.dumps(words)) for name, words in dataclasses.asdict(config.marks).items() if isinstance(words, tuple)}
    marks = {**dataclasses.asdict(config.marks), **lists}
    settings: dict[str, Any] = orjson.loads(orjson.dumps({**dataclasses.asdict(config), "tokenizer": vocabulary.digest, "marks": marks}))
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


def _pack(job: Job, duplicate: NDArray[np.uint8]) -> int:
    try:
        return item.pack(job, duplicate)
    except item.DamageError as error:  # or gone, if the item was packed before
        if job.tokens_file.exists():
            log.warning("%s; it is made again", error)
        item.encode(job)
        return item.pack(job, duplicate)


def _duplicates(jobs: list[Job], config: CleanConfig) -> list[NDArray[np.uint8]]:
    keys = [found for job in jobs if (found := keys_of(job)) is not None]
    if config.exact_duplicates == "keep":
        return [np.zeros(len(found), dtype=np.uint8) for found in keys]
    return mark_duplicates(keys)


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
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise error  # the next item would not fare better
        if error:
            files = ", ".join(sorted({piece.file for piece in job.pieces}))
            told = " ".join(str(error).split())
            failures[job.index] = told if isinstance(error, InputError) else f"{files}: {type(error).__name__}: {told}"
            log.error("item %d failed: %s", job.index, failures[job.index])
        done += sizes[job.index]
        tokens += made or 0
        report(stage, done, total, tokens)
    return failures


def _compose(config: PrepConfig, vocabulary: Vocabulary, jobs: list[Job]) -> Manifest:
    for job in jobs:
        job.tokens_file.unlink(missing_ok=True)  # of a run that was killed right after it had packed them
    records = [orjson.loads(job.record_file.read_bytes()) for job in jobs]
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
