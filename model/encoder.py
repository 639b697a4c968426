"""The encoder: embeddings, unique blocks looped over by the config's layer map, and the pooler. No padding, no rank, no precision."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from remask.model.attention import attend
from remask.model.config import EncoderConfig
from remask.model.operations import REFERENCE, Operations
from remask.model.packing import Packing, pack


class Encoder(nn.Module):
    """Embeddings, blocks and pooler, without the heads: its parameters are those that the papers count."""

    def __init__(self, config: EncoderConfig, operations: Operations = REFERENCE) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config, operations)
        attentions, ffns = (len({pair[i] for pair in config.layer_map}) for i in (0, 1))
        self.attentions = nn.ModuleList(Attention(config, operations) for _ in range(attentions))
        self.ffns = nn.ModuleList(FeedForward(config, operations) for _ in range(ffns))
        self.final_norm = AddNorm(config, operations) if config.norm == "pre" else None
        self.pooler = nn.Linear(config.hidden, config.hidden)
        self.recomputed: frozenset[int] = frozenset()
        self.apply(lambda module: initialise(module, config.init_std))
        if config.norm == "pre":
            _scale_outputs(self, config.layers)

    def forward(self, ids: Tensor, offsets: Tensor, segments: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """ids (tokens,), offsets (rows + 1,), segments (tokens,) -> hidden states (tokens, hidden), in the order of the ids.

        With `documents`, offsets as those of the rows, tokens attend to their own document only.
        """
        packing = pack(offsets, documents).to(ids.device)
        return self.encode(ids, packing, segments)[packing.places]

    def encode(self, ids: Tensor, packing: Packing, segments: Tensor | None = None) -> Tensor:
        """The same in the packing's own order, which the heads can read directly."""
        hidden, normed = self.embed(ids, packing, segments)
        for layer in range(self.config.layers):
            if self.training and layer in self.recomputed:
                hidden, normed = checkpoint(self.apply_layer, layer, hidden, normed, packing, use_reentrant=False)
            else:
                hidden, normed = self.apply_layer(layer, hidden, normed, packing)
        return normed

    def embed(self, ids: Tensor, packing: Packing, segments: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(tokens,) in the order of the batch -> what the first layer takes, in the packing's order."""
        order = packing.order
        if len(ids) != len(order):
            raise ValueError(f"ids: {len(ids)} tokens were given, the offsets end at {len(order)}")
        hidden: Tensor = self.embeddings(ids[order], packing.positions, None if segments is None else segments[order])
        if self.config.norm == "pre":
            hidden, normed = self._norm_before(0)(None, hidden)
            return hidden, normed
        return hidden, hidden

    def apply_layer(self, layer: int, hidden: Tensor, normed: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """Sums and what the next part reads of them, (tokens, hidden) each, by the weights that the layer map gives this layer.

        With post-norm both are the same: a part's norm stands behind it. With pre-norm each norm stands before its part, so behind a
        part comes the norm of the next.
        """
        attention, ffn = self._parts_of(layer)
        mixed = attention(normed, packing)
        if self.config.norm == "post":
            _, hidden = attention.norm(mixed, hidden)
            _, hidden = ffn.norm(ffn(hidden), hidden)
            return hidden, hidden
        hidden, normed = ffn.norm(mixed, hidden)
        summed: tuple[Tensor, Tensor] = self._norm_before(layer + 1)(ffn(normed), hidden)
        return summed

    def _parts_of(self, layer: int) -> "tuple[Attention, FeedForward]":
        attention, ffn = self.config.layer_map[layer]
        return self.attentions[attention], self.ffns[ffn]  # type: ignore[return-value]

    def _norm_before(self, layer: int) -> "AddNorm":
        """With pre-norm: what a layer's attention reads through; behind the last layer, the final norm."""
        return self._parts_of(layer)[0].norm if layer < self.config.layers else self.final_norm  # type: ignore[return-value]

    def recompute(self, fraction: float) -> None:
        """Keep only the input of this share of the layers, spread evenly; the backward pass computes the rest of them again.

        Non-reentrant: a shared layer's gradient is summed over its uses as without it, also under ZeRO.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction: {fraction} was given, it must be from 0 to 1")
        layers = self.config.layers
        count = max(round(fraction * layers), int(fraction > 0))
        self.recomputed = frozenset(i for i in range(layers) if (i + 1) * count // layers > i * count // layers)

    def compile_parts(self) -> None:
        """Compile attention and feed-forward parts in place with torch.compile, for any number of tokens; shared ones once."""
        for part in [*self.attentions, *self.ffns]:
            part.compile(dynamic=True)

    def pool(self, first: Tensor) -> Tensor:
        """Hidden states of the rows' first tokens (rows, hidden) -> (rows, hidden) for the sentence task."""
        return torch.tanh(self.pooler(first))


class Embeddings(nn.Module):
    """Words, positions and types summed, normalised, and where the tables are narrower than the model, widened."""

    def __init__(self, config: EncoderConfig, operations: Operations) -> None:
        super().__init__()
        width = config.embedding_size
        self.words = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.position_offset + config.positions, width)
        self.types = nn.Embedding(config.type_vocab, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.projection = nn.Linear(width, config.hidden) if width < config.hidden else None
        self.last_norm = nn.LayerNorm(config.hidden, eps=config.norm_eps) if config.embedding_norm else None
        self.position_offset, self.rate, self.operations = config.position_offset, config.dropout, operations

    def forward(self, ids: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        """(tokens,) each -> (tokens, hidden)."""
        types = torch.zeros_like(ids) if segments is None else segments
        tables = (self.words.weight, self.positions.weight, self.types.weight)
        indices = (ids.to(torch.int64), positions + self.position_offset, types.to(torch.int64))
        norm, rate = self.norm, self.rate if self.training else 0.0
        hidden = self.operations.embed(*tables, *indices, norm.weight, norm.bias, norm.eps, rate)
        hidden = hidden if self.projection is None else self.projection(hidden)
        return hidden if self.last_norm is None else self.last_norm(hidden)


class AddNorm(nn.Module):
    """What a part gives is dropped out, added to the sum so far, and that is normalised."""

    def __init__(self, config: EncoderConfig, operations: Operations) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden))
        self.bias = nn.Parameter(torch.zeros(config.hidden))
        self.eps, self.rate, self.operations = config.norm_eps, config.dropout, operations

    def forward(self, added: Tensor | None, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, hidden) each, nothing added before the first part -> the new sum, and that normalised."""
        if added is None:
            return hidden, functional.layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.eps)
        return self.operations.add_norm(added, hidden, self.weight, self.bias, self.eps, self.rate if self.training else 0.0)


class LinearGelu(nn.Linear):
    """A linear map with its activation."""

    def __init__(self, inputs: int, outputs: int, tanh: bool, operations: Operations) -> None:
        super().__init__(inputs, outputs)
        self.tanh, self.operations = tanh, operations

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) -> (n, outputs)."""
        return self.operations.linear_gelu(x, self.weight, self.bias, self.tanh)


class Attention(nn.Module):
    """Self-attention; queries, keys and values come from one matrix. `norm` is for whoever adds the result to the sum."""

    def __init__(self, config: EncoderConfig, operations: Operations) -> None:
        super().__init__()
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.norm = AddNorm(config, operations)
        width = config.hidden // config.heads
        self.query_norm, self.key_norm = (
            nn.LayerNorm(width, eps=config.norm_eps) if config.query_key_norm else nn.Identity() for _ in range(2)
        )
        self.heads, self.rate = config.heads, config.attention_dropout

    def forward(self, hidden: Tensor, packing: Packing) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        queries, keys, values = self.qkv(hidden).view(len(hidden), 3, self.heads, hidden.shape[1] // self.heads).unbind(1)
        queries, keys = self.query_norm(queries), self.key_norm(keys)
        mixed = attend(queries, keys, values, packing, self.rate if self.training else 0.0)
        output: Tensor = self.output(mixed.flatten(1))
        return output


class FeedForward(nn.Module):
    """The feed-forward part. `norm` is for whoever adds the result to the sum."""

    def __init__(self, config: EncoderConfig, operations: Operations) -> None:
        super().__init__()
        self.inner = LinearGelu(config.hidden, config.ffn, config.activation == "gelu-tanh", operations)
        self.output = nn.Linear(config.ffn, config.hidden)
        self.norm = AddNorm(config, operations)

    def forward(self, hidden: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        output: Tensor = self.output(self.inner(hidden))
        return output


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
