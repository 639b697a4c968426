"""What the encoder is trained by: masked tokens, and whether two parts of a row belong together.

Losses come as sum and count, so that micro-batches of any sizes add up to the exact mean over the global batch; without a target the sum
is 0, not NaN.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from remask.model.config import EncoderConfig
from remask.model.encoder import Encoder, initialise
from remask.model.packing import pack


class Loss(NamedTuple):
    """One part of the loss, to be divided by what was counted over all micro-batches and ranks."""

    sum: Tensor
    counted: int


class MaskedTokenHead(nn.Module):
    """Hidden states of target positions to scores over the vocabulary, by the embedding table itself."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_size
        self.dense = nn.Linear(config.hidden, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.table_rows))
        # Hugging Face's RoBERTa has the exact form in its head whatever its layers have.
        self.approximate = "tanh" if config.activation == "gelu-tanh" and config.family != "roberta" else "none"
        self.vocab_size = config.vocab_size

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """(targets, hidden) and the table (table rows, width) -> (targets, vocabulary)."""
        transformed = self.norm(functional.gelu(self.dense(hidden), approximate=self.approximate))
        return functional.linear(transformed, words, self.bias)[:, : self.vocab_size]


class PretrainingModel(nn.Module):
    """The encoder with the heads that pretraining needs."""

    def __init__(self, config: EncoderConfig, sentence_task: bool) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.masked_tokens = MaskedTokenHead(config)
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
        scores, sentence = self.score(ids, offsets, positions, segments, documents)
        losses = {"masked_tokens": masked_token_loss(scores, targets, self.config.z_loss)}
        if sentence is not None and labels is not None:
            losses["sentence"] = sentence_loss(sentence, labels)
        return losses

    def score(
        self, ids: Tensor, offsets: Tensor, positions: Tensor, segments: Tensor | None = None, documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Scores at the positions (positions, vocabulary), and of the sentence task (rows, 2)."""
        packing = pack(offsets, documents).to(ids.device)
        hidden = self.encoder.encode(ids, packing, segments)
        scores = self.masked_tokens(hidden[packing.places[positions.to(torch.int64)]], self.encoder.embeddings.words.weight)
        return scores, None if self.sentence is None else self.sentence(self.encoder.pool(hidden[packing.first_tokens]))


def masked_token_loss(scores: Tensor, targets: Tensor, z_loss: float = 0.0) -> Loss:
    """Scores (targets, vocabulary) against targets (targets,)."""
    total = functional.cross_entropy(scores, targets.to(torch.int64), reduction="sum")
    if z_loss:
        total = total + z_loss * scores.logsumexp(-1).square().sum()
    return Loss(sum=total, counted=len(targets))


def sentence_loss(scores: Tensor, labels: Tensor) -> Loss:
    """Scores (rows, 2) against labels (rows,). Rows with one part, labelled -1, do not count."""
    loss = functional.cross_entropy(scores, labels.to(torch.int64), ignore_index=-1, reduction="sum")
    return Loss(sum=loss, counted=int((labels >= 0).sum()))
