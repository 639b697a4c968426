"""Raw text as documents, in constant memory: plain text, JSONL, Parquet, folders and globs, cut into work items by byte range.

A work item is a list of pieces, and a piece is a stretch of one file. Which documents a piece holds depends on the file alone, so the
result never depends on who reads it. A document belongs to the piece in which its first byte lies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from remask.data_prep import storage
from remask.data_prep.errors import InputError

Format = Literal["text", "file", "jsonl", "parquet"]
AskedFormat = Literal["auto", "text", "file", "jsonl", "parquet"]

SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
COMPRESSED = (".gz", ".zst")
_MB = 10**6


@dataclass(frozen=True, kw_only=True)
class Source:
    """Files that belong together: their tokens are counted under one name."""

    name: str
    paths: tuple[str, ...]
    """Files, folders (searched for known endings), globs, and URLs of these that fsspec knows."""
    format: AskedFormat = "auto"
    """text: a blank line between documents; file: a file a document; auto: by the ending (.txt, .jsonl, .parquet, and .gz or .zst)."""
    field: str = "text"
    """The JSON field or Parquet column that holds the text."""
    limit_mb: float | None = None
    """Use only the first so many MB of this source, as its files are stored, in the order of their names."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("paths: none was given; name files, folders or globs")
        if self.limit_mb is not None and not self.limit_mb > 0:
            raise ValueError(f"limit_mb: {self.limit_mb} was given, it must be more than 0, or null for all")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Bytes `start` to `end` of a file as it is stored."""

    source: str
    file: str
    format: Format
    field: str
    start: int
    end: int

    @property
    def stored_bytes(self) -> int:
        return self.end - self.start

    @property
    def compressed(self) -> bool:
        return self.file.endswith(COMPRESSED)


def plan(sources: tuple[Source, ...], item_bytes: int) -> list[tuple[Piece, ...]]:
    """The corpus as work items of about `item_bytes` each, in an order that depends on names and sizes alone."""
    items: list[tuple[Piece, ...]] = []
    gathered: list[Piece] = []
    for piece in (piece for source in sources for piece in _pieces(source, item_bytes)):
        gathered.append(piece)
        if sum(piece.stored_bytes for piece in gathered) >= item_bytes:
            items.append(tuple(gathered))
            gathered = []
    return [*items, tuple(gathered)] if gathered else items


def sample(items: list[tuple[Piece, ...]], wanted_bytes: int) -> list[Piece]:
    """Whole items, spread evenly over the corpus, of about the wanted size together."""
    total = sum(piece.stored_bytes for item in items for piece in item)
    if not items:
        return []
    count = max(1, min(len(items), len(items) * wanted_bytes // max(total, 1)))
    return [piece for i in range(count) for piece in items[i * len(items) // count]]


def _pieces(source: Source, piece_bytes: int) -> Iterator[Piece]:
    left = None if source.limit_mb is None else int(source.limit_mb * _MB)
    for file, stored, kind in find_files(source):
        size = stored if left is None else min(stored, left)
        left = None if left is None else left - size
        # A compressed file cannot be entered in the middle; a Parquet file is cut by its row groups' first bytes.
        step = size if kind == "file" or file.endswith(COMPRESSED) else piece_bytes
        for start in range(0, size, max(step, 1)):
            end = min(start + step, size)
            yield Piece(source=source.name, file=file, format=kind, field=source.field, start=start, end=end)


def find_files(source: Source) -> list[tuple[str, int, Format]]:
    """Every file of a source with its size and format, in the order of their names."""
    found: dict[str, tuple[int, Format]] = {}
    for path in source.paths:
        matches = storage.find(path) if path else []
        if not matches:
            raise InputError(f"{source.name}: {path} does not exist and matches nothing; give files, folders or a glob in quotes")
        for file, size, searched in matches:
            if not file.isprintable() and any("\ud800" <= character <= "\udfff" for character in file):
                raise InputError(f"{source.name}: {file.encode(errors='surrogateescape')!r} has a name that is not UTF-8; rename the file")
            if not searched or _suffix(file) in SUFFIXES:
                found[file] = (size, _format_of(file, source))
    if not found:
        raise InputError(
            f"{source.name}: no file in {', '.join(source.paths)}; known endings are {', '.join(SUFFIXES)}, also with .gz or .zst"
        )
    return [(file, *found[file]) for file in sorted(found)]


def _format_of(file: str, source: Source) -> Format:
    if source.format != "auto":
        return source.format
    if _suffix(file) not in SUFFIXES:
        raise InputError(f"{source.name}: {file} has no known ending ({', '.join(SUFFIXES)}, also with .gz or .zst); set the format")
    return SUFFIXES[_suffix(file)]


def _suffix(file: str) -> str:
    path = Path(file)
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix
