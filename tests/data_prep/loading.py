"""Small sets of shards, and loaders over them."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from remask.data_prep.corpus import Source
from remask.data_prep.data import DataConfig
from remask.data_prep.loader import Loader, open_loader
from remask.data_prep.masking import MaskingConfig
from remask.data_prep.pack import PackConfig, Packing
from remask.data_prep.prep import PrepConfig, prepare
from remask.data_prep.workers import local_workers

PACK = PackConfig(mode="segment-pair", sequence_length=64)
LANES = 48
BATCH = 48


def make_set(folder: Path, bpe_file: Path, texts: list[str], mode: Packing = "segment-pair", block_rows: int = 16) -> Path:
    folder.mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = PrepConfig(
        sources=(Source(name="test", paths=(str(folder / "corpus.jsonl"),)),),
        tokenizer=bpe_file,
        pack=PackConfig(mode=mode, sequence_length=64),
        block_rows=block_rows,
    )
    with local_workers(1) as workers:
        assert prepare(config, folder / "set", workers, lambda *_: None).manifest is not None
    return folder / "set"


def loader_of(*sets: Path, rank: int = 0, world: int = 1, seed: int = 5, masking: MaskingConfig | None = None, **options: Any) -> Loader:
    data: dict[str, Any] = {"pack": PACK, "batch_rows": BATCH, "lanes": LANES, "window_blocks": 3, "sentence_task": "sop", **options}
    config = DataConfig(sets=tuple(map(str, sets)), **data)
    return open_loader(config, masking or MaskingConfig(strategy="whole-word"), seed, rank=rank, world=world)


def digests_of(make: Callable[[int, int], Loader], world: int, positions: list[int], workers: int = 0, batches: int = 1) -> dict[int, str]:
    """Digests by stream position of all ranks' batches, so many from each position on."""
    found: dict[int, str] = {}
    for rank in range(world):
        loader = make(rank, world)
        for position in positions:
            for batch in islice(loader.batches(position, workers=workers), batches):
                found.update(batch.digests())
    return found
