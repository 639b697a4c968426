"""Writing a Hugging Face folder, and comparing one with our model: what `remask export` and `remask import` have in common."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from remask.data_prep.engines import REFERENCE, load_engine
from remask.data_prep.tokenizer import Vocabulary
from remask.launcher.errors import UserError
from remask.launcher.model_folder import StoredModel, write_weights
from remask.model.huggingface import Form, to_hugging_face

if TYPE_CHECKING:
    from torch import Tensor

    from remask.model.heads import PretrainingModel

TOLERANCE = 1e-5
# Cased, accented, composed and decomposed, CJK, emoji, white space, numbers, other scripts, one word, nothing.
TEXTS = (
    "The Quick Brown Fox jumps over THE lazy dog.",
    "Ça déjà vu: naïve café, Ångström, Straße, İstanbul.",
    "cafe\u0301 and re\u0301sume\u0301 in decomposed form",
    "北京是中华人民共和国的首都。東京も大きい。서울은 크다.",
    "Good morning 👋🏽 family 👨‍👩‍👧 flag 🇫🇷 ok ✅",
    "  two  spaces,\ttabs\nand newlines  ",
    "In 2019, 3.14 x 10^5 = 314,000; e-mail: a.b@example.org!",
    "Кириллица и Ελληνικά, العربية, עברית, हिन्दी",
    "word",
    "",
)


def write_files(folder: Path, model: StoredModel, form: Form) -> None:
    """Weights, config and tokenizer as Hugging Face's own `save_pretrained` would lay them out."""
    import transformers

    write_weights(folder / "model.safetensors", to_hugging_face(model.state, model.config, form))
    settings = {**form.settings, "dtype": "float32", "transformers_version": transformers.__version__}
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    _write_tokenizer(folder, model.vocabulary, model.config.positions, model.config.type_vocab)


def _write_tokenizer(folder: Path, vocabulary: Vocabulary, positions: int, type_vocab: int) -> None:
    """As a plain fast tokenizer: the classes by family name lowercase or normalise on their own when they are loaded."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(vocabulary.text)
    names = {role: vocabulary.pieces[number] for role, number in vocabulary.specials.items()}
    if tokenizer.post_processor is None:  # the loader puts rows together so
        cls, sep = names["cls"], names["sep"]
        second = min(type_vocab, 2) - 1
        tokenizer.post_processor = TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:{second} {sep}:{second}",
            special_tokens=[(names[role], vocabulary.specials[role]) for role in ("cls", "sep")],
        )
    inputs = ["input_ids", *(["token_type_ids"] if type_vocab > 1 else []), "attention_mask"]
    roles = {f"{role}_token": name for role, name in names.items()}
    wrapped: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, model_max_length=positions, model_input_names=inputs, **roles
    )
    wrapped.save_pretrained(folder)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Ours and what Hugging Face makes of the folder."""

    architecture: str
    largest_difference: float
    """Of any score on any row, absolute."""
    precision: str
    scores: int
    """How many were compared."""
    texts: int
    """Whose token ids are equal."""


def compare(folder: Path, name: Path, model: StoredModel, form: Form) -> Comparison:
    """Opens the folder, known to the user by the name, as a user would; UserError if scores differ by more than 1e-5 or ids at all."""
    try:
        ours = model.build()
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error
    with _quiet():
        theirs, base, tokenizer = _open(folder, name, form)
        rows = list(_rows_of(model, _compare_ids(tokenizer, name, model.vocabulary, form)))
        difference, scores = _largest_difference(ours, theirs, base, rows, form)
        precision = "fp32"
        if difference > TOLERANCE:  # of rounding alone? Sums in another order differ more in a large model; twice the digits tell
            difference, scores = _largest_difference(ours.double(), theirs.double(), base.double(), rows, form)
            precision = "fp64, since fp32 rounds more than that"
    if not difference <= TOLERANCE:
        raise UserError(f"{name}: Hugging Face gives other scores than our model, by up to {difference:.2g} (allowed {TOLERANCE})")
    return Comparison(architecture=form.architecture, largest_difference=difference, precision=precision, scores=scores, texts=len(TEXTS))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Hugging Face's bars and reports: a pooler that a class does not use is no reason to worry anybody."""
    import transformers

    logs: Any = transformers.logging
    told, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(told)
        if bars:
            logs.enable_progress_bar()


