"""The blocks of a shard set, read from the mapped tars by the manifest's offsets, each checked against its hash when it is first touched.

What the manifest says is not trusted further than it can be checked: names are plain file names inside the set's folder, blocks lie inside
their files, and a member is an array of the type that the format says; nothing is unpickled.
"""

import logging
import mmap
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from remask.data_prep import manifest
from remask.data_prep.errors import InputError
from remask.data_prep.manifest import Manifest
from remask.data_prep.pack import PackConfig
from remask.data_prep.shards import Block, Shard

log = logging.getLogger(__name__)

CHANNELS = ("ids", "rows", "splits", "sentences", "documents", "words", "phrases")
_ADDRESS = {channel: i for i, channel in enumerate(CHANNELS)}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.tar")
_TYPES: dict[str, tuple[str, ...]] = {
    "ids": ("<u2", "<u4"),
    "words": ("|u1",),
    **dict.fromkeys(("rows", "splits", "sentences", "documents", "phrases"), ("<u4",)),
}


class DamageError(InputError):
    """A shard that is missing or not as it was written."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Rows that cannot be read, and why."""

    first_row: int
    rows: int
    why: str

    def __str__(self) -> str:
        return f"{self.why}; rows {self.first_row:,} to {self.first_row + self.rows - 1:,} cannot be read"


