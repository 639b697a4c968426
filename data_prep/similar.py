"""Words that are used alike, for MacBERT's masking: a word is replaced by a similar one of as many tokens.

The table is a text file, one word a line: the word, a tab, and its similar words with spaces between them. `make_table` learns it from a
shard set with word2vec; any other source will do.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from remask.data_prep.blocks import Blocks
from remask.data_prep.engines import Engine
from remask.data_prep.errors import InputError
from remask.data_prep.sequences import make_slots


@dataclass(frozen=True, kw_only=True)
class SimilarWords:
    """Words as token sequences, each with similar ones of the same number of tokens."""

    words: NDArray[np.uint32]
    word_offsets: NDArray[np.int64]
    slots: NDArray[np.int64]
    others: NDArray[np.int32]
    other_offsets: NDArray[np.int64]
    """The similar words of entry e lie end to end in `others[other_offsets[e]:other_offsets[e + 1]]`."""

    @property
    def arrays(self) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        return self.words, self.word_offsets, self.slots, self.others, self.other_offsets

    def __len__(self) -> int:
        return len(self.word_offsets) - 1


def make_similar(table: dict[tuple[int, ...], list[tuple[int, ...]]]) -> SimilarWords:
    """From token sequences; those of another length than the word's are left out, and the word itself."""
    kept = {word: [other for other in others if len(other) == len(word) and other != word] for word, others in table.items() if word}
    kept = {word: others for word, others in kept.items() if others}
    words = np.array([token for word in kept for token in word], dtype=np.uint32)
    offsets = np.cumsum([0, *map(len, kept)], dtype=np.int64)
    return SimilarWords(
        words=words,
        word_offsets=offsets,
        slots=make_slots(words, offsets),
        others=np.array([token for others in kept.values() for other in others for token in other], dtype=np.int32),
        other_offsets=np.cumsum([0, *(sum(map(len, others)) for others in kept.values())], dtype=np.int64),
    )


NO_SIMILAR = make_similar({})


def read_table(file: Path, engine: Engine) -> SimilarWords:
    """A table as a file; each word counts alone and after a space, as its similar words then do."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error}); give a table made by remask prep similar") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        word, tab, others = line.partition("\t")
        if not line.strip():
            continue
        if not tab or not word.strip() or not others.strip():
            raise InputError(
                f"{file}: line {number} is {line[:60]!r}; it must be a word, a tab, and similar words with spaces between them"
            )
        rows.append([word.strip(), *others.split()])
    if not rows:
        raise InputError(f"{file}: no word in it; make a table with remask prep similar")
    table: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for space in ("", " "):
        ids, counts = engine.encode([(space + word).encode() for row in rows for word in row])
        ends = iter(np.cumsum(counts).tolist())
        begin = 0
        for row in rows:
            sequences = []
            for _ in row:
                end = next(ends)
                sequences.append(tuple(ids[begin:end].tolist()))
                begin = end
            table.setdefault(sequences[0], sequences[1:])
    return make_similar(table)


def words_of(blocks: Blocks) -> Iterator[list[tuple[int, ...]]]:
    """Every sentence of a set as words, each a sequence of tokens."""
    protected = set(blocks.manifest.specials.values())
    for arrays in blocks.read_all():
        ids, starts = arrays["ids"].tolist(), np.unpackbits(arrays["words"].view(np.uint8), count=len(arrays["ids"])).tolist()
        begin = 0
        for end in arrays["sentences"].tolist():
            sentence: list[tuple[int, ...]] = []
            for token, is_start in zip(ids[begin:end], starts[begin:end], strict=True):
                if token in protected:
                    continue
                if is_start or not sentence:
                    sentence.append((token,))
                else:
                    sentence[-1] = (*sentence[-1], token)
            begin = end
            yield sentence


def learn(
    sentences: Iterable[list[str]], size_of: Callable[[str], int], least_count: int, threshold: float, most: int, seed: int
) -> Iterator[tuple[str, list[str]]]:
    """(word, its most similar words of the same size, the best first) by word2vec; words without one above the threshold are left out."""
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise InputError("word2vec needs gensim; install it with pip install 'remask[similar]'") from error
    model = Word2Vec(vector_size=100, window=5, min_count=least_count, workers=1, seed=seed, epochs=5)
    model.build_vocab(sentences)
    if not len(model.wv):
        return
    model.train(sentences, total_examples=model.corpus_count, epochs=model.epochs)
    vectors = model.wv.get_normed_vectors()
    names = model.wv.index_to_key
    sizes = np.array([size_of(name) for name in names])
    for first in range(0, len(names), 512):
        nearness = vectors[first : first + 512] @ vectors.T
        for number, row in enumerate(nearness, start=first):
            row[number] = -1
            row[sizes != sizes[number]] = -1
            best = np.argsort(-row)[:most]
            found = [names[i] for i in best if row[i] >= threshold]
            if found:
                yield names[number], found
