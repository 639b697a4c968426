"""One work item of the offline stage, start to end: a pure function of its pieces of the corpus and the config."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from remask.data_prep.chinese import load_segmenter
from remask.data_prep.clean import TOO_SHORT, CleanConfig, clean, is_held_out
from remask.data_prep.corpus import Piece
from remask.data_prep.duplicates import DUPLICATES
from remask.data_prep.encode import EncodeDocuments, document_encoder
from remask.data_prep.engines import load_engine
from remask.data_prep.errors import InputError
from remask.data_prep.minhash import band_keys, bands_for
from remask.data_prep.pack import PackConfig
from remask.data_prep.readers import line_number, read
from remask.data_prep.shards import Shard, ShardWriter
from remask.data_prep.stream import RowStream
from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.tokenizer import load as load_tokenizer

_BATCH_BYTES = 4 << 20
_EXAMPLES = 3

# What a count can be called that is no fault of the corpus.
NO_PROBLEM = {"kept", "text_bytes", "tokens", TOO_SHORT, *DUPLICATES.values()}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker needs to know to scan or to build one item."""

    index: int
    pieces: tuple[Piece, ...]
    clean: CleanConfig
    pack: PackConfig
    block_rows: int
    tokenizer: Path
    tokenizer_hash: str
    engine: str
    chinese_words: tuple[str, ...] | None
    """None: each ideograph is a word; else rjieba cuts words, with these added."""
    out: Path
    strict: bool
    """Stop at the first document that cannot be read, instead of counting it."""


@dataclass(kw_only=True)
class Counts:
    """What was met in an item, by source."""

    documents: dict[str, Counter[str]] = field(default_factory=dict)
    """Source -> kept, text_bytes, and dropped documents by reason."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> the first places where it was met."""

    def of(self, source: str) -> Counter[str]:
        return self.documents.setdefault(source, Counter())


def load_tools(job: Job) -> tuple[Vocabulary, EncodeDocuments]:
    """The tokenizer and the way to encode with it, loaded once a process."""
    return _load_tools(job.tokenizer, job.tokenizer_hash, job.engine, job.chinese_words)


@lru_cache(maxsize=1)
def _load_tools(tokenizer: Path, digest: str, engine: str, chinese_words: tuple[str, ...] | None) -> tuple[Vocabulary, EncodeDocuments]:
    vocabulary = load_tokenizer(tokenizer)
    if vocabulary.digest != digest:  # it also tells one tokenizer from another at the same place
        raise InputError(f"{tokenizer}: changed while the run is under way; put it back and run again")
    segmenter = None if chinese_words is None else load_segmenter(chinese_words)
    return vocabulary, document_encoder(vocabulary, load_engine(engine, vocabulary.text), segmenter)


def cleaned_documents(
    pieces: Iterable[Piece], config: CleanConfig, counts: Counts | None = None, strict: bool = False
) -> Iterator[tuple[str, bytes]]:
    """(source, cleaned text) of every document that cleaning keeps; the others are counted by reason, or with `strict` stop the run."""
    counts = Counts() if counts is None else counts
    for piece in pieces:
        counted = counts.of(piece.source)
        for document in read(piece):
            data, reason = (b"", document.problem) if document.problem else clean(document.text, config)
            if reason:
                counted[reason] += 1
                examples = counts.examples.setdefault(reason, [])
                if len(examples) < _EXAMPLES:
                    examples.append(f"{piece.file}, line {line_number(piece, document.position)}")
                if strict and reason != TOO_SHORT:
                    raise InputError(f"{examples[0]}: {reason}, and --strict stops at it")
            else:
                yield piece.source, data


def scan(job: Job) -> NDArray[np.uint64]:
    """What duplicates are found by: a row for each document that cleaning keeps, with its hash and, for near ones, its bands' keys."""
    similarity = job.clean.near_duplicates
    width = 1 if similarity is None else 1 + bands_for(similarity)[0]
    rows = []
    for _, data in cleaned_documents(job.pieces, job.clean, strict=job.strict):
        row = np.empty(width, dtype=np.uint64)
        row[0] = xxhash.xxh3_64_intdigest(data)
        if similarity is not None:
            row[1:] = band_keys(data, similarity)
        rows.append(row)
    return np.stack(rows) if rows else np.empty((0, width), dtype=np.uint64)


def build(job: Job, duplicate: NDArray[np.uint8]) -> dict[str, Any]:
    """Write the item's shards, and return the record of what is in them as plain values."""
    counts = Counts()
    splits = {name: _Split(name, job) for name in ("train", "validation")}
    try:
        for number, (source, data) in enumerate(cleaned_documents(job.pieces, job.clean, counts, job.strict)):
            if duplicate[number]:
                counts.of(source)[DUPLICATES[duplicate[number]]] += 1
                continue
            held_out = is_held_out(xxhash.xxh3_64_intdigest(data), job.clean.validation_share)
            splits["validation" if held_out else "train"].add(source, data, counts)
        shards = {name: split.close(counts) for name, split in splits.items()}
    except BaseException:
        for split in splits.values():
            split.abandon()
        raise
    return {
        "index": job.index,
        "duplicates": digest_of(duplicate),
        "documents": {source: dict(sorted(counter.items())) for source, counter in counts.documents.items()},
        "examples": counts.examples,
        "lengths": {name: split.lengths for name, split in splits.items()},
        "shards": {name: shard and dataclasses.asdict(shard) for name, shard in shards.items()},
    }


def digest_of(duplicate: NDArray[np.uint8]) -> str:
    """Which documents were left out as duplicates, in short."""
    return xxhash.xxh3_64_hexdigest(duplicate.tobytes())


class _Split:
    """The documents of an item that go into one shard; the file is made when the first one comes."""

    def __init__(self, name: str, job: Job) -> None:
        self.job, self.path = job, job.out / f"{name}-{job.index:05d}.tar"
        self.stream: RowStream | None = None
        self.batch: list[bytes] = []
        self.batch_bytes = 0
        self.source = ""

    @property
    def lengths(self) -> dict[int, int]:
        """Row length -> rows."""
        return {} if self.stream is None else {int(n): int(self.stream.lengths[n]) for n in np.flatnonzero(self.stream.lengths)}

    def add(self, source: str, data: bytes, counts: Counts) -> None:
        if source != self.source or self.batch_bytes >= _BATCH_BYTES:
            self._flush(counts)
            self.source = source
        self.batch.append(data)
        self.batch_bytes += len(data)

    def close(self, counts: Counts) -> Shard | None:
        self._flush(counts)
        if self.stream is None:
            self.path.unlink(missing_ok=True)  # of an earlier run that found documents here which are duplicates now
            return None
        self.stream.close()
        return self.stream.writer.close()

    def abandon(self) -> None:
        if self.stream is not None:
            self.stream.writer.abandon()

    def _flush(self, counts: Counts) -> None:
        if not self.batch:
            return
        vocabulary, encode = load_tools(self.job)
        if self.stream is None:
            separator = vocabulary.specials["sep"]
            self.stream = RowStream(ShardWriter(self.path), self.job.pack, self.job.block_rows, separator, vocabulary.id_dtype)
        encoded = encode(self.batch)
        self.stream.add(encoded)
        counts.of(self.source).update(kept=len(self.batch), text_bytes=self.batch_bytes, tokens=len(encoded.ids))
        self.batch, self.batch_bytes = [], 0
