"""The description of a shard set: what is in it, where each block lies, what it was made from, and whether it is still whole."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from remask.data_prep.errors import InputError
from remask.data_prep.files import hash_of, written_whole
from remask.data_prep.shards import Block, Shard

SCHEMA = 1
NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that a reader needs to know; rows of `train` and `validation` are numbered through their shards in order."""

    schema: int
    config: dict[str, Any]
    """How the set was made: packing, cleaning, sources."""
    tokenizer_hash: str
    vocab_size: int
    specials: dict[str, int]
    """Role -> id: pad, unk, cls, sep, mask."""
    documents: dict[str, dict[str, int]]
    """Source -> documents kept, dropped by reason, text bytes and tokens."""
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]

    @property
    def shards(self) -> tuple[Shard, ...]:
        return self.train + self.validation


def write(manifest: Manifest, folder: Path) -> None:
    save(folder / NAME, manifest)


def save(file: Path, value: Any) -> None:
    """JSON of plain values and dataclasses, whole or not at all."""
    with written_whole(file) as stream:
        stream.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


def read(folder: Path) -> Manifest:
    """The manifest of a finished set."""
    file = folder / NAME
    try:
        raw = orjson.loads(file.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{folder}: no {NAME} here; give a folder that remask prep has finished") from None
    except NotADirectoryError:
        raise InputError(f"{folder}: is a file; give a folder that remask prep has finished") from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error}); run remask prep again, it keeps finished shards") from error
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != SCHEMA:
        raise InputError(f"{file}: schema {found} was found, this version reads {SCHEMA}; prepare the shards again")
    try:
        return _manifest_of(raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: not whole ({type(error).__name__}: {error}); run remask prep again, it keeps finished shards") from error


def _manifest_of(raw: dict[str, Any]) -> Manifest:
    return Manifest(**{**raw, "train": tuple(map(shard_of, raw["train"])), "validation": tuple(map(shard_of, raw["validation"]))})


def shard_of(raw: dict[str, Any]) -> Shard:
    blocks = tuple(
        Block(**{**block, "members": {name: tuple(place) for name, place in block["members"].items()}}) for block in raw["blocks"]
    )
    return Shard(**{**raw, "blocks": blocks})


def damages(manifest: Manifest, folder: Path, progress: Callable[[int, int], None]) -> Iterator[str]:
    """One sentence for each file that is not what the manifest says; every byte is read."""
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        yield f"{tokenizer}: missing"
    elif hash_of(tokenizer) != manifest.tokenizer_hash:
        yield f"{tokenizer}: not the one that the shards were made with"
    known = {shard.name for shard in manifest.shards}
    for stray in sorted(file.name for file in folder.glob("*.tar") if file.name not in known):
        yield f"{folder / stray}: the manifest does not know it"
    total = sum(shard.bytes for shard in manifest.shards)
    done = 0
    for shard in manifest.shards:
        file = folder / shard.name
        if not file.exists():
            yield f"{file}: missing ({shard.rows} rows)"
        elif file.stat().st_size != shard.bytes:
            yield f"{file}: {file.stat().st_size} bytes, {shard.bytes} were written ({shard.rows} rows)"
        elif hash_of(file) != shard.hash:
            yield f"{file}: altered since it was written, its hash differs ({shard.rows} rows)"
        done += shard.bytes
        progress(done, total)
