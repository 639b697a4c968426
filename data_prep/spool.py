"""An item's tokens on disk between encoding and packing: batch after batch, each a few arrays in NumPy's format."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from remask.data_prep.encode import Encoded
from remask.data_prep.shards import npy


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Documents of one source that were encoded together."""

    source: str
    sizes: NDArray[np.int64]
    """Bytes of each document's text."""
    encoded: Encoded


def write(stream: BinaryIO, batch: Batch, id_dtype: np.dtype[Any]) -> None:
    encoded = batch.encoded
    for array in (
        np.frombuffer(batch.source.encode(), dtype=np.uint8),
        batch.sizes.astype(np.uint32),
        encoded.ids.astype(id_dtype),
        encoded.sentences.astype(np.uint32),
        encoded.documents.astype(np.uint32),
        np.packbits(encoded.words),
        encoded.phrases.astype(np.uint32),
    ):
        stream.write(npy(array))


def read(stream: BinaryIO) -> Iterator[Batch]:
    """Every batch; `ValueError` if the last one is cut off."""
    while stream.peek(1):  # type: ignore[attr-defined]
        source, sizes, ids, sentences, documents, words, phrases = (np.lib.format.read_array(stream, allow_pickle=False) for _ in range(7))
        marks = np.unpackbits(words, count=len(ids)).view(np.bool_)
        sizes, sentences, documents, phrases = (array.astype(np.int64) for array in (sizes, sentences, documents, phrases))
        encoded = Encoded(ids=ids, sentences=sentences, documents=documents, words=marks, phrases=phrases)
        yield Batch(source=source.tobytes().decode(), sizes=sizes, encoded=encoded)
