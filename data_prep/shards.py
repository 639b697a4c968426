"""Shards: tars of blocks, each block many rows in a few .npy members, and the record of where everything lies.

Plain `webdataset` and `tarfile` read them. A sample `000017` of a shard has the members

    000017.ids.npy         token ids of all its rows, end to end (uint16, or uint32 for vocabularies over 65,536)
    000017.rows.npy        uint32: where each row begins in them, and the end
    000017.splits.npy      uint32: for each row where its second part begins, counted from the row's start; 0 for none
    000017.sentences.npy   uint32: one past each sentence's last token
    000017.documents.npy   uint32: one past each document's last token
    000017.words.npy       uint8, packed bits: 1 where a token begins a word
    000017.phrases.npy     uint32, three a phrase: first token, one past the last, level (1 phrase, 2 entity); only if it was asked for

The same rows always give the same bytes: headers carry no time, owner or machine.
"""

import io
import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Block:
    """Where one sample lies in its shard."""

    rows: int
    tokens: int
    offset: int
    """First byte of its first header."""
    bytes: int
    """To the end of its last member's padding."""
    hash: str
    """xxh3 of these bytes."""
    members: dict[str, tuple[int, int]]
    """Channel -> first byte and size of its .npy data."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What the manifest says of one tar."""

    name: str
    rows: int
    tokens: int
    bytes: int
    hash: str
    """xxh3 of the whole file."""
    blocks: tuple[Block, ...]


@dataclass
class ShardWriter:
    """Writes one shard under a temporary name; `close` syncs it, renames it and returns its record."""

    path: Path
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        self._file: BinaryIO = self._partial.open("wb")
        self._hash = xxhash.xxh3_128()
        self._size = 0

    def write(self, channels: dict[str, NDArray[Any]]) -> None:
        """One block; its rows and tokens are counted from the channels `rows` and `ids`."""
        key = f"{len(self.blocks):06d}"
        begin, buffer, members = self._size, io.BytesIO(), {}
        for channel, array in channels.items():
            data = npy(array)
            buffer.write(_header(f"{key}.{channel}.npy", len(data)))
            members[channel] = (begin + buffer.tell(), len(data))
            buffer.write(data)
            buffer.write(b"\0" * (-len(data) % tarfile.BLOCKSIZE))
        block = buffer.getvalue()
        self._append(block)
        self.blocks.append(
            Block(
                rows=len(channels["rows"]) - 1,
                tokens=len(channels["ids"]),
                offset=begin,
                bytes=len(block),
                hash=xxhash.xxh3_64_hexdigest(block),
                members=members,
            )
        )

    def close(self) -> Shard:
        self._append(b"\0" * (2 * tarfile.BLOCKSIZE))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self.path)
        return Shard(
            name=self.path.name,
            rows=sum(block.rows for block in self.blocks),
            tokens=sum(block.tokens for block in self.blocks),
            bytes=self._size,
            hash=self._hash.hexdigest(),
            blocks=tuple(self.blocks),
        )

    def abandon(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._size += len(data)


def npy(array: NDArray[Any]) -> bytes:
    """An array in NumPy's file format."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)
