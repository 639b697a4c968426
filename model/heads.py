"""What the encoder is trained by: masked tokens, and whether two parts of a row belong together.

Losses come as sum and count, so that micro-batches of any sizes add up to the exact mean over the global batch; without a target the sum
is 0, not NaN.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from remask.model.config import EncoderConfig
from remask.model.encoder import Encoder, initialise
from remask.model.packing import pack


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One part of the loss, to be divided by its count over all micro-batches and ranks."""

    sum: Tensor
    count: int


class MaskedTokenHead(nn.Module):
    """Hidden states of target positions to scores over the vocabulary, by the embedding table itself."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_size
        self.dense = nn.Linear(config.hidden, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        # Hugging Face's RoBERTa has the exact form in its head whatever its layers have.
        self.approximate = "tanh" if config.activation == "gelu-tanh" and config.family != "roberta" else "none"

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """(targets, hidden) and the table (vocabulary, width) -> (targets, vocabulary)."""
        transformed = self.norm(functional.gelu(self.dense(hidden), approximate=self.approximate))
        return functional.linear(transformed, words, self.bias)


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

    def forward(self, ids: Tensor, offsets: Tensor, positions: Tensor, segments: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Scores at the target positions (targets, vocabulary), and of the sentence task (rows, 2)."""
        packing = pack(offsets.cpu())
        hidden = self.encoder.encode(ids, packing, segments)
        targets = hidden[packing.places.to(ids.device)[positions.to(torch.int64)]]
        scores = self.masked_tokens(targets, self.encoder.embeddings.words.weight)
        if self.sentence is None:
            return scores, None
        return scores, self.sentence(self.encoder.pool(hidden[packing.first_tokens.to(ids.device)]))


def masked_token_loss(scores: Tensor, targets: Tensor) -> Loss:
    return Loss(sum=functional.cross_entropy(scores, targets.to(torch.int64), reduction="sum"), count=len(targets))


def sentence_loss(scores: Tensor, labels: Tensor) -> Loss:
    """Rows with one part, labelled -1, do not count."""
    loss = functional.cross_entropy(scores, labels.to(torch.int64), ignore_index=-1, reduction="sum")
    return Loss(sum=loss, count=int((labels >= 0).sum()))
