"""Input files, on this machine or behind a URL that fsspec knows (`s3://…` with the extra `s3`)."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from remask.data_prep.errors import InputError


def is_url(path: str) -> bool:
    return "://" in path


def find(path: str) -> list[tuple[str, int, bool]]:
    """(path, size, whether a folder was searched for it) of a file, of all files in a folder, or of a glob's matches."""
    if is_url(path):
        return _find_behind_url(path)
    matches = [Path(path)] if Path(path).exists() else [Path(match) for match in glob.glob(path, recursive=True)]  # noqa: PTH207
    found: list[tuple[str, int, bool]] = []
    for match in matches:
        files = _files_in(match) if match.is_dir() else [match]
        found.extend((str(file), file.stat().st_size, match.is_dir()) for file in files)
    return found


def _files_in(folder: Path) -> Iterator[Path]:
    """Also through links to folders, each folder once: a link may lead back up."""
    seen = set()
    for name, inner, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(name)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        yield from (file for file in (Path(name) / file for file in files) if file.is_file())


def open_stored(path: str) -> BinaryIO:
    """The file's bytes as they are stored, with seeking."""
    if is_url(path):
        system, inner = _system_of(path)
        return cast(BinaryIO, system.open(inner, "rb"))
    return Path(path).open("rb")


def changed_at(path: str) -> int | None:
    """When a local file was last written to, in nanoseconds; behind a URL nobody knows."""
    return None if is_url(path) else Path(path).stat().st_mtime_ns


def size_of(path: str) -> int:
    return next(size for _, size, _ in find(path))


def _find_behind_url(url: str) -> list[tuple[str, int, bool]]:
    system, inner = _system_of(url)
    try:
        is_folder = "*" not in inner and system.isdir(inner)
        matches = system.find(inner) if is_folder else system.glob(inner) if "*" in inner else [inner] if system.exists(inner) else []
        return [(system.unstrip_protocol(match), int(system.size(match)), is_folder) for match in matches]
    except Exception as error:  # each file system has errors of its own: access, network, names
        raise InputError(f"{url}: cannot be listed ({type(error).__name__}: {error})") from error


def _system_of(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        system, inner = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InputError(f"{url}: {error}; for s3:// install the extra: pip install 'remask[s3]'") from error
    except ValueError as error:
        raise InputError(f"{url}: {error}") from error
    return system, str(inner)
