"""One work item of the offline stage: its stretch of the corpus to tokens, and its tokens to shards. Both are pure functions.

The tokens wait on disk in between, because what is a duplicate is known only when every item has been read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from remask.data_prep import spool
from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Piece
from remask.data_prep.duplicates import DUPLICATES
from remask.data_prep.errors import InputError
from remask.data_prep.files import hash_of, written_whole
from remask.data_prep.job import Job, digest_of, load_tools
from remask.data_prep.manifest import save
from remask.data_prep.minhash import band_keys, bands_for
from remask.data_prep.readers import Document, place_of, read
from remask.data_prep.scrub import TOO_SHORT, clean, is_held_out
from remask.data_prep.shards import Shard, ShardWriter
from remask.data_prep.spool import Batch
from remask.data_prep.stream import RowStream

_BATCH_BYTES = 2 << 20
_EXAMPLES = 3

KEPT = ("kept", "text_bytes", "tokens", "phrases", "entities")
"""Counts of what is in the set; all others are of what was dropped."""

# What a count can be called that is no fault of the corpus.
NO_PROBLEM = {*KEPT, TOO_SHORT, *DUPLICATES.values()}


@dataclass(kw_only=True)
class Counts:
    """What was met in an item, by source."""

    documents: dict[str, Counter[str]] = field(default_factory=dict)
    """Source -> kept, text_bytes, tokens, and dropped documents by reason."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> the first places where it was met."""

    def of(self, source: str) -> Counter[str]:
        return self.documents.setdefault(source, Counter())


def cleaned_documents(
    pieces: Iterable[Piece], config: CleanConfig, counts: Counts | None = None, strict: bool = False
) -> Iterator[tuple[str, bytes]]:
    """(source, cleaned text) of every document that cleaning keeps; the others are counted by reason, or with `strict` stop the run."""
    counts = Counts() if counts is None else counts
    for piece in pieces:
        counted = counts.of(piece.source)
        for document in _read(piece):
            data, reason = (b"", document.problem) if document.problem else clean(document.text, config)
            if reason:
                counted[reason] += 1
                examples = counts.examples.setdefault(reason, [])
                if len(examples) < _EXAMPLES:
                    examples.append(place_of(piece, document.position))
                if strict and reason != TOO_SHORT:
                    raise InputError(f"{examples[0]}: {reason}, and --strict stops at it")
            else:
                yield piece.source, data


def _read(piece: Piece) -> Iterator[Document]:
    """The piece's documents; a file that fails is named, for an item may hold many."""
    try:
        yield from read(piece)
    except OSError as error:
        raise InputError(f"{piece.file}: {error.strerror or error}") from error


def encode(job: Job) -> int:
    """Read, clean and tokenise the item, and leave its tokens, counts and keys; how many tokens there are."""
    vocabulary, encode_documents = load_tools(job)
    counts, keys = Counts(), [np.empty((0, _key_width(job.clean)), dtype=np.uint64)]
    tokens = 0
    with written_whole(job.tokens_file) as stream:
        for source, documents in _batches(cleaned_documents(job.pieces, job.clean, counts, job.strict)):
            encoded = encode_documents(documents)
            sizes = np.array([len(document) for document in documents])
            spool.write(stream, Batch(source=source, sizes=sizes, encoded=encoded), vocabulary.id_dtype)
            keys.append(_keys(documents, job.clean))
            tokens += len(encoded.ids)
    save(job.counts_file, {"documents": counts.documents, "examples": counts.examples, "tokens_hash": hash_of(job.tokens_file)})
    with written_whole(job.keys_file) as stream:
        np.save(stream, np.concatenate(keys))
    return tokens


def _batches(documents: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, list[bytes]]]:
    """Documents of one source that follow each other, a few MB at a time."""
    batch: list[bytes] = []
    size, batch_source = 0, ""
    for source, data in documents:
        if batch and (source != batch_source or size >= _BATCH_BYTES):
            yield batch_source, batch
            batch, size = [], 0
        batch.append(data)
        size, batch_source = size + len(data), source
    if batch:
        yield batch_source, batch


def _key_width(config: CleanConfig) -> int:
    return 1 if config.near_duplicates is None else 1 + bands_for(config.near_duplicates)[0]


