"""Tokenizers: trained here or loaded, their special tokens, and the tables over the vocabulary that words follow from."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import xxhash

from remask.data_prep.engines import REFERENCE, load_engine
from remask.data_prep.errors import InputError

Kind = Literal["bpe", "wordpiece", "unigram"]

# Role -> its name in each family: BERT's and ALBERT's brackets, RoBERTa's angles.
ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
_MAX_ID = 10**7
_SPECIALS: dict[Kind, list[str]] = {
    "bpe": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "wordpiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "unigram": ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What the offline stage needs of a tokenizer.json, beside an engine to encode with."""

    text: str
    """The file's content; all that follows is derived from it."""

    @cached_property
    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = orjson.loads(self.text)
        return content

    @cached_property
    def pieces(self) -> list[str]:
        """Every entry by its id, added tokens included."""
        model = self._content["model"]
        vocab = model["vocab"]
        by_id = {i: piece for i, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else {i: piece for piece, i in vocab.items()}
        by_id.update({added["id"]: added["content"] for added in self._content.get("added_tokens", [])})
        return [by_id.get(i, "") for i in range(max(by_id) + 1)]

    @cached_property
    def specials(self) -> dict[str, int]:
        """Role -> id of the five special tokens; a missing one is an error that names it."""
        ids = {piece: i for i, piece in enumerate(self.pieces)}
        missing = [" or ".join(names) for names in ROLES.values() if not any(name in ids for name in names)]
        if missing:
            raise InputError(
                f"tokenizer: no special token {', '.join(missing)}; add it to the vocabulary, or train one with remask tokenizer train"
            )
        return {role: next(ids[name] for name in names if name in ids) for role, names in ROLES.items()}

    @cached_property
    def control_ids(self) -> list[int]:
        """Ids that no text may become: the special tokens, also those beyond the five, without the one for unknown text."""
        added = [added["id"] for added in self._content.get("added_tokens", []) if added["special"] and added["content"]]
        return sorted({*self.specials.values(), *added} - {self.specials["unk"]})

    @property
    def digest(self) -> str:
        return xxhash.xxh3_128_hexdigest(self.text.encode())

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every id."""
        return np.dtype(np.uint16 if len(self.pieces) <= 1 << 16 else np.uint32)

    @property
    def kind(self) -> str:
        return str(self._content["model"]["type"])

    @cached_property
    def is_byte_level(self) -> bool:
        """Ids stand for bytes of the text, none lost and none added: their lengths add up to positions in it."""
        before = self._content.get("pre_tokenizer") or {}
        plain = before.get("type") == "ByteLevel" and not before.get("add_prefix_space") and not self._content.get("normalizer")
        return plain and all(added["special"] for added in self._content.get("added_tokens", []))

    @property
    def writes_bytes(self) -> bool:
        """Pieces are written in the byte-level alphabet."""
        return _mentions(self._content.get("pre_tokenizer"), "ByteLevel")

    @property
    def continuing_prefix(self) -> str:
        """What WordPiece writes before a piece that goes on with a word."""
        return str(self._content["model"].get("continuing_subword_prefix") or "##")

    @property
    def marks_spaces(self) -> bool:
        """A piece tells whether a space stood before it, which words follow from."""
        return self.kind == "WordPiece" or self.writes_bytes or _mentions(self._content.get("pre_tokenizer"), "Metaspace")

    @property
    def splits_at_spaces_and_punctuation(self) -> bool:
        """No token reaches over white space or punctuation, so sentences can be encoded one by one (BERT's pre-tokenizer)."""
        return bool((self._content.get("pre_tokenizer") or {}).get("type") == "BertPreTokenizer")


def load(path: Path) -> Vocabulary:
    """A tokenizer.json, or the folder that Hugging Face's `save_pretrained` wrote one into."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"tokenizer: {file} cannot be read ({error}); give a tokenizer.json or a folder that holds one") from error
    try:
        load_engine(REFERENCE, text)
    except Exception as error:  # the library raises a bare Exception
        raise InputError(f"tokenizer: {file} is not a tokenizer.json ({error})") from error
    return _checked(Vocabulary(text=text), file)


def _checked(vocabulary: Vocabulary, file: Path) -> Vocabulary:
    """With truncation and padding off: they are settings of another use, and would cut and fill every text here."""
    content = vocabulary._content
    model = content.get("model") or {}
    vocab = model.get("vocab")
    if not isinstance(model.get("type"), str) or not vocab:
        raise InputError(f"tokenizer: {file} has no model type or no vocabulary; load and save it with the tokenizers library first")
    largest = len(vocab) if isinstance(vocab, list) else max(vocab.values())
    if largest > _MAX_ID:
        raise InputError(f"tokenizer: {file} has an id of {largest:,}; at most {_MAX_ID:,} are possible")
    if content.get("truncation") is None and content.get("padding") is None:
        return vocabulary
    return Vocabulary(text=orjson.dumps({**content, "truncation": None, "padding": None}).decode())


def train(texts: Iterator[str], kind: Kind, vocab_size: int, lowercase: bool) -> Vocabulary:
    """A tokenizer of the family's usual form, with its special tokens first."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    specials = [AddedToken(token, special=True, lstrip=token == "<mask>") for token in _SPECIALS[kind]]
    common: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": specials, "show_progress": False}
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(**common, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(**common)
    else:
        tokenizer = Tokenizer(models.Unigram())
        steps = [normalizers.NFKC(), *([normalizers.Lowercase()] if lowercase else [])]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(**common, unk_token="<unk>")
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:  # the library raises a bare Exception
        raise InputError(f"tokenizer: {kind} with {vocab_size} entries cannot be trained on this text ({error})") from error
    if (made := tokenizer.get_vocab_size()) > vocab_size:
        raise InputError(f"tokenizer: vocab_size: {vocab_size} was given, but the characters of this text alone take {made} entries")
    return Vocabulary(text=tokenizer.to_str(pretty=True))


def _mentions(part: Any, kind: str) -> bool:
    if isinstance(part, dict):
        return part.get("type") == kind or any(_mentions(value, kind) for value in part.values())
    return isinstance(part, list) and any(_mentions(value, kind) for value in part)
