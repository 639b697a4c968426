"""Who takes part in the benchmark of the loader; each runs in a process of its own.

    python -m remask.benchmarks.loader_contestants NAME FOLDER

FOLDER holds what `prepare_sets` has made. The last line printed is JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

_STARTED = time.perf_counter()
ROWS = 256
_SECONDS = 1.5
"""CPU-seconds that a contestant is timed for, after a fifth of them untimed."""


def prepare_sets(folder: Path, data: Path) -> int:
    """The same rows as our shards, as an Arrow dataset if that can be, and as a tar of one sequence a member; how many tokens they have."""
    import webdataset

    from remask.benchmarks.prep import english_text
    from remask.benchmarks.prep_contestants import documents_of
    from remask.data_prep.blocks import Blocks
    from remask.data_prep.corpus import Source
    from remask.data_prep.marks import MarkConfig
    from remask.data_prep.prep import PrepConfig, prepare
    from remask.data_prep.tokenizer import train
    from remask.data_prep.workers import local_workers

    text = english_text(data, folder)
    sample = (document for number, document in enumerate(documents_of(text)) if number % 8 == 0)
    (folder / "tokenizer.json").write_text(train(sample, "bpe", 30000, lowercase=False).text, encoding="utf-8")
    source = Source(name="text", paths=(str(text),))
    marks = MarkConfig(phrases=("of the", "in the", "this is", "source code", "file system"))
    config = PrepConfig(sources=(source,), tokenizer=folder / "tokenizer.json", marks=marks)
    with local_workers(os.cpu_count() or 1) as workers:
        prepare(config, folder / "shards", workers, lambda *_: None)
    (folder / "similar.tsv").write_text("file\tdevice directory\nthe\ta this\nis\twas are\n", encoding="utf-8")
    blocks = Blocks(folder / "shards")
    cls, sep = blocks.manifest.specials["cls"], blocks.manifest.specials["sep"]
    rows: list[Any] = []
    for arrays in blocks.read_all():
        bounds = arrays["rows"]
        rows.extend(np.concatenate(([cls], ids, [sep])).astype(np.uint16) for ids in np.split(arrays["ids"], bounds[1:-1].tolist()))
    if find_spec("datasets"):
        import datasets

        datasets.Dataset.from_dict({"input_ids": rows}).save_to_disk(str(folder / "arrow"))
    with webdataset.TarWriter(str(folder / "rows.tar")) as writer:
        for number, ids in enumerate(rows):
            writer.write({"__key__": f"{number:08d}", "ids.npy": ids})
    np.savez(folder / "rows.npz", ids=np.concatenate(rows), lengths=np.array([len(row) for row in rows]))
    return sum(len(row) for row in rows)


def _loader(strategy: Any, folder: Path) -> Any:
    from remask.data_prep.data import DataConfig
    from remask.data_prep.loader import open_loader
    from remask.data_prep.masking import MaskingConfig

    table = str(folder / "similar.tsv") if strategy == "similar" else None
    return open_loader(DataConfig(sets=(str(folder / "shards"),)), MaskingConfig(strategy=strategy, similar_words=table), 1)


def ours(strategy: str, folder: Path) -> Iterator[int]:
    loader = _loader(strategy, folder)
    for batch in loader.batches(workers=0):
        yield batch.tokens


def bare_gather(folder: Path) -> Iterator[int]:
    """The same rows in the same order: ids and special tokens, nothing else."""
    import numba

    from remask.data_prep.rows import _values

    @numba.njit(cache=True)  # type: ignore[untyped-decorator]
    def gather(ids: Any, rows: Any, chosen: Any, cls: int, sep: int) -> Any:
        lengths = np.empty(len(chosen) + 1, dtype=np.int64)
        lengths[0] = 0
        for i in range(len(chosen)):
            bounds = _values(rows[i], chosen[i] + 2, np.uint32)
            lengths[i + 1] = lengths[i] + bounds[chosen[i] + 1] - bounds[chosen[i]] + 2
        out = np.empty(lengths[-1], dtype=np.int32)
        for i in range(len(chosen)):
            begin = np.int64(_values(rows[i], chosen[i] + 2, np.uint32)[chosen[i]])
            size = lengths[i + 1] - lengths[i] - 2
            row = out[lengths[i] : lengths[i + 1]]
            tokens = _values(ids[i] + 2 * begin, size, np.uint16)
            row[0] = cls
            for t in range(size):
                row[1 + t] = tokens[t]
            row[size + 1] = sep
        return out

    loader = _loader("token", folder)
    blocks, order = loader.sets[0], loader.orders[0]
    specials = blocks.manifest.specials
    position = 0
    while True:
        _, numbers, rows = order.locate(np.arange(position, position + ROWS))
        blocks.open(numbers)
        addresses = blocks.addresses[numbers]
        yield len(gather(addresses[:, 0].copy(), addresses[:, 1].copy(), rows, specials["cls"], specials["sep"]))
        position += ROWS


def _collator(folder: Path) -> Any:
    from tokenizers import Tokenizer
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    names = {"pad_token": "<pad>", "mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(folder / "tokenizer.json")), **names)
    return DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)


def hf_collator(folder: Path) -> Iterator[int]:
    import datasets

    rows, collator = datasets.load_from_disk(str(folder / "arrow")), _collator(folder)
    order = np.random.default_rng(1).permutation(len(rows))
    while True:
        for first in range(0, len(order) - ROWS, ROWS):
            chosen = rows[order[first : first + ROWS].tolist()]["input_ids"]
            batch = collator([{"input_ids": ids} for ids in chosen])
            yield int(batch["attention_mask"].sum()) if "attention_mask" in batch else sum(map(len, chosen))


def webdataset_rows(folder: Path) -> Iterator[int]:
    """One sequence a member, shuffled in a buffer, masked by torch as Hugging Face does."""
    import torch
    import webdataset

    collator = _collator(folder)
    pad = collator.tokenizer.pad_token_id
    while True:
        samples = iter(webdataset.WebDataset(str(folder / "rows.tar"), shardshuffle=False).shuffle(1000).decode())
        while arrays := [sample["ids.npy"].astype(np.int64) for sample in islice(samples, ROWS)]:
            ids = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(array) for array in arrays], True, pad)
            collator.torch_mask_tokens(ids, ids < 5)  # the special tokens are the first five
            yield int(np.sum([len(array) for array in arrays]))


def contest(batches: Iterator[int]) -> dict[str, float]:
    """Millions of tokens per CPU-second of this process, and seconds from its start to the first batch."""
    next(batches)
    cold = time.perf_counter() - _STARTED
    start = time.process_time()
    while time.process_time() - start < _SECONDS / 5:
        next(batches)
    tokens, start = 0, time.process_time()
    while time.process_time() - start < _SECONDS:
        tokens += next(batches)
    return {"mtok_per_cpu_s": tokens / (time.process_time() - start) / 1e6, "cold_s": cold}


OTHERS: dict[str, Callable[[Path], Iterator[int]]] = {
    "limit": bare_gather,
    "hf_collator": hf_collator,
    "webdataset": webdataset_rows,
}


if __name__ == "__main__":
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    name, where = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(contest(OTHERS[name](where) if name in OTHERS else ours(name, where))))
