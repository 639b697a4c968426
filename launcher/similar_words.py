"""`remask prep similar`: a table of words that are used alike, learned from a shard set, for MacBERT's masking."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import tyro

from remask.data_prep.files import written_whole
from remask.launcher.errors import UserError
from remask.launcher.options import parse

if TYPE_CHECKING:
    from remask.data_prep.blocks import Blocks


@dataclass(frozen=True, kw_only=True)
class SimilarOptions:
    """Learn which words are used alike with word2vec (gensim), and write them as a table, one word a line.

    The strategy `similar` replaces a word by one of its line that has as many tokens. The table is text: read it, mend it, or make
    your own.

    Examples:
      remask prep similar shards --out similar.tsv
      remask inspect shards --strategy similar --similar-words similar.tsv
    """

    shards: Annotated[Path, tyro.conf.Positional]
    """Folder that remask prep has made."""
    out: Path
    """The table: a word, a tab, and its similar words with spaces between them, the most similar first."""
    least_count: int = 20
    """Words that come less often are left out: word2vec knows too little of them."""
    threshold: float = 0.5
    """Least cosine of two words' vectors, from 0 to 1; higher gives fewer and closer words."""
    top_k: int = 10
    """Most similar words of one word."""
    seed: int = 1
    """Of word2vec; with one thread, as here, the same seed gives the same table."""


def main(args: Sequence[str]) -> int:
    """learn a table of similar words from a shard set"""
    options = parse(SimilarOptions, args, "prep similar")
    if not 0 <= options.threshold <= 1:
        raise UserError(f"remask prep similar: --threshold: {options.threshold} was given, it must be from 0 to 1")
    for name in ("least_count", "top_k"):
        if (value := getattr(options, name)) < 1:
            raise UserError(f"remask prep similar: --{name.replace('_', '-')}: {value} was given, it must be at least 1")
    if not 0 <= options.seed < 2**32:
        raise UserError(f"remask prep similar: --seed: {options.seed} was given, it must be from 0 to 2^32 - 1")
    if options.out.exists():
        raise UserError(f"remask prep similar: --out: {options.out} is there already; remove it, or give another name")
    if not options.out.parent.is_dir():
        raise UserError(f"remask prep similar: --out: the folder of {options.out} does not exist")
    from remask.data_prep.blocks import Blocks
    from remask.data_prep.similar import learn

    sentences = _Sentences(Blocks(options.shards))
    words = 0
    with _written(options.out) as stream:
        for word, others in learn(sentences, sentences.size_of, options.least_count, options.threshold, options.top_k, options.seed):
            stream.write(f"{word}\t{' '.join(others)}\n".encode())
            words += 1
        if not words:
            raise UserError(f"remask prep similar: no two words are that similar; lower --threshold ({options.threshold}) or --least-count")
    print(f"{words:,} words with similar ones in {options.out}")
    return 0


class _Sentences:
    """The sentences of a set as words in letters; word2vec goes through them several times."""

    def __init__(self, blocks: "Blocks") -> None:
        from tokenizers import Tokenizer

        from remask.data_prep.tokenizer import load as load_tokenizer

        self.blocks = blocks
        self.tokenizer = Tokenizer.from_str(load_tokenizer(blocks.folder).text)
        self.texts: dict[tuple[int, ...], str] = {}
        self.sizes: dict[str, int] = {}

    def __iter__(self) -> Iterator[list[str]]:
        from remask.data_prep.similar import words_of

        for sentence in words_of(self.blocks):
            yield [text for word in sentence if (text := self._text(word))]

    def _text(self, word: tuple[int, ...]) -> str:
        """A word of letters as it is written; empty for marks and numbers, which nobody wants to see replaced by others."""
        if word not in self.texts:
            text = self.tokenizer.decode(list(word)).strip()
            self.texts[word] = text if text.isalpha() else ""
            self.sizes.setdefault(text, len(word))
        return self.texts[word]

    def size_of(self, text: str) -> int:
        """Tokens of a word, as it was first met."""
        return self.sizes[text]


@contextmanager
def _written(file: Path) -> Iterator[BinaryIO]:
    try:
        with written_whole(file, overwrite=False) as stream:
            yield stream
    except OSError as error:
        raise UserError(f"remask prep similar: --out: {file} cannot be written ({error.strerror})") from error
