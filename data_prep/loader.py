"""Batches of masked rows: a function of (seed, position), the same for any number of ranks, workers and restarts."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from remask.data_prep.batch import Batch, join
from remask.data_prep.blocks import Blocks
from remask.data_prep.data import DataConfig
from remask.data_prep.engines import REFERENCE, load_engine
from remask.data_prep.errors import InputError
from remask.data_prep.keys import key_of, row_keys
from remask.data_prep.manifest import Manifest
from remask.data_prep.masking import MaskingConfig
from remask.data_prep.masks import Masked, Masker, ordinary_ids
from remask.data_prep.mixture import Mixture
from remask.data_prep.order import Order
from remask.data_prep.phrases import LEVELS
from remask.data_prep.rows import RowMaker, Rows
from remask.data_prep.similar import NO_SIMILAR, read_table
from remask.data_prep.tokenizer import load as load_tokenizer

T = TypeVar("T")

_MASKS, _FIXED_MASKS = 4, 5  # what a key is for


@dataclass(kw_only=True)
class Waits:
    """How long the consumer waited for batches, in seconds; training compares it with its own time."""

    seconds: float = 0.0
    batches: int = 0


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Where the rows of a batch lie in their set, and what they are masked by."""

    stream: NDArray[np.int64]
    epochs: NDArray[np.int64]
    blocks: NDArray[np.int64]
    rows: NDArray[np.int64]
    keys: NDArray[np.uint64]
    """Of the rows' epochs; with a row's number each becomes the row's own."""
    rates: NDArray[np.float64]

    def only(self, chosen: NDArray[np.bool_]) -> "_Places":
        return _Places(**{name: values[chosen] for name, values in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Loader:
    """The rows of one rank. Rank and world size are arguments, so every rank of a run can be tried in one process."""

    sets: tuple[Blocks, ...]
    mixture: Mixture
    orders: tuple[Order, ...]
    makers: tuple[RowMaker, ...]
    masker: Masker
    seed: int
    batch_rows: int
    rank: int = 0
    world: int = 1
    total_rows: int | None = None
    """Rows of the whole training, which a changing mask rate goes by."""
    waits: Waits = field(default_factory=Waits)

    def batch(self, position: int, rows: int | None = None) -> Batch:
        """This rank's rows of the global batch that begins at a stream position: every world-size-th of them."""
        rows = self.batch_rows if rows is None else rows
        first = position + (self.rank - position) % self.world
        stream = np.arange(first, position + rows, self.world, dtype=np.int64)
        if len(self.sets) == 1 or not len(stream):
            return self._of_set(0, stream, stream)
        sets, own_stream = self.mixture.locate(stream)
        parts = [self._of_set(number, stream[sets == number], own_stream[sets == number]) for number in np.unique(sets).tolist()]
        together = join(parts)
        return together.arranged(np.argsort(together.stream))

    def batches(self, position: int = 0, workers: int = 1, ahead: int = 4) -> Iterator[Batch]:
        """Batch after batch from a stream position on, without end, made ahead by threads; without workers each is made when asked for."""
        return self.prepared(lambda batch: batch, self.windows(position), workers, ahead)

    def tensors(self, position: int = 0, workers: int = 1, ahead: int = 4) -> Iterator[dict[str, Any]]:
        """The same as torch tensors; where there is a GPU, in pinned memory, which the threads fill."""
        import torch

        pin = torch.cuda.is_available()
        return self.prepared(lambda batch: batch.tensors(pin), self.windows(position), workers, ahead)

    def windows(self, position: int) -> Iterator[tuple[int, int]]:
        """Begin and rows of global batches of one size, one behind the other."""
        return ((start, self.batch_rows) for start in count(position, self.batch_rows))

    def prepared(self, prepare: Callable[[Batch], T], windows: Iterator[tuple[int, int]], workers: int, ahead: int) -> Iterator[T]:
        """The global batches that begin at stream positions and have so many rows, each after `prepare`, which runs in the threads, too."""
        if workers < 0:
            raise ValueError(f"workers: {workers} was given, it must be at least 0")

        def make(window: tuple[int, int]) -> T:
            return prepare(self.batch(*window))

        with ThreadPoolExecutor(max(workers, 1), thread_name_prefix="batches") as pool:
            try:
                waiting: deque[Future[T]] = deque(pool.submit(make, next(windows)) for _ in range(max(ahead, workers) if workers else 0))
                while True:
                    begin = time.perf_counter()
                    made = waiting.popleft().result() if workers else make(next(windows))
                    self.waits.seconds += time.perf_counter() - begin
                    self.waits.batches += 1
                    if workers:
                        waiting.append(pool.submit(make, next(windows)))
                    yield made
            finally:
                pool.shutdown(cancel_futures=True)

    def rows_in_epoch(self, row_ids: NDArray[np.int64], epoch: int) -> tuple[Rows, Masked]:
        """Rows of the first set by their numbers, as they are in an epoch, before and after masking: for looking at them."""
        blocks = self.sets[0]
        numbers = np.searchsorted(blocks.first_rows, row_ids, side="right") - 1
        blocks.open(numbers)
        keys = row_keys(key_of(self.seed, _MASKS, 0, self.masker.config.refresh_of(epoch)), row_ids)
        rows = self.makers[0](blocks.addresses[numbers], blocks.sizes[numbers], row_ids - blocks.first_rows[numbers], keys)
        rates = np.full(len(row_ids), self.masker.config.rate)
        return rows, self.masker(rows.ids.copy(), rows.offsets, rows.marks, keys, rates)

    def _of_set(self, number: int, stream: NDArray[np.int64], own_stream: NDArray[np.int64]) -> Batch:
        epochs, blocks, rows = self.orders[number].locate(own_stream)
        masking = self.masker.config
        first, last = (int(epochs.min()), int(epochs.max())) if len(epochs) else (0, 0)
        keys = np.array([key_of(self.seed, _MASKS, number, masking.refresh_of(epoch)) for epoch in range(first, last + 1)])[epochs - first]
        rates = masking.rate_at(stream / self.total_rows if self.total_rows else np.zeros(len(stream)))
        places = _Places(stream=stream, epochs=epochs, blocks=blocks, rows=rows, keys=keys, rates=rates)
        return _make(self.sets[number], self.makers[number], self.masker, number, places)


def fixed_batches(
    blocks: Blocks, maker: RowMaker, masker: Masker, batch_rows: int, rank: int = 0, world: int = 1, most_rows: int | None = None
) -> Iterator[Batch]:
    """Validation: every row once, in the order of the corpus, with masks that depend on nothing but the row and the masking config.

    With `most_rows` only so many, spread evenly over all.
    """
    behind = np.cumsum(blocks.rows)
    key, total = key_of(_FIXED_MASKS), int(behind[-1])
    count = min(total, most_rows or total)
    chosen = np.arange(count, dtype=np.int64) * total // count
    for start in range(0, count, batch_rows):
        stream = chosen[start : min(start + batch_rows, count)][(rank - start) % world :: world]
        numbers = np.searchsorted(behind, stream, side="right")
        rows = stream - blocks.first_rows[numbers]
        keys, rates = np.full(len(stream), key), np.full(len(stream), masker.config.rate)
        places = _Places(stream=stream, epochs=np.zeros_like(stream), blocks=numbers, rows=rows, keys=keys, rates=rates)
        yield _make(blocks, maker, masker, 0, places)


def open_loader(
    data: DataConfig, masking: MaskingConfig, seed: int, *, rank: int = 0, world: int = 1, total_rows: int | None = None
) -> Loader:
    """The loader of one rank, with everything checked that can be before the first batch."""
    for name, value in (("lanes", data.lanes), ("batch_rows", data.batch_rows)):
        if world < 1 or value % world:
            raise InputError(f"data.{name}: {value} was given, it must be a multiple of the {world} ranks")
    if not 0 <= rank < world:
        raise InputError(f"rank {rank} was given, of {world} ranks it must be from 0 to {world - 1}")
    if masking.final_rate is not None and total_rows is None:
        raise InputError(f"masking.final_rate: {masking.final_rate} was given, but nobody says how many rows the training has")
    if data.sentence_task != "none" and data.pack.mode not in ("segment-pair", "sentence-pair"):
        raise InputError(f"data.sentence_task: {data.sentence_task} was given, it needs rows with two parts, not {data.pack.mode}")
    if not data.sets:
        raise InputError("data.sets: none was given; name the folders that remask prep has made")
    sets = tuple(Blocks(Path(folder), skip_damaged=data.damaged == "skip-and-report") for folder in data.sets)
    for blocks in sets:
        check_set(blocks, data, sets[0].manifest)
    return Loader(
        sets=sets,
        mixture=_mixture(data, seed),
        orders=tuple(
            Order(block_rows=blocks.rows, lanes=data.lanes, window_blocks=data.window_blocks, seed=int(key_of(seed, number)) >> 1)
            for number, blocks in enumerate(sets)
        ),
        makers=tuple(row_maker(blocks, data, masking) for blocks in sets),
        masker=make_masker(sets[0], masking),
        seed=seed,
        batch_rows=data.batch_rows,
        rank=rank,
        world=world,
        total_rows=total_rows,
    )


def _mixture(data: DataConfig, seed: int) -> Mixture:
    try:
        return Mixture(weights=data.weights or (1.0,) * len(data.sets), lanes=data.lanes, seed=seed)
    except ValueError as error:
        raise InputError(f"data.{error}") from error


def check_set(blocks: Blocks, data: DataConfig, first: Manifest) -> None:
    """That a set was made for this run, and goes with the first one."""
    packed = blocks.manifest.config["pack"]
    for name in ("mode", "sequence_length"):
        if packed[name] != (wanted := getattr(data.pack, name)):
            raise InputError(
                f"{blocks.folder}: packed with {name} {packed[name]!r}, the run wants {wanted!r}; change data.pack or prepare again"
            )
    if blocks.manifest.tokenizer_hash != first.tokenizer_hash:
        raise InputError(f"{blocks.folder}: made with another tokenizer than the first set; all sets of a run need the same")


def row_maker(blocks: Blocks, data: DataConfig, masking: MaskingConfig) -> RowMaker:
    specials = blocks.manifest.specials
    levels = tuple(LEVELS[level] for level in masking.levels) if masking.strategy == "phrase" else ()
    if levels and not blocks.has("phrases"):
        raise InputError(
            f"{blocks.folder}: no phrases are marked in it; prepare it with --phrase-list, --entity-list or --chinese-entities"
        )
    return RowMaker(
        cls_id=specials["cls"],
        sep_id=specials["sep"],
        protected=(specials["pad"], specials["cls"], specials["sep"], specials["mask"], specials["unk"]),
        task=data.sentence_task,
        row_budget=data.pack.row_budget,
        id_bytes=blocks.id_bytes,
        words=masking.strategy != "token",
        phrase_levels=levels,
        documents=data.documents_apart,
    )


def make_masker(blocks: Blocks, masking: MaskingConfig) -> Masker:
    """A masker for the vocabulary of a set, whose tokenizer lies in its folder."""
    vocabulary = load_tokenizer(blocks.folder)
    if vocabulary.digest != blocks.manifest.tokenizer_hash:
        raise InputError(f"{blocks.folder / 'tokenizer.json'}: not the one that the shards were made with; run remask prep again")
    specials = blocks.manifest.specials
    similar = NO_SIMILAR
    if masking.strategy == "similar" and masking.similar_words is not None:
        similar = read_table(Path(masking.similar_words), load_engine(REFERENCE, vocabulary.text))
    ordinary = ordinary_ids(vocabulary.pieces, list(specials.values()))
    return Masker(config=masking, mask_id=specials["mask"], ordinary=ordinary, similar=similar)


def _make(source: Blocks, maker: RowMaker, masker: Masker, number: int, places: _Places) -> Batch:
    """A batch of the rows of a set that stand at these places, without those that are left out because they are damaged."""
    ready = source.open(places.blocks)
    if not ready.all():
        places = places.only(ready)
    row_ids = source.first_rows[places.blocks] + places.rows
    keys = row_keys(places.keys, row_ids)
    made = maker(source.addresses[places.blocks], source.sizes[places.blocks], places.rows, keys)
    masked = masker(made.ids, made.offsets, made.marks, keys, places.rates)
    return Batch(
        stream=places.stream,
        row_ids=row_ids,
        sets=np.full(len(row_ids), number, dtype=np.int64),
        epochs=places.epochs,
        inputs=masked.inputs,
        offsets=made.offsets,
        segments=made.segments,
        positions=masked.positions,
        targets=masked.targets,
        swapped=made.labels if maker.task == "sop" else None,
        stranger=made.labels if maker.task == "nsp" else None,
        documents=made.documents,
    )
