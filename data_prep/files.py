"""Files that appear whole or not at all, and folders that one run at a time works in."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

from remask.data_prep.errors import InputError


@contextmanager
def written_whole(file: Path, overwrite: bool = True) -> Iterator[BinaryIO]:
    """A stream whose content appears under the file's name, synced, when the block ends well; else nothing is left.

    Without `overwrite` a file that is there stays, and `FileExistsError` is raised.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if overwrite:
            partial.replace(file)
        else:
            os.link(partial, file)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder if need be and be its only run; the lock goes with the process that holds it, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another folder with --out") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"{folder}: another remask is at work in this folder; wait for it, or choose another one with --out") from None
    try:
        yield
    finally:
        os.close(handle)


def hash_of(file: Path) -> str:
    """xxh3 of a whole file."""
    digest = xxhash.xxh3_128()
    with file.open("rb") as stream:
        while data := stream.read(1 << 22):
            digest.update(data)
    return digest.hexdigest()