class Blocks:
    """The blocks of one split of a set, numbered through its shards."""

    def __init__(self, folder: Path, split: str = "train", skip_damaged: bool = False) -> None:
        self.folder, self.skip_damaged = folder, skip_damaged
        self.manifest: Manifest = manifest.read(folder)
        try:
            self.pack = _checked(self.manifest)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{folder}: its manifest is not one that remask prep wrote ({type(error).__name__}: {error})") from error
        shards: tuple[Shard, ...] = getattr(self.manifest, split)
        self._places = [(shard, block) for shard in shards for block in shard.blocks]
        if not self._places:
            raise InputError(f"{folder}: no rows in {split}; give a set that has some")
        self.rows = np.array([block.rows for _, block in self._places], dtype=np.int64)
        self.first_rows = np.cumsum(self.rows) - self.rows
        self.id_bytes = 2 if self.manifest.vocab_size <= 1 << 16 else 4
        self.addresses = np.zeros((len(self._places), len(CHANNELS)), dtype=np.int64)
        """Of each channel's first value in memory; 0 while the block has not been opened."""
        self.sizes = np.zeros_like(self.addresses)
        """Values in each channel."""
        self.damages: dict[int, Damage] = {}
        """Blocks that are left out."""
        self._maps: dict[str, NDArray[np.uint8]] = {}
        self._lock = threading.Lock()

    def open(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Make these blocks ready to be read; which of them can be.

        What is damaged stops the run, or is left out and kept in `damages`. That depends on the files alone, so all ranks that see the
        same ones decide the same; a machine that fails to read (too many open files, an error of the disk) always stops.
        """
        ready: NDArray[np.bool_] = self.addresses[blocks, 0] != 0
        if ready.all():
            return ready
        for block in np.unique(blocks[~ready]).tolist():
            with self._lock:
                if self.addresses[block, 0] == 0 and block not in self.damages:
                    self._open(block)
        if len(self.damages) == len(self._places):
            raise DamageError(f"{self.folder}: no block can be read, the first because of {self.damages[0].why}")
        opened: NDArray[np.bool_] = self.addresses[blocks, 0] != 0
        return opened

    def has(self, channel: str) -> bool:
        """Whether blocks have an optional channel; all of a set do, or none."""
        return channel in self._places[0][1].members

    def read_all(self) -> Iterator[dict[str, NDArray[np.generic]]]:
        """The arrays of every block in the order of the corpus; what is damaged stops, or is left out."""
        for number, (shard, block) in enumerate(self._places):
            if self.open(np.array([number]))[0]:
                yield {name: _array(self._map(shard), name, place) for name, place in block.members.items()}

    def _open(self, number: int) -> None:
        shard, block = self._places[number]
        try:
            data = self._map(shard)
            why = _wrong_with(data[block.offset : block.offset + block.bytes], shard, block)
            if why:
                raise DamageError(f"{self.folder / shard.name}: {why}")
            arrays = {channel: _array(data, channel, block.members[channel]) for channel in CHANNELS if channel in block.members}
            _check_rows(arrays, block, self.id_bytes, self.manifest.vocab_size, self.pack.row_budget)
        except (DamageError, FileNotFoundError, ValueError, KeyError) as error:
            why = str(error) if isinstance(error, DamageError) else _told(error, self.folder / shard.name)
            damage = Damage(first_row=int(self.first_rows[number]), rows=block.rows, why=why)
            if not self.skip_damaged:
                raise DamageError(f"{damage}; run remask prep again to mend the set, or let the loader leave them out") from error
            log.warning("%s; they are left out", damage)
            self.damages[number] = damage
            return
        for channel, array in arrays.items():
            self.sizes[number, _ADDRESS[channel]] = len(array)
        for channel, array in reversed(arrays.items()):  # ids last: they tell other threads that all is there
            self.addresses[number, _ADDRESS[channel]] = array.ctypes.data

    def _map(self, shard: Shard) -> NDArray[np.uint8]:
        if shard.name not in self._maps:
            if not _PLAIN_NAME.fullmatch(shard.name):
                raise DamageError(f"{self.folder}: its manifest names a shard {shard.name!r}, which is no plain file name")
            with (self.folder / shard.name).open("rb") as file:
                mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
            if len(mapped) != shard.bytes:
                raise DamageError(f"{self.folder / shard.name}: {len(mapped)} bytes, {shard.bytes} were written")
            self._maps[shard.name] = mapped
        return self._maps[shard.name]


def _told(error: Exception, file: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{file}: missing"
    return f"{file}: a block has no member {error}" if isinstance(error, KeyError) else f"{file}: {error}"


def _checked(described: Manifest) -> PackConfig:
    """How the set was packed; an error if the manifest is not what we write."""
    specials = [described.specials[role] for role in ("pad", "unk", "cls", "sep", "mask")]
    if not all(isinstance(i, int) and 0 <= i < described.vocab_size for i in specials):
        raise ValueError(f"special tokens {specials} of {described.vocab_size}")
    for shard in described.shards:
        if not isinstance(shard.name, str) or not all(isinstance(block.rows, int) and block.rows > 0 for block in shard.blocks):
            raise ValueError(f"shard {shard.name!r}")
    pack = PackConfig(**described.config["pack"])
    if pack.row_budget < 1:
        raise ValueError(f"rows of {pack.row_budget} tokens")
    return pack


def _wrong_with(data: NDArray[np.uint8], shard: Shard, block: Block) -> str:
    if block.offset < 0 or len(data) != block.bytes:
        return f"a block at {block.offset} of {block.bytes} bytes is not inside the file of {shard.bytes}"
    if xxhash.xxh3_64_hexdigest(data.data) != block.hash:
        return f"altered since it was written, the hash of the block at {block.offset} differs"
    for name, (offset, size) in block.members.items():
        if not block.offset <= offset <= offset + size <= block.offset + block.bytes:
            return f"the member {name} does not lie in its block"
    return ""


def _array(data: NDArray[np.uint8], channel: str, place: tuple[int, int]) -> NDArray[np.generic]:
    """A member's values where they lie in the mapped file; `ValueError` if it is no plain array of the channel's type."""
    offset, size = place
    member = data[offset : offset + size]
    if bytes(member[:6]) != b"\x93NUMPY" or member[6] != 1:
        raise ValueError(f"the member {channel} is no .npy file of version 1")
    begin = 10 + int(member[8]) + 256 * int(member[9])
    header = bytes(member[10:begin]).decode("latin-1")
    kind = re.match(r"\{'descr': '([^']*)', 'fortran_order': False, 'shape': \((\d*),? ?(\d*)\), \}", header)
    if kind is None or kind[1] not in _TYPES[channel]:
        raise ValueError(f"the member {channel} has the header {header.strip()!r}, not one of {', '.join(_TYPES[channel])}")
    values = member[begin:].view(kind[1])
    if len(values) != int(kind[2] or 1) * int(kind[3] or 1):
        raise ValueError(f"the member {channel} has {len(values)} values, its header says {kind[2]}")
    return values


def _check_rows(arrays: dict[str, NDArray[np.generic]], block: Block, id_bytes: int, vocab_size: int, row_budget: int) -> None:
    """That no id, row, split, word or phrase reaches beyond its bounds: the fast path reads by address."""
    ids: NDArray[Any] = arrays["ids"]
    rows, splits = arrays["rows"].astype(np.int64), arrays["splits"].astype(np.int64)
    whole = (
        ids.dtype.itemsize == id_bytes
        and int(ids.max(initial=0)) < vocab_size
        and len(rows) == block.rows + 1 == len(splits) + 1
        and rows[0] == 0
        and rows[-1] == len(ids) == block.tokens
        and bool(np.all((np.diff(rows) > 0) & (np.diff(rows) <= row_budget)))
        and bool(np.all(splits < np.diff(rows)))
        and len(arrays["words"]) == -(-len(ids) // 8)
    )
    if whole and "phrases" in arrays:
        phrases = arrays["phrases"].reshape(-1, 3).astype(np.int64)
        whole = bool(np.all(phrases[:, 0] < phrases[:, 1]) and np.all(phrases[:, 1] <= len(ids)) and np.all(np.diff(phrases[:, 0]) > 0))
    if not whole:
        raise ValueError(f"the block at {block.offset} does not fit together")
