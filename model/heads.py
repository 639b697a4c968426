"""What the encoder is trained by: masked tokens, and whether two parts of a row belong together.

Losses come as sum and count, so that micro-batches of any sizes add up to the exact mean over the global batch; without a target the sum
is 0, not NaN.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from remask.model.config import EncoderConfig
from remask.model.encoder import Encoder, LinearGelu, initialise
from remask.model.operations import REFERENCE, Operations
from remask.model.packing import pack


class Loss(NamedTuple):
    """One part of the loss, to be divided by what was counted over all micro-batches and ranks."""

    sum: Tensor
    counted: int


class MaskedTokenHead(nn.Module):
    """Hidden states of target positions to scores over the vocabulary, by the embedding table itself, or to their loss."""

    def __init__(self, config: EncoderConfig, operations: Operations) -> None:
        super().__init__()
        width = config.embedding_size
        # Hugging Face's RoBERTa has the exact form in its head whatever its layers have.
        tanh = config.activation == "gelu-tanh" and config.family != "roberta"
        self.dense = LinearGelu(config.hidden, width, tanh, operations)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.z_loss, self.operations = config.z_loss, operations

    def forward(self, hidden: Tensor, words: Tensor, targets: Tensor) -> Loss:
        """(targets, hidden), the table (vocabulary, width) and what stood there (targets,) -> their loss."""
        transformed = self.norm(self.dense(hidden))
        total = self.operations.target_loss(transformed, words, self.bias, targets.to(torch.int64), self.z_loss)
        return Loss(sum=total, counted=len(targets))

    def score(self, hidden: Tensor, words: Tensor) -> Tensor:
        """(n, hidden) and the table -> (n, vocabulary)."""
        return functional.linear(self.norm(self.dense(hidden)), words, self.bias)


class PretrainingModel(nn.Module):
    """The encoder with the heads that pretraining needs."""

    def __init__(self, config: EncoderConfig, sentence_task: bool, operations: Operations = REFERENCE) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, operations)
        self.masked_tokens = MaskedTokenHead(config, operations)
        self.sentence = nn.Linear(config.hidden, 2) if sentence_task else None
        for head in (self.masked_tokens, self.sentence):
            if head is not None:
                head.apply(lambda module: initialise(module, config.init_std))

    def forward(
        self,
        ids: Tensor,
        offsets: Tensor,
        positions: Tensor,
        targets: Tensor,
        segments: Tensor | None = None,
        labels: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> dict[str, Loss]:
        """Losses by part: `masked_tokens` of targets (targets,) at positions (targets,), and with labels (rows,) `sentence`."""
        at_positions, at_first = self.encode(ids, offsets, positions, segments, documents)
        losses: dict[str, Loss] = {"masked_tokens": self.masked_tokens(at_positions, self.encoder.embeddings.words.weight, targets)}
        if self.sentence is not None and labels is not None:
            losses["sentence"] = sentence_loss(self.sentence(self.encoder.pool(at_first)), labels)
        return losses

    def score(
        self, ids: Tensor, offsets: Tensor, positions: Tensor, segments: Tensor | None = None, documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Scores at the positions (positions, vocabulary), and of the sentence task (rows, 2)."""
        at_positions, at_first = self.encode(ids, offsets, positions, segments, documents)
        scores = self.masked_tokens.score(at_positions, self.encoder.embeddings.words.weight)
        return scores, None if self.sentence is None else self.sentence(self.encoder.pool(at_first))

    def encode(
        self, ids: Tensor, offsets: Tensor, positions: Tensor, segments: Tensor | None, documents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states at the positions, and at the first token of each row."""
        packing = pack(offsets, documents).to(ids.device)
        hidden = self.encoder.encode(ids, packing, segments)
        return hidden[packing.places[positions.to(torch.int64)]], hidden[packing.first_tokens]


def sentence_loss(scores: Tensor, labels: Tensor) -> Loss:
    """Scores (rows, 2) against labels (rows,). Rows that the task has no question about, labelled -1, do not count."""
    loss = functional.cross_entropy(scores, labels.to(torch.int64), ignore_index=-1, reduction="sum")
    return Loss(sum=loss, counted=int((labels >= 0).sum()))
