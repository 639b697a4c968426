"""A piece of a file to documents. What cannot be read is a document with a problem: counted, never a crash and never silence."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import orjson
import zstandard

from remask.data_prep.corpus import Format, Piece
from remask.data_prep.errors import InputError
from remask.data_prep.storage import open_stored, size_of

MAX_DOCUMENT_BYTES = 64 << 20
"""A longer line or document is dropped and counted: it is a file without line ends more often than a text."""

_READ_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Document(NamedTuple):
    """One text, or the problem that stands in its place; `position` is the byte where it starts, counted after decompression; in Parquet
    the row."""

    position: int
    text: str = ""
    problem: str = ""


def read(piece: Piece) -> Iterator[Document]:
    """The documents whose first byte lies in the piece."""
    return _READERS[piece.format](piece)


def place_of(piece: Piece, position: int) -> str:
    """File and line that a document stands on, counted anew: asked only for the few examples in a report."""
    if piece.format == "parquet":
        return f"{piece.file}, row {position + 1}"
    lines = 1
    with _open(piece) as stream:
        try:
            while position > 0 and (data := stream.read(min(position, _READ_BYTES))):
                lines += data.count(b"\n")
                position -= len(data)
        except (EOFError, OSError, zlib.error):
            pass  # the damage itself is what the example is about
    return f"{piece.file}, line {lines}"


def _read_jsonl(piece: Piece) -> Iterator[Document]:
    for position, line, problem in _lines(piece):
        if problem:
            yield Document(position, problem=problem)
        elif position >= piece.end and not piece.compressed:
            return
        elif line.strip():
            yield _parse_json(position, line, piece.field)


def _parse_json(position: int, line: bytes, field: str) -> Document:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return Document(position, problem="broken-json" if _is_utf8(line) else "invalid-utf8")
    if not isinstance(value, dict):
        return Document(position, problem="not-an-object")
    return _of_value(position, value.get(field))


def _of_value(position: int, text: Any) -> Document:
    if isinstance(text, str):
        return Document(position, text)
    return Document(position, problem="no-text" if text is None else "text-not-a-string")


def _read_text(piece: Piece) -> Iterator[Document]:
    """Documents stand between blank lines; one that starts in the piece is read to its end beyond it."""
    gathered: list[bytes] = []
    size = first = 0
    ours = piece.start == 0  # else the lines up to the first blank one belong to the piece before
    for position, line, problem in _lines(piece, from_line_before=True):
        blank = not problem and not line.strip()
        if blank or problem:
            if gathered:
                yield _decode(first, b"".join(gathered), size)
            gathered, size, ours = [], 0, True
            if problem:
                yield Document(position, problem=problem)
            continue
        if not gathered and position >= piece.end and not piece.compressed:
            return
        if ours and position >= piece.start:
            first = first if gathered else position
            size += len(line)
            gathered.append(line if size <= MAX_DOCUMENT_BYTES else b"")
    if gathered:
        yield _decode(first, b"".join(gathered), size)


def _read_file(piece: Piece) -> Iterator[Document]:
    with _open(piece) as stream:
        try:
            data = stream.read(MAX_DOCUMENT_BYTES + 1)
        except (EOFError, OSError, zlib.error) as error:
            yield Document(0, problem="truncated" if isinstance(error, EOFError) else "broken-compression")
            return
    yield _decode(0, data.removeprefix(_BYTE_ORDER_MARK), len(data))


def _read_parquet(piece: Piece) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(open_stored(piece.file))
    except (pyarrow.ArrowInvalid, OSError):
        if piece.start == 0:
            yield Document(0, problem="broken-parquet")
        return
    if piece.field not in file.schema_arrow.names:
        raise InputError(f"{piece.file}: no column {piece.field!r}; it has {', '.join(file.schema_arrow.names)}")
    row = 0
    for group in range(file.num_row_groups):
        column = file.metadata.row_group(group).column(0)
        first_byte = min(offset for offset in (column.data_page_offset, column.dictionary_page_offset) if offset)
        if piece.start <= first_byte < piece.end:
            yield from _read_row_group(file, group, piece.field, row)
        row += file.metadata.row_group(group).num_rows


def _read_row_group(file: Any, group: int, field: str, row: int) -> Iterator[Document]:
    """From its first row's number on; damage ends it."""
    batches = file.iter_batches(batch_size=256, row_groups=[group], columns=[field])
    while True:
        try:
            batch = next(batches, None)
        except OSError:  # pyarrow's own errors among them
            yield Document(row, problem="broken-parquet")
            return
        if batch is None:
            return
        for text in batch.column(0).to_pylist():
            yield _of_value(row, text)
            row += 1