def _keys(documents: list[bytes], config: CleanConfig) -> NDArray[np.uint64]:
    """What duplicates are found by: a row for each document with its hash and, for near ones, its bands' keys."""
    keys = np.empty((len(documents), _key_width(config)), dtype=np.uint64)
    keys[:, 0] = [xxhash.xxh3_64_intdigest(document) for document in documents]
    if config.near_duplicates is not None:
        for row, document in zip(keys, documents, strict=True):
            row[1:] = band_keys(document, config.near_duplicates)
    return keys


def pack(job: Job, duplicate: NDArray[np.uint8]) -> int:
    """Write the item's shards and their record, without the duplicates, and remove the tokens; how many tokens were packed.

    `DamageError` if what `encode` left is not as it was written.
    """
    counts = _checked_counts(job)
    held_out = is_held_out(np.load(job.keys_file)[:, 0], job.clean.validation_share)
    splits = {"train": _Split("train", job), "validation": _Split("validation", job)}
    done = 0
    try:
        with job.tokens_file.open("rb") as stream:
            for batch in spool.read(stream):
                behind = done + len(batch.sizes)
                for mark, reason in DUPLICATES.items():
                    counts.of(batch.source)[reason] += int(np.count_nonzero(duplicate[done:behind] == mark))
                for name, is_in in (("train", ~held_out[done:behind]), ("validation", held_out[done:behind])):
                    splits[name].add(batch, is_in & (duplicate[done:behind] == 0), counts.of(batch.source))
                done = behind
        shards = {name: split.close() for name, split in splits.items()}
    except BaseException:
        for split in splits.values():
            split.abandon()
        raise
    record = {
        "index": job.index,
        "duplicates": digest_of(duplicate.tobytes()),
        "documents": {
            source: {name: n for name, n in sorted(counter.items()) if n or name in KEPT} for source, counter in counts.documents.items()
        },
        "examples": counts.examples,
        "lengths": {name: split.lengths for name, split in splits.items()},
        "shards": shards,
        "times": {shard.name: (job.out / shard.name).stat().st_mtime_ns for shard in shards.values() if shard},
    }
    save(job.record_file, record)
    job.tokens_file.unlink()
    return sum(counter["tokens"] for counter in counts.documents.values())


class DamageError(RuntimeError):
    """What an earlier step left is not as it was written."""


def _checked_counts(job: Job) -> Counts:
    try:
        met = orjson.loads(job.counts_file.read_bytes())
        whole = met["tokens_hash"] == hash_of(job.tokens_file)
        counts = Counts(documents={source: Counter(found) for source, found in met["documents"].items()}, examples=met["examples"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(f"{job.counts_file}: {error}") from error
    if not whole:
        raise DamageError(f"{job.tokens_file}: altered since it was written")
    return counts


class _Split:
    """The documents of an item that go into one shard; the file is made when the first one comes."""

    def __init__(self, name: str, job: Job) -> None:
        self.job, self.path = job, job.out / f"{name}-{job.index:05d}.tar"
        self.stream: RowStream | None = None

    @property
    def lengths(self) -> dict[int, int]:
        """Row length -> rows."""
        return {} if self.stream is None else {int(n): int(self.stream.lengths[n]) for n in np.flatnonzero(self.stream.lengths)}

    def add(self, batch: Batch, keep: NDArray[np.bool_], counts: Counter[str]) -> None:
        if not keep.any():
            return
        if self.stream is None:
            job = self.job
            writer, id_dtype = ShardWriter(self.path), batch.encoded.ids.dtype
            self.stream = RowStream(writer, job.pack, job.block_rows, job.separator, id_dtype, job.has_phrases)
        tokens = self.stream.add(batch.encoded, keep)
        counts.update(kept=int(np.count_nonzero(keep)), text_bytes=int(batch.sizes[keep].sum()), tokens=tokens)
        if not self.job.has_phrases:
            return
        phrases = batch.encoded.phrases
        levels = phrases[keep[np.searchsorted(batch.encoded.documents, phrases[:, 0], side="right")], 2]
        counts.update(phrases=int(np.count_nonzero(levels == 1)), entities=int(np.count_nonzero(levels == 2)))

    def close(self) -> Shard | None:
        if self.stream is None:
            self.path.unlink(missing_ok=True)  # of an earlier run that found documents here which are duplicates now
            return None
        self.stream.close()
        return self.stream.writer.close()

    def abandon(self) -> None:
        if self.stream is not None:
            self.stream.writer.abandon()
