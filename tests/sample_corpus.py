"""Two thousand small documents in which everything occurs: paragraphs, terminators of both scripts, numbers, abbreviations."""

from remask.data_prep import tokenizer
from remask.data_prep.tokenizer import Kind, Vocabulary

WORDS = [
    "the",
    "model",
    "reads",
    "masked",
    "tokens",
    "and",
    "predicts",
    "words",
    "from",
    "both",
    "sides",
    "of",
    "a",
    "sentence;",
    "naïve",
    "café",
    "3.5",
    "don't",
    "U.S.",
    "你好",
    "世界",
]


def document(number: int) -> str:
    """A text of a few paragraphs that depends on its number alone."""
    sentences = []
    for i in range(1 + number % 17):
        words = [WORDS[(number * 7 + i * 13 + k * k) % len(WORDS)] for k in range(3 + (number + i) % 20)]
        sentences.append(" ".join(words).capitalize() + (".", "!", "?", "。")[(number + i) % 4])
    return "\n\n".join(" ".join(sentences[k : k + 5]) for k in range(0, len(sentences), 5))


DOCUMENTS = [f"Document {i} begins here. {document(i)}" for i in range(2000)]


def trained(kind: Kind) -> Vocabulary:
    return tokenizer.train(iter(DOCUMENTS[::4]), kind, 600 if kind == "bpe" else 200, lowercase=False)
