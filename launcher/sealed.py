"""Folders that appear whole, with the digests of their files beside them, or not at all."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remask.data_prep.files import hash_of
from remask.launcher.errors import UserError

SEAL = "digests.json"


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when the block ends well, synced; else nothing is left. An existing one stays."""
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists and is not overwritten; choose another name or remove it")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        for file in [path for path in partial.rglob("*") if path.is_file()]:
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        partial.rename(folder)
    except OSError as error:
        if error.filename in (None, str(partial), str(folder.parent)):
            raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another folder") from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def seal(folder: Path) -> None:
    """Write down the digest of every file in the folder."""
    digests = {path.name: hash_of(path) for path in sorted(folder.iterdir()) if path.name != SEAL}
    (folder / SEAL).write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")


def check_seal(folder: Path) -> None:
    """UserError names the first file that is missing or is not what was sealed; read nothing before."""
    try:
        digests = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        names = list(digests.items())
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{folder}: {SEAL} cannot be read ({error}); the folder is not whole") from error
    for name, digest in names:
        try:
            found = hash_of(folder / name)
        except OSError as error:
            raise UserError(f"{folder / name}: cannot be read ({error.strerror}); the folder is not whole") from error
        if found != digest:
            raise UserError(f"{folder / name}: not what was written (its digest differs); use another copy")
