"""Floating point operations of an unpadded batch, exactly: attention by the rows' own lengths, the head by the targets.

A multiplication with its addition counts as two. Norms, activations and sums are left out, as everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from remask.model.config import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Of one forward and one backward pass."""

    forward: int

    @property
    def backward(self) -> int:
        """Every product of the forward pass has two in the backward pass: for its input and for its weight or other input."""
        return 2 * self.forward

    @property
    def total(self) -> int:
        return self.forward + self.backward


def count_flops(config: EncoderConfig, lengths: Sequence[int], targets: int, sentence_rows: int = 0) -> Flops:
    """For rows (or documents, where these are kept apart) of these lengths with so many targets in all.

    `sentence_rows` of them also have the sentence task.
    """
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    hidden, width = config.hidden, config.embedding_size
    projection = tokens * width * hidden if width < hidden else 0
    layer = tokens * (4 * hidden**2 + 2 * hidden * config.ffn) + 2 * squares * hidden
    head = targets * (hidden * width + width * config.vocab_size)
    sentence = sentence_rows * (hidden**2 + 2 * hidden)
    return Flops(forward=2 * (projection + config.layers * layer + head + sentence))
