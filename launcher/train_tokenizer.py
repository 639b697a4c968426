"""`remask tokenizer train`: a tokenizer.json of the family's usual form, from the corpus that it will encode."""

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import AskedFormat, Source, plan, sample
from remask.data_prep.files import written_whole
from remask.launcher.corpora import sources_of
from remask.launcher.errors import UserError
from remask.launcher.options import parse

if TYPE_CHECKING:
    from remask.data_prep.tokenizer import Kind, Vocabulary

log = logging.getLogger(__name__)

_PIECE_BYTES = 2 * 10**6


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """Train a tokenizer on a sample of a corpus.

    Special tokens come first and carry the family's names. BPE comes out the same from run to run; WordPiece and Unigram do
    not, so keep the file: its hash goes into every shard set made with it.

    Examples:
      remask tokenizer train corpus.jsonl --out tokenizer.json
      remask tokenizer train 'wiki/*.jsonl.gz' --kind wordpiece --lowercase --vocab-size 30522 --out uncased.json
    """

    inputs: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Files, folders and globs, as for remask prep."""
    out: Path
    """The tokenizer.json to write; an existing one is not overwritten, since shards may depend on it."""
    kind: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    """bpe: RoBERTa's byte-level BPE, the fastest to encode; wordpiece: BERT's; unigram: ALBERT's SentencePiece form."""
    vocab_size: int = 30000
    """Entries with the five special tokens; more make shorter rows and a larger embedding table."""
    lowercase: bool = False
    """Fold capitals (wordpiece and unigram); the export keeps this setting."""
    sample_mb: int = 200
    """MB of stored text to learn from, spread evenly over the corpus; time and memory grow with it."""
    format: AskedFormat = "auto"
    """How to read the inputs, as for remask prep."""
    field: str = "text"
    """JSON field or Parquet column that holds the text."""
    clean: CleanConfig = dataclasses.field(default_factory=CleanConfig)


def main(args: Sequence[str]) -> int:
    """train a tokenizer on a corpus"""
    if args[:1] not in (["train"], ["--help"], ["-h"]):
        raise UserError(f"remask tokenizer: {' '.join(args[:1]) or 'nothing'} was given, the verb is train: remask tokenizer train --help")
    options = parse(TokenizerOptions, args[1:] or ["--help"], "tokenizer train")
    if not options.inputs:
        raise UserError("remask tokenizer train: the corpus is missing, such as remask tokenizer train corpus.jsonl --out tokenizer.json")
    least = 300 if options.kind == "bpe" else 10
    for name, (low, high) in {"vocab_size": (least, 10**7), "sample_mb": (1, 10**9)}.items():
        if not low <= (value := getattr(options, name)) <= high:
            raise UserError(f"remask tokenizer train: --{name.replace('_', '-')}: {value} was given, it must be from {low} to {high}")
    if options.lowercase and options.kind == "bpe":
        raise UserError("remask tokenizer train: --lowercase goes with wordpiece and unigram; byte-level BPE keeps the text as it is")
    if options.out.exists():
        raise UserError(f"remask tokenizer train: {options.out} exists and is not overwritten; choose another name or remove it")
    return _train(options)


def _train(options: TokenizerOptions) -> int:
    sources = sources_of(options.inputs, options.format, options.field)
    vocabulary = train_on(sources, options.clean, options.kind, options.vocab_size, options.lowercase, options.sample_mb)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(options.out, overwrite=False) as stream:
            stream.write(vocabulary.text.encode())
    except OSError as error:
        raise UserError(f"{options.out}: cannot be written ({error.strerror}); choose another place with --out") from error
    print(f"{options.kind} with {len(vocabulary.pieces):,} entries in {options.out}, hash {vocabulary.digest}")
    return 0


def train_on(
    sources: tuple[Source, ...], clean: CleanConfig, kind: "Kind", vocab_size: int, lowercase: bool, sample_mb: int
) -> "Vocabulary":
    """A tokenizer from a sample that is spread evenly over the sources."""
    from remask.data_prep.item import Counts, cleaned_documents
    from remask.data_prep.tokenizer import train

    counts = Counts()
    pieces = sample(plan(sources, _PIECE_BYTES), sample_mb * 10**6)
    documents = cleaned_documents(pieces, clean, counts)
    first = next(documents, None)
    if first is None:
        reasons = "; ".join(f"{reason}, first at {places[0]}" for reason, places in counts.examples.items())
        raise UserError(f"no document of the sample can be used: {reasons or 'the files have no bytes'}")
    vocabulary = train((data.decode() for _, data in chain([first], documents)), kind, vocab_size, lowercase)
    if len(vocabulary.pieces) < vocab_size:
        log.warning("the sample gives only %d entries, %d were asked for; take a larger --sample-mb", len(vocabulary.pieces), vocab_size)
    return vocabulary
