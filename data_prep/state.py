"""How far a folder is: which items are encoded, which are packed, and whether their files are still as they were written."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from remask.data_prep.files import hash_of
from remask.data_prep.job import Job, digest_of

log = logging.getLogger(__name__)

_RECORD_KEYS = {"shards", "duplicates", "documents", "examples", "lengths", "times"}


def read_json(file: Path) -> dict[str, Any] | None:
    """A mapping from a file of ours; None if it is not there or not whole, and then it is made again."""
    try:
        value = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def is_built(job: Job, duplicate: NDArray[np.uint8] | None = None) -> bool:
    """Whether the item's record and shards are there, the shards with the sizes that the record says, without these duplicates.

    What is a duplicate can change for an item that is built: when one before it could not be read at first.
    """
    record = _record_of(job)
    if record is None or any(_damages(job, record)):
        return False
    return duplicate is None or record["duplicates"] == digest_of(duplicate.tobytes())


def _record_of(job: Job) -> dict[str, Any] | None:
    """The record of a finished item; None if it is not there or not whole."""
    record = read_json(job.record_file)
    return record if record is not None and record.keys() >= _RECORD_KEYS else None


def _damages(job: Job, record: dict[str, Any]) -> Iterator[str]:
    """One sentence for each shard of the item that is not as it was written; read again only if its time is another."""
    for shard in filter(None, record["shards"].values()):
        file = job.out / shard["name"]
        if not file.exists():
            yield f"{file}: missing"
        elif file.stat().st_size != shard["bytes"]:
            yield f"{file}: {file.stat().st_size} bytes, {shard['bytes']} were written"
        elif file.stat().st_mtime_ns != record["times"].get(shard["name"]) and hash_of(file) != shard["hash"]:
            yield f"{file}: altered since it was written"


def tell_damages(jobs: list[Job]) -> None:
    for job in jobs:
        record = _record_of(job)
        for damage in _damages(job, record) if record else ():
            log.warning("%s; it is made again", damage)


def keys_of(job: Job) -> NDArray[np.uint64] | None:
    """The keys of the item's documents, mapped from their file; None if it is not there or not whole."""
    try:
        keys: NDArray[np.uint64] = np.load(job.keys_file, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return keys


def is_encoded(job: Job) -> bool:
    return keys_of(job) is not None and (job.tokens_file.exists() or is_built(job))
