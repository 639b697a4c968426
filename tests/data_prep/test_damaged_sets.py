"""Sets that are damaged, incomplete or not ours: named with their rows, and nothing is read or written elsewhere."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_prep.loading import BATCH, digests_of, loader_of

from remask.data_prep import manifest
from remask.data_prep.blocks import DamageError
from remask.data_prep.errors import InputError
from remask.data_prep.loader import Loader
from remask.data_prep.pack import PackConfig


def damaged_copy(shards: Path, tmp_path: Path, name: str = "set") -> tuple[Path, manifest.Block]:
    """A copy whose fifth block has one bit turned."""
    shutil.copytree(shards, tmp_path / name)
    shard = manifest.read(tmp_path / name).train[0]
    block = shard.blocks[4]
    data = bytearray((tmp_path / name / shard.name).read_bytes())
    data[block.offset + block.bytes // 2] ^= 1
    (tmp_path / name / shard.name).write_bytes(data)
    return tmp_path / name, block


def test_a_damaged_block_stops_and_is_named_with_its_rows(shards: Path, tmp_path: Path) -> None:
    folder, _ = damaged_copy(shards, tmp_path)
    loader = loader_of(folder)
    with pytest.raises(DamageError, match=r"train-00000\.tar: altered since it was written.*rows 64 to 79 cannot be read"):
        loader.batch(0, loader.orders[0].rows)
    (folder / "train-00000.tar").unlink()
    with pytest.raises(DamageError, match=r"train-00000\.tar: missing; rows"):
        loader_of(folder).batch(0)


def test_skipping_leaves_out_the_same_rows_on_any_ranks(shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, block = damaged_copy(shards, tmp_path)

    def make(rank: int, world: int) -> Loader:
        return loader_of(folder, rank=rank, world=world, damaged="skip-and-report")

    rows = make(0, 1).orders[0].rows
    count = rows // BATCH
    whole = digests_of(lambda rank, world: loader_of(shards, rank=rank, world=world), 1, [0], batches=count)
    found = digests_of(make, 1, [0], batches=count)
    assert len(whole) - block.rows <= len(found) < len(whole)
    assert found == {position: whole[position] for position in found}, "all others are as they were"
    assert digests_of(make, 4, [0], 1, count) == found
    loader = make(0, 1)
    loader.batch(0, rows)
    (damage,) = loader.sets[0].damages.values()
    assert (damage.first_row, damage.rows) == (64, block.rows)
    assert "rows 64 to 79 cannot be read; they are left out" in caplog.text


def changed_manifest(shards: Path, tmp_path: Path, change: Callable[[Any], None]) -> Path:
    shutil.copytree(shards, tmp_path / "set")
    described = json.loads((shards / "manifest.json").read_text())
    change(described)
    (tmp_path / "set" / "manifest.json").write_text(json.dumps(described))
    return tmp_path / "set"


@pytest.mark.parametrize("name", ["../secret.tar", "/etc/secret.tar", "pipe:cat x.tar", "a/b.tar", "..", "http://x/y.tar"])
def test_names_that_are_no_plain_files_are_refused(shards: Path, tmp_path: Path, name: str) -> None:
    def rename(described: Any) -> None:
        described["train"][0]["name"] = name

    with pytest.raises(InputError, match="no plain file name"):
        loader_of(changed_manifest(shards, tmp_path, rename)).batch(0, 300)


def test_a_member_that_is_no_plain_array_is_refused(shards: Path, tmp_path: Path) -> None:
    """A pickled object array, with the hash of the block made to match."""
    import xxhash

    shutil.copytree(shards, tmp_path / "set")
    described = json.loads((shards / "manifest.json").read_text())
    shard = described["train"][0]
    data = bytearray((shards / shard["name"]).read_bytes())
    for block in shard["blocks"]:
        offset, _ = block["members"]["ids"]
        data[offset : offset + 128] = bytes(data[offset : offset + 128]).replace(b"'<u2'", b"'|O' ")
        block["hash"] = xxhash.xxh3_64_hexdigest(data[block["offset"] : block["offset"] + block["bytes"]])
    (tmp_path / "set" / shard["name"]).write_bytes(data)
    (tmp_path / "set" / "manifest.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match="the member ids has the header"):
        loader_of(tmp_path / "set").batch(0)


def test_a_manifest_with_other_numbers_is_refused_and_nothing_is_written_elsewhere(shards: Path, tmp_path: Path) -> None:
    def shorten(described: Any) -> None:
        described["config"]["pack"]["sequence_length"] = 16

    folder = changed_manifest(shards, tmp_path, shorten)
    short = PackConfig(mode="segment-pair", sequence_length=16)
    with pytest.raises(DamageError, match="does not fit together"):
        loader_of(folder, sentence_task="nsp", pack=short).batch(0)


@pytest.mark.parametrize(
    "change",
    [
        lambda described: described["config"].pop("pack"),
        lambda described: described.update(config=[]),
        lambda described: described["config"]["pack"].update(mode="zzz"),
        lambda described: described["specials"].pop("cls"),
        lambda described: described["specials"].update(mask=10**12),
        lambda described: described.update(vocab_size="x"),
        lambda described: described["train"][0]["blocks"][0].update(rows="x"),
        lambda described: described["train"][0]["blocks"][0].update(rows=-1),
        lambda described: described["train"][0].update(name=None),
    ],
)
def test_a_manifest_that_is_not_ours_is_one_sentence(shards: Path, tmp_path: Path, change: Callable[[Any], None]) -> None:
    with pytest.raises(InputError, match="not one that remask prep wrote"):
        loader_of(changed_manifest(shards, tmp_path, change))


def test_a_set_without_a_readable_block_is_told(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "set")
    for file in (tmp_path / "set").glob("train-*.tar"):
        file.unlink()
    loader = loader_of(tmp_path / "set", damaged="skip-and-report")
    with pytest.raises(DamageError, match="no block can be read"):
        loader.batch(0, loader.orders[0].rows)
