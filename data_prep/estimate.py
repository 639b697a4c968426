"""What a corpus would cost, from a sample of it: core-hours, disk and tokens, by arithmetic on what the sample took."""

import dataclasses
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from remask.data_prep import item, prep
from remask.data_prep.corpus import plan, sample
from remask.data_prep.errors import InputError
from remask.data_prep.job import STATE, load_tools
from remask.data_prep.prep import PrepConfig
from remask.data_prep.proof import proven_engine
from remask.data_prep.tokenizer import load as load_tokenizer

_PIECE_BYTES, _LEAST_BYTES = 250_000, 4 * 10**6


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Figures for the whole corpus; `sample_mb` of `corpus_mb` stored MB were really processed, on one core."""

    corpus_mb: float
    sample_mb: float
    core_hours: float
    shards_gb: float
    tokens: int
    rows: int

    def __str__(self) -> str:
        return (
            f"{self.corpus_mb:,.0f} MB of corpus, judged by {self.sample_mb:,.1f} MB of it: "
            f"{self.core_hours:,.3f} core-hours on cores like this one, {self.shards_gb:,.3f} GB of shards, "
            f"{self.tokens:,} tokens in {self.rows:,} rows (duplicates are not looked for)"
        )


def estimate(config: PrepConfig, share: float, corpus_gb: float | None = None) -> Estimate:
    """Encode and pack a share of the corpus into a folder that is thrown away; figures for all of it, or for a corpus of that size."""
    if corpus_gb is not None and not corpus_gb > 0:
        raise InputError(f"--estimate-gb: {corpus_gb} was given, it must be more than 0")
    items = plan(config.sources, _PIECE_BYTES)
    corpus_bytes = sum(piece.stored_bytes for pieces in items for piece in pieces)
    if not corpus_bytes:
        raise InputError("the corpus is empty: its files have no bytes")
    pieces = tuple(sample(items, max(int(corpus_bytes * share), _LEAST_BYTES)))
    sample_bytes = sum(piece.stored_bytes for piece in pieces)
    vocabulary = load_tokenizer(config.tokenizer)
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / STATE).mkdir()
        job = dataclasses.replace(prep.shared_job(config, vocabulary, Path(name), strict=False), pieces=pieces)
        job = dataclasses.replace(job, engine=proven_engine(vocabulary, [job]))
        load_tools(job)
        start = time.process_time()
        item.encode(job)
        item.pack(job, np.zeros(len(np.load(job.keys_file)), dtype=np.uint8))
        seconds = time.process_time() - start
        shards = [shard for shard in orjson.loads(job.record_file.read_bytes())["shards"].values() if shard]
    corpus_bytes = corpus_bytes if corpus_gb is None else int(corpus_gb * 1e9)
    factor = corpus_bytes / max(sample_bytes, 1)
    return Estimate(
        corpus_mb=corpus_bytes / 1e6,
        sample_mb=sample_bytes / 1e6,
        core_hours=seconds * factor / 3600,
        shards_gb=sum(shard["bytes"] for shard in shards) * factor / 1e9,
        tokens=int(sum(shard["tokens"] for shard in shards) * factor),
        rows=int(sum(shard["rows"] for shard in shards) * factor),
    )
