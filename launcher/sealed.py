"""Folders that appear whole, with the digests of their files beside them, or not at all."""

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from remask.data_prep.files import hash_of
from remask.launcher.errors import UserError

SEAL = "digests.json"


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when the block ends well, synced; else nothing is left. An existing one stays."""
    refuse_existing(folder)
    nearest = next(parent for parent in folder.absolute().parents if parent.is_dir())
    partial = nearest / f".{folder.name[:100]}.{os.getpid()}.partial"
    try:
        partial.mkdir()
        yield partial
        for path in [*partial.rglob("*"), partial]:
            sync(path)
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another folder or make room") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def refuse_existing(folder: Path) -> None:
    try:
        exists = folder.exists() or folder.is_symlink()
    except OSError as error:
        raise UserError(f"{str(folder)[:60]}…: is no name for a folder ({error.strerror})") from error
    if exists:
        raise UserError(f"{folder} exists and is not overwritten; choose another name or remove it")


def sync(path: Path) -> None:
    """Wait until a file or a folder's entries are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def seal(folder: Path, known: Mapping[str, str] | None = None) -> None:
    """Write down the digest of every file in the folder; those that are `known` are not read again."""
    known = known or {}
    digests = {path.name: known.get(path.name) or hash_of(path) for path in sorted(folder.iterdir()) if path.name != SEAL}
    if unseen := sorted(set(known) - set(digests)):
        raise UserError(f"{folder / unseen[0]}: was written and cannot be seen from here; all machines must share the folder")
    (folder / SEAL).write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")


def check_seal(folder: Path, files: Collection[str]) -> None:
    """UserError names the first file that is missing or is not what was sealed, these among them; read nothing before."""
    try:
        digests = dict(json.loads((folder / SEAL).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder}: {SEAL} cannot be read ({error}); the folder is not whole") from error
    for name in {**dict.fromkeys(files), **digests}:
        digest = digests.get(name)
        try:
            found = hash_of(folder / name)
        except OSError as error:
            raise UserError(f"{folder / name}: cannot be read ({error.strerror}); the folder is not whole") from error
        if found != digest:
            raise UserError(f"{folder / name}: not what was written (its digest differs); use another copy")