def _open(folder: Path, name: Path, form: Form) -> tuple[Any, Any, Any]:
    """The model with its head, without it, and the tokenizer, through Hugging Face's automatic classes."""
    import torch
    import transformers

    automatic = transformers.AutoModelForPreTraining if form.architecture.endswith("PreTraining") else transformers.AutoModelForMaskedLM
    how: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True}
    try:
        theirs, loading = automatic.from_pretrained(folder, output_loading_info=True, **how)
        base = transformers.AutoModel.from_pretrained(folder, **how)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever the library raises, a folder that it cannot open is the user's to mend
        raise UserError(f"{name}: Hugging Face cannot open it ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from error
    if type(theirs).__name__ != form.architecture or loading["missing_keys"] or loading["mismatched_keys"]:
        lost = sorted(loading["missing_keys"])[:3] or type(theirs).__name__
        raise UserError(f"{name}: Hugging Face does not open it as the {form.architecture} that it should be ({lost})")
    return theirs.eval(), base.eval(), tokenizer


def _compare_ids(theirs: Any, name: Path, vocabulary: Vocabulary, form: Form) -> list[list[int]]:
    """The texts as ids with special tokens, equal in both."""
    flat, counts = load_engine(REFERENCE, vocabulary.text).encode([text.encode() for text in TEXTS])
    cls, sep = vocabulary.specials["cls"], vocabulary.specials["sep"]
    encoded = []
    for text, ids in zip(TEXTS, np.split(flat, np.cumsum(counts)[:-1]), strict=True):
        wanted = [cls, *ids.tolist(), sep]
        if (found := theirs(text)["input_ids"]) != wanted:
            raise UserError(f"{name}: its tokenizer encodes {text!r} as {found[:12]}…, ours as {wanted[:12]}…")
        encoded.append(wanted)
    mask = vocabulary.specials["mask"]
    if (theirs.pad_token_id, theirs.mask_token_id) != (form.settings["pad_token_id"], mask):
        raise UserError(f"{name}: its tokenizer has other ids for padding and mask")
    return encoded


def _rows_of(model: StoredModel, texts: list[list[int]]) -> "Iterator[list[int]]":
    """Rows of text with a mask in the middle, and random ones of all lengths up to the longest."""
    import torch

    positions, mask = model.config.positions, model.vocabulary.specials["mask"]
    for ids in texts:
        row = ids[:positions]
        row[len(row) // 2] = mask
        yield row
    generator = torch.Generator().manual_seed(1)
    ordinary = torch.tensor([i for i in range(len(model.vocabulary.pieces)) if i not in model.vocabulary.specials.values()])
    for length in sorted({1, min(2, positions), min(7, positions), positions // 3 + 1, positions} - {0}):
        yield ordinary[torch.randint(0, len(ordinary), (length,), generator=generator)].tolist()


def _largest_difference(ours: "PretrainingModel", theirs: Any, base: Any, rows: list[list[int]], form: Form) -> tuple[float, int]:
    """Over all scores at all tokens of all rows, those of the sentence task, and the hidden states; padded there, unpadded here."""
    import torch

    lengths = torch.tensor([len(row) for row in rows])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ids = torch.tensor([number for row in rows for number in row])
    place = torch.arange(len(ids)) - torch.repeat_interleave(offsets[:-1], lengths)
    segments = (place > torch.repeat_interleave(lengths, lengths) // 2).long() * min(ours.config.type_vocab - 1, 1)
    is_token = torch.arange(int(lengths.max())) < lengths[:, None]
    padded = torch.full(is_token.shape, form.settings["pad_token_id"])
    padded_segments = torch.zeros_like(padded)
    padded[is_token], padded_segments[is_token] = ids, segments
    inputs = {"input_ids": padded, "attention_mask": is_token.long(), "token_type_ids": padded_segments}
    pairs: list[tuple[Tensor, Tensor]] = []
    with torch.inference_mode():
        scores, sentence = ours.score(ids, offsets, torch.arange(len(ids)), segments)
        made = theirs(**inputs)
        pairs.append((scores, (made.logits if "logits" in made else made.prediction_logits)[is_token]))
        if sentence is not None and "logits" not in made:
            pairs.append((sentence, made.sop_logits if "sop_logits" in made else made.seq_relationship_logits))
        hidden = ours.encoder(ids, offsets, segments)
        without_head = base(**inputs)
        pairs.append((hidden, without_head.last_hidden_state[is_token]))
        if ours.encoder.pooler.weight.any() and without_head.pooler_output is not None:
            pairs.append((ours.encoder.pool(hidden[offsets[:-1]]), without_head.pooler_output))
    differences = torch.stack([(mine - other).abs().max() for mine, other in pairs])
    return float(differences.max()), sum(mine.numel() for mine, _ in pairs)  # torch's max, unlike Python's, is NaN if one is
