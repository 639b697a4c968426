"""Which program turns text into ids: the fastest one that gives the same ids as Hugging Face's tokenizers, shown on the text at hand."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = tuple[NDArray[np.uint32], NDArray[np.int64]]
"""Ids of all texts end to end, and how many belong to each text."""
Encode = Callable[[list[bytes]], Ids]
"""Of texts in UTF-8."""

REFERENCE = "tokenizers"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A way to encode texts, without special tokens, and why it was chosen."""

    package: str
    version: str
    encode: Encode
    reason: str

    def __str__(self) -> str:
        return f"{self.package} {self.version} ({self.reason})"


def choose_engine(tokenizer_json: str, kind: str, sample: Sequence[bytes]) -> Engine:
    """The fast engine for this kind of model if it encodes every text of the sample as Hugging Face does, else Hugging Face's."""
    if not sample:
        raise ValueError("sample: no text was given to prove the engine on")
    reference = load_engine(REFERENCE, tokenizer_json)
    if kind not in FAST:
        return replace(reference, reason=f"no faster exact engine is known for {kind}")
    package, _ = FAST[kind]
    try:
        fast = load_engine(package, tokenizer_json)
        wrong = _first_difference(fast.encode, reference.encode, list(sample))
    except Exception as error:  # third-party Rust code: whatever it raises, the reference still works
        return replace(reference, reason=f"{package} failed ({type(error).__name__}: {' '.join(str(error).split())})")
    if wrong is not None:
        return replace(reference, reason=f"{package} gave other ids for {wrong[:60].decode(errors='replace')!r}")
    return replace(fast, reason=f"same ids as tokenizers on {len(sample)} texts")


@lru_cache(maxsize=4)
def load_engine(package: str, tokenizer_json: str) -> Engine:
    """An engine by its package, once a process: they learn from what they encode and get faster."""
    loaders = {REFERENCE: _load_hugging_face, **dict(FAST.values())}
    return Engine(package=package, version=version(package), encode=loaders[package](tokenizer_json), reason="")


def _first_difference(fast: Encode, reference: Encode, sample: list[bytes]) -> bytes | None:
    (ids, counts), (expected_ids, expected_counts) = fast(sample), reference(sample)
    if np.array_equal(ids, expected_ids) and np.array_equal(counts, expected_counts):
        return None
    return next((text for text in sample if not np.array_equal(fast([text])[0], reference([text])[0])), b"all texts together")


def _load_hugging_face(tokenizer_json: str) -> Encode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)

    def encode(texts: list[bytes]) -> Ids:
        encodings = tokenizer.encode_batch_fast([text.decode() for text in texts], add_special_tokens=False)
        counts = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        return np.fromiter((i for encoding in encodings for i in encoding.ids), dtype=np.uint32, count=int(counts.sum())), counts

    return encode


def _load_gigatoken(tokenizer_json: str) -> Encode:
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(tokenizer_json)

    def encode(texts: list[bytes]) -> Ids:
        layout = tokenizer.encode_batch(texts, parallel=False).layout
        offsets = np.asarray(layout.offsets.data)
        return np.asarray(layout.content.data)[offsets[0] : offsets[-1]], np.diff(offsets)

    return encode


def _load_tokie(tokenizer_json: str) -> Encode:
    import tokie

    with tempfile.TemporaryDirectory() as folder:  # it loads from a file only
        file = Path(folder) / "tokenizer.json"
        file.write_text(tokenizer_json, encoding="utf-8")
        tokenizer: Any = tokie.Tokenizer.from_json(str(file))  # encode_batch_flat is missing in its stubs

    def encode(texts: list[bytes]) -> Ids:
        ids, counts = tokenizer.encode_batch_flat([text.decode() for text in texts], add_special_tokens=False)
        return ids, counts.astype(np.int64)

    return encode


# Kind of model in tokenizer.json -> package and loader.
FAST: dict[str, tuple[str, Callable[[str], Encode]]] = {
    "BPE": ("gigatoken", _load_gigatoken),
    "WordPiece": ("tokie", _load_tokie),
}
