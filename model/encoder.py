"""The encoder: embeddings, unique blocks looped over by the config's layer map, and the pooler. No padding, no rank, no precision."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from remask.model.attention import attend
from remask.model.config import EncoderConfig
from remask.model.packing import Packing, pack


class Encoder(nn.Module):
    """Embeddings, blocks and pooler, without the heads: its parameters are those that the papers count."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        attentions, ffns = (len({pair[i] for pair in config.layer_map}) for i in (0, 1))
        self.attentions = nn.ModuleList(Attention(config) for _ in range(attentions))
        self.ffns = nn.ModuleList(FeedForward(config) for _ in range(ffns))
        self.final_norm = nn.LayerNorm(config.hidden, eps=config.norm_eps) if config.norm == "pre" else None
        self.pooler = nn.Linear(config.hidden, config.hidden)
        self.apply(lambda module: initialise(module, config.init_std))
        if config.norm == "pre":
            _scale_outputs(self, config.layers)

    def forward(self, ids: Tensor, offsets: Tensor, segments: Tensor | None = None) -> Tensor:
        """ids (tokens,), offsets (rows + 1,), segments (tokens,) -> hidden states (tokens, hidden), in the order of the ids."""
        packing = pack(offsets.cpu())
        hidden = self.encode(ids, packing, segments)
        return hidden[packing.places.to(hidden.device)]

    def encode(self, ids: Tensor, packing: Packing, segments: Tensor | None = None) -> Tensor:
        """The same in the packing's own order, which the heads can read directly."""
        order = packing.order.to(ids.device)
        hidden: Tensor = self.embeddings(ids[order], packing.positions.to(ids.device), None if segments is None else segments[order])
        for attention, ffn in self.config.layer_map:
            hidden = self.attentions[attention](hidden, packing)
            hidden = self.ffns[ffn](hidden)
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def pool(self, first: Tensor) -> Tensor:
        """Hidden states of the rows' first tokens (rows, hidden) -> (rows, hidden) for the sentence task."""
        return torch.tanh(self.pooler(first))


class Embeddings(nn.Module):
    """Words, positions and types summed, normalised, and where the tables are narrower than the model, widened."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_size
        self.words = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.position_offset + config.positions, width)
        self.types = nn.Embedding(config.type_vocab, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.projection = nn.Linear(width, config.hidden) if width < config.hidden else None
        self.position_offset, self.dropout = config.position_offset, config.dropout

    def forward(self, ids: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        """(tokens,) each -> (tokens, hidden)."""
        types = self.types.weight[0] if segments is None else self.types(segments.to(torch.int64))
        summed = self.words(ids) + self.positions(positions + self.position_offset) + types
        hidden = functional.dropout(self.norm(summed), self.dropout, self.training)
        return hidden if self.projection is None else self.projection(hidden)


class Attention(nn.Module):
    """Self-attention with its residual and norm; queries, keys and values come from one matrix."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        self.heads, self.pre = config.heads, config.norm == "pre"
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout

    def forward(self, hidden: Tensor, packing: Packing) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        inner = self.norm(hidden) if self.pre else hidden
        queries, keys, values = self.qkv(inner).view(len(hidden), 3, self.heads, -1).unbind(1)
        mixed = attend(queries, keys, values, packing, self.attention_dropout if self.training else 0.0)
        added = hidden + functional.dropout(self.output(mixed.flatten(1)), self.dropout, self.training)
        return added if self.pre else self.norm(added)


class FeedForward(nn.Module):
    """The feed-forward part with its residual and norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden, config.ffn)
        self.output = nn.Linear(config.ffn, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        self.pre, self.dropout = config.norm == "pre", config.dropout
        self.approximate = "tanh" if config.activation == "gelu-tanh" else "none"

    def forward(self, hidden: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        inner = self.norm(hidden) if self.pre else hidden
        wide = functional.gelu(self.inner(inner), approximate=self.approximate)
        added = hidden + functional.dropout(self.output(wide), self.dropout, self.training)
        return added if self.pre else self.norm(added)


def initialise(module: nn.Module, std: float) -> None:
    """Weights from a normal distribution cut at two standard deviations, biases 0, norms 1."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def _scale_outputs(encoder: Encoder, layers: int) -> None:
    """Outputs into the residual stream start smaller by the root of how many there are, so that a deep pre-norm sum does not grow."""
    with torch.no_grad():
        for part in [*encoder.attentions, *encoder.ffns]:
            part.get_parameter("output.weight").div_((2 * layers) ** 0.5)
