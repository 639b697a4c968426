"""Which program turns text into ids: the fastest one that gives the same ids as Hugging Face's tokenizers, shown on the text at hand."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

Encode = Callable[[list[str]], list[list[int]]]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A way to encode texts, without special tokens, and why it was chosen."""

    name: str
    encode: Encode
    reason: str


def choose_engine(tokenizer_json: str, sample: Sequence[str]) -> Engine:
    """The fast engine for this kind of tokenizer if it encodes every text of the sample as Hugging Face does, else Hugging Face's."""
    if not sample:
        raise ValueError("sample: no text was given to prove the engine on")
    reference = _load_hugging_face(tokenizer_json)
    kind = json.loads(tokenizer_json)["model"]["type"]
    if kind not in FAST:
        return Engine(name=_named("tokenizers"), encode=reference, reason=f"no faster exact engine is known for {kind}")
    package, load = FAST[kind]
    try:
        fast = load(tokenizer_json)
        wrong = _first_difference(fast, reference, list(sample))
    except Exception as error:  # third-party Rust code: whatever it raises, the reference still works
        return Engine(name=_named("tokenizers"), encode=reference, reason=f"{package} failed ({type(error).__name__}: {error})")
    if wrong is not None:
        return Engine(name=_named("tokenizers"), encode=reference, reason=f"{package} gave other ids for {wrong[:60]!r}")
    return Engine(name=_named(package), encode=fast, reason=f"same ids as tokenizers on {len(sample)} texts")


def _first_difference(fast: Encode, reference: Encode, sample: list[str]) -> str | None:
    for text, got, expected in zip(sample, fast(sample), reference(sample), strict=True):
        if list(got) != expected:
            return text
    return None


def _load_hugging_face(tokenizer_json: str) -> Encode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def _load_gigatoken(tokenizer_json: str) -> Encode:
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(tokenizer_json)
    return lambda texts: tokenizer.encode_batch_list(texts, parallel=False)


def _load_tokie(tokenizer_json: str) -> Encode:
    import tokie

    with tempfile.TemporaryDirectory() as folder:  # it loads from a file only
        file = Path(folder) / "tokenizer.json"
        file.write_text(tokenizer_json, encoding="utf-8")
        tokenizer = tokie.Tokenizer.from_json(str(file))
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def _named(package: str) -> str:
    return f"{package} {version(package)}"


# Kind of model in tokenizer.json -> package and loader.
FAST: dict[str, tuple[str, Callable[[str], Encode]]] = {
    "BPE": ("gigatoken", _load_gigatoken),
    "WordPiece": ("tokie", _load_tokie),
}
