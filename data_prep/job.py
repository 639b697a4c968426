"""What a worker needs to know to do one item, and the files that tell how far an item is."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import xxhash

from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Piece
from remask.data_prep.encode import EncodeDocuments, document_encoder
from remask.data_prep.engines import load_engine
from remask.data_prep.errors import InputError
from remask.data_prep.marks import MarkConfig
from remask.data_prep.pack import PackConfig
from remask.data_prep.tokenizer import Vocabulary

STATE = ".prep"
TOKENIZER = "tokenizer.json"
MARKS = f"{STATE}/marks.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One item; the tokenizer and the marks lie in `out`, where all workers find them, and are known by their hashes."""

    index: int
    pieces: tuple[Piece, ...]
    clean: CleanConfig
    pack: PackConfig
    block_rows: int
    separator: int
    """The id that full-sentences puts behind each document."""
    has_phrases: bool
    tokenizer_hash: str
    marks_hash: str
    engine: str
    out: Path
    strict: bool
    """Stop at the first document that cannot be read, instead of counting it."""

    @property
    def tokens_file(self) -> Path:
        """The item's tokens, until it is packed."""
        return self.out / STATE / f"tokens-{self.index:05d}.spool"

    @property
    def counts_file(self) -> Path:
        """What was met while reading."""
        return self.out / STATE / f"counts-{self.index:05d}.json"

    @property
    def keys_file(self) -> Path:
        """What duplicates are found by; written last, when the item is encoded."""
        return self.out / STATE / f"keys-{self.index:05d}.npy"

    @property
    def record_file(self) -> Path:
        """What the item's shards hold; written when they are there."""
        return self.out / STATE / f"item-{self.index:05d}.json"


def load_tools(job: Job) -> tuple[Vocabulary, EncodeDocuments]:
    """The tokenizer and the way to encode with it, made once a process."""
    contents = []
    for file, expected in ((TOKENIZER, job.tokenizer_hash), (MARKS, job.marks_hash)):
        content = (job.out / file).read_bytes()
        if digest_of(content) != expected:
            raise InputError(f"{job.out / file}: changed while the run is under way; run again")
        contents.append(content)
    return _make_tools(*contents, job.engine)


@lru_cache(maxsize=1)
def _make_tools(tokenizer: bytes, marks: bytes, engine: str) -> tuple[Vocabulary, EncodeDocuments]:
    vocabulary = Vocabulary(text=tokenizer.decode())
    settings: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in orjson.loads(marks).items()}
    return vocabulary, document_encoder(vocabulary, load_engine(engine, vocabulary.text), MarkConfig(**settings))


def digest_of(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)
