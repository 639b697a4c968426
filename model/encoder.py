"""The encoder: embeddings, unique blocks looped over by the config's layer map, and the pooler. No padding, no rank, no precision."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from remask.model.attention import attend
from remask.model.config import EncoderConfig
from remask.model.dropout import dropout
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
        self.recomputed: frozenset[int] = frozenset()
        self.apply(lambda module: initialise(module, config.init_std))
        if config.norm == "pre":
            _scale_outputs(self, config.layers)
        with torch.no_grad():
            self.embeddings.words.weight[config.vocab_size :] = 0

    def forward(self, ids: Tensor, offsets: Tensor, segments: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """ids (tokens,), offsets (rows + 1,), segments (tokens,) -> hidden states (tokens, hidden), in the order of the ids.

        With `documents`, offsets as those of the rows, tokens attend to their own document only.
        """
        packing = pack(offsets, documents).to(ids.device)
        return self.encode(ids, packing, segments)[packing.places]

    def encode(self, ids: Tensor, packing: Packing, segments: Tensor | None = None) -> Tensor:
        """The same in the packing's own order, which the heads can read directly."""
        hidden = self.embed(ids, packing, segments)
        for layer in range(self.config.layers):
            if self.training and layer in self.recomputed:
                hidden = checkpoint(self.apply_layer, layer, hidden, packing, use_reentrant=False)
            else:
                hidden = self.apply_layer(layer, hidden, packing)
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def embed(self, ids: Tensor, packing: Packing, segments: Tensor | None = None) -> Tensor:
        """(tokens,) in the order of the batch -> what the first layer reads (tokens, hidden), in the packing's order."""
        order = packing.order
        hidden: Tensor = self.embeddings(ids[order], packing.positions, None if segments is None else segments[order])
        return hidden

    def apply_layer(self, layer: int, hidden: Tensor, packing: Packing) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden), by the weights that the layer map gives this layer."""
        attention, ffn = self.config.layer_map[layer]
        applied: Tensor = self.ffns[ffn](self.attentions[attention](hidden, packing))
        return applied

    def recompute(self, fraction: float) -> None:
        """Keep only the input of this share of the layers, spread evenly; the backward pass computes the rest of them again.

        Non-reentrant: a shared layer's gradient is summed over its uses as without it, also under ZeRO.
        """
        layers = self.config.layers
        self.recomputed = frozenset(i for i in range(layers) if int((i + 1) * fraction) > int(i * fraction))

    def compile_parts(self) -> None:
        """Compile attention and feed-forward parts in place with torch.compile, for any number of tokens; shared ones once."""
        for part in [*self.attentions, *self.ffns]:
            part.compile(dynamic=True)

    def pool(self, first: Tensor) -> Tensor:
        """Hidden states of the rows' first tokens (rows, hidden) -> (rows, hidden) for the sentence task."""
        return torch.tanh(self.pooler(first))


class Embeddings(nn.Module):
    """Words, positions and types summed, normalised, and where the tables are narrower than the model, widened."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_size
        self.words = nn.Embedding(config.table_rows, width)
        self.positions = nn.Embedding(config.position_offset + config.positions, width)
        self.types = nn.Embedding(config.type_vocab, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.projection = nn.Linear(width, config.hidden) if width < config.hidden else None
        self.last_norm = nn.LayerNorm(config.hidden, eps=config.norm_eps) if config.embedding_norm else None
        self.position_offset, self.dropout = config.position_offset, config.dropout

    def forward(self, ids: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        """(tokens,) each -> (tokens, hidden)."""
        types = self.types.weight[0] if segments is None else self.types(segments.to(torch.int64))
        summed = self.words(ids) + self.positions(positions + self.position_offset) + types
        hidden = dropout(self.norm(summed), self.dropout, self.training)
        hidden = hidden if self.projection is None else self.projection(hidden)
        return hidden if self.last_norm is None else self.last_norm(hidden)


class Attention(nn.Module):
    """Self-attention with its residual and norm; queries, keys and values come from one matrix."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        width = config.hidden // config.heads
        self.query_norm, self.key_norm = (
            nn.LayerNorm(width, eps=config.norm_eps) if config.query_key_norm else nn.Identity() for _ in range(2)
        )
        self.heads, self.pre = config.heads, config.norm == "pre"
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout

    def forward(self, hidden: Tensor, packing: Packing) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        inner = self.norm(hidden) if self.pre else hidden
        queries, keys, values = self.qkv(inner).view(len(hidden), 3, self.heads, -1).unbind(1)
        queries, keys = self.query_norm(queries), self.key_norm(keys)
        mixed = attend(queries, keys, values, packing, self.attention_dropout if self.training else 0.0)
        added = hidden + dropout(self.output(mixed.flatten(1)), self.dropout, self.training)
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
        added = hidden + dropout(self.output(wide), self.dropout, self.training)
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