def _decode(position: int, data: bytes, size: int) -> Document:
    if size > MAX_DOCUMENT_BYTES:
        return Document(position, problem="too-long")
    return Document(position, data.decode()) if _is_utf8(data) else Document(position, problem="invalid-utf8")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _lines(piece: Piece, from_line_before: bool = False) -> Iterator[tuple[int, bytes, str]]:
    """(position, line, problem) of each line that starts at or after the piece's start, to the end of the file.

    With `from_line_before` the line that holds the byte before the start comes first, whole, so that one can tell whether it is blank.
    """
    cut_short = piece.compressed and piece.end < size_of(piece.file)  # by a limit: the end of the stream is no damage
    with _open(piece) as stream:
        position = 0
        if piece.start and not piece.compressed:
            position = stream.seek(_line_start(stream, piece.start - 1) if from_line_before else piece.start - 1)
            if not from_line_before:
                position += _skip_line(stream)
        while True:
            try:
                line = stream.readline(MAX_DOCUMENT_BYTES + 1)
                if len(line) > MAX_DOCUMENT_BYTES:
                    if piece.start <= position < piece.end or piece.compressed:
                        yield position, b"", "too-long"
                    position += len(line) + (0 if line.endswith(b"\n") else _skip_line(stream))
                    continue
            except (EOFError, OSError, zlib.error) as error:
                if not cut_short:
                    yield position, b"", "truncated" if isinstance(error, EOFError) else "broken-compression"
                return
            if not line or (cut_short and not line.endswith(b"\n")):
                return
            yield position, line.removeprefix(_BYTE_ORDER_MARK) if position == 0 else line, ""
            position += len(line)


def _skip_line(stream: BinaryIO) -> int:
    """Go behind the next line end, holding little of the line; how many bytes that was."""
    skipped = 0
    while part := stream.readline(_READ_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _line_start(stream: BinaryIO, position: int) -> int:
    """Where the line begins that holds this byte; the byte itself if that is further back than any line that is read."""
    begin = position
    while begin > 0 and position - begin <= MAX_DOCUMENT_BYTES:
        step = min(begin, _READ_BYTES)
        stream.seek(begin - step)
        found = stream.read(step).rfind(b"\n")
        if found >= 0:
            return begin - step + found + 1
        begin -= step
    return begin if begin == 0 else position


def _open(piece: Piece) -> BinaryIO:
    """The file's bytes, decompressed; of a compressed one, what the first `end` stored bytes hold."""
    stored = open_stored(piece.file)
    if piece.file.endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=_Head(stored, piece.end)))
    if piece.file.endswith(".zst"):
        return io.BufferedReader(_Zstandard(_Head(stored, piece.end)), _READ_BYTES)
    return stored


class _Head(io.RawIOBase):
    """The first bytes of a stream."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream, self.left = stream, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.stream.read(min(len(buffer), self.left))
        self.left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.stream.close()
        super().close()


class _Zstandard(io.RawIOBase):
    """Decompresses frame after frame, and unlike the library's own reader tells when the last one is cut off."""

    def __init__(self, stream: _Head) -> None:
        self.stream, self.pending = stream, b""
        self.frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.pending:
            data = self.stream.read(_READ_BYTES)
            if not data:
                if self.frame is not None:
                    raise EOFError("the last frame is cut off")
                return 0
            self.pending = self._decompress(data)
        size = min(len(buffer), len(self.pending))
        buffer[:size], self.pending = self.pending[:size], self.pending[size:]
        return size

    def _decompress(self, data: bytes) -> bytes:
        out = []
        while data:
            self.frame = self.frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                out.append(self.frame.decompress(data))
            except zstandard.ZstdError as error:
                raise OSError(f"not zstandard data ({error})") from error
            data = self.frame.unused_data if self.frame.eof else b""
            self.frame = None if self.frame.eof else self.frame
        return b"".join(out)

    def close(self) -> None:
        self.stream.close()
        super().close()


_READERS: dict[Format, Callable[[Piece], Iterator[Document]]] = {
    "text": _read_text,
    "file": _read_file,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
}
