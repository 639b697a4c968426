"""The encoder's shape, and what follows from it by arithmetic alone: which layers share weights and how many parameters there are."""

from dataclasses import dataclass
from typing import Literal

Sharing = Literal["none", "attention", "ffn", "all"]

# Far beyond what was ever trained: a slip of the finger is told before it costs anything. Five special tokens need room.
_BOUNDS = {
    "vocab_size": (6, 10**7),
    "hidden": (1, 10**6),
    "layers": (1, 10_000),
    "heads": (1, 10**6),
    "ffn": (1, 10**7),
    "groups": (1, 10_000),
    "type_vocab": (1, 1000),
    "positions": (1, 10**7),
    "position_offset": (0, 1000),
}


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """An encoder of the BERT family. The defaults are BERT-base."""

    family: Literal["bert", "roberta", "albert"] = "bert"
    """Whose names and conventions the model follows; the export chooses its Hugging Face class by it."""
    vocab_size: int = 30000
    """Entries of the tokenizer; the embedding table grows with it by `embedding` weights an entry. Where a GPU scores over it, it is
    padded to a multiple of 64 inside; no weight and no file has the padding."""
    hidden: int = 768
    """Width between the layers; time and weights grow with its square."""
    layers: int = 12
    """Blocks applied one after another; time grows with it, shared weights do not."""
    heads: int = 12
    """Attention heads; must divide `hidden`."""
    ffn: int = 3072
    """Inner width of the feed-forward part; the papers use 4 x hidden."""
    embedding: int | None = None
    """Width of the embedding tables; smaller than `hidden` factorises them as ALBERT does, None means `hidden`."""
    sharing: Sharing = "none"
    """Which weights the layers of one group share: fewer bytes on the wire and in memory, the same time to compute."""
    groups: int = 1
    """With sharing: runs of consecutive layers that share among themselves only; 1 shares across all layers."""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after each residual sum (the papers), or before each part (steadier when deep, one more norm at the end)."""
    activation: Literal["gelu", "gelu-tanh"] = "gelu"
    """GELU exact, or by the tanh formula as in Google's ALBERT; a trained model keeps the one it was trained with."""
    dropout: float = 0.1
    """Dropped share of hidden values in training; 0 saves the time and memory of the masks."""
    attention_dropout: float = 0.1
    """Dropped share of attention weights in training."""
    type_vocab: int = 2
    """Segment types; 2 for sentence pairs, 1 where rows are single sequences."""
    positions: int = 512
    """Longest row that the model can read."""
    position_offset: int = 0
    """Unused leading rows of the position table; RoBERTa's files have 2."""
    init_std: float = 0.02
    """Spread of the truncated normal that weights start from."""
    norm_eps: float = 1e-12
    """Added to the variance in LayerNorm; RoBERTa uses 1e-5."""
    embedding_norm: bool = False
    """Against spikes: one more LayerNorm before the first layer. It let a 104B model train through, at some loss in quality (Le Scao et
    al. 2022, section 4.3); worth a try where the gradient of the embeddings explodes. Hugging Face's classes cannot express it."""
    query_key_norm: bool = False
    """Against spikes: LayerNorm on queries and keys of each head, which bounds the attention scores. ViTs diverged at 8B parameters
    without it (Dehghani et al. 2023, section 2); a few percent more time. Hugging Face's classes cannot express it."""
    z_loss: float = 0.0
    """Against drift: this times the square of log Z of the softmax over the vocabulary is added to each target's loss; PaLM took 1e-4
    (Chowdhery et al. 2022, section 5). Keeps scores near 0, which bf16 needs; 0 is off."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise ValueError(f"{name}: {value} was given, it must be from {least} to {most}")
        if self.hidden % self.heads:
            divisors = [n for n in range(1, min(self.hidden, 256) + 1) if self.hidden % n == 0]
            nearest = min(divisors, key=lambda n: abs(n - self.heads))
            raise ValueError(f"heads: {self.heads} was given, it must divide hidden ({self.hidden}); the nearest that does is {nearest}")
        if self.embedding is not None and not 1 <= self.embedding <= self.hidden:
            raise ValueError(f"embedding: {self.embedding} was given, it must be from 1 to hidden ({self.hidden}), or null for hidden")
        if self.groups > self.layers:
            raise ValueError(f"groups: {self.groups} was given, it must be at most layers ({self.layers})")
        if self.groups > 1 and self.sharing == "none":
            raise ValueError(f"groups: {self.groups} was given but sharing is none; set sharing to attention, ffn or all, or groups to 1")
        for name in ("dropout", "attention_dropout"):
            if (share := getattr(self, name)) != 0 and not 0.001 <= share <= 0.99:
                raise ValueError(f"{name}: {share} was given, it must be 0, or from 0.001 to 0.99")
        if not 0 <= self.z_loss < 1:
            raise ValueError(f"z_loss: {self.z_loss} was given, it must be at least 0 and less than 1; PaLM took 1e-4")
        for name in ("init_std", "norm_eps"):
            if not 0 < (number := getattr(self, name)) < 1:
                raise ValueError(f"{name}: {number} was given, it must be more than 0 and less than 1")

    @property
    def embedding_size(self) -> int:
        return self.hidden if self.embedding is None else self.embedding

    @property
    def layer_map(self) -> tuple[tuple[int, int], ...]:
        """For each layer, which unique attention part and which unique feed-forward part it uses."""
        group = [layer * self.groups // self.layers for layer in range(self.layers)]
        shares_attention, shares_ffn = self.sharing in ("attention", "all"), self.sharing in ("ffn", "all")
        return tuple((g if shares_attention else i, g if shares_ffn else i) for i, g in enumerate(group))

    @property
    def unique_parameters(self) -> int:
        """Weights stored, trained and sent: embeddings, blocks and pooler, without the heads."""
        attentions = len({attention for attention, _ in self.layer_map})
        ffns = len({ffn for _, ffn in self.layer_map})
        return self._parameters_outside_blocks + attentions * self.attention_parameters + ffns * self.ffn_parameters

    @property
    def total_parameters(self) -> int:
        """The same with each weight counted once per use: the size of the unshared twin."""
        return self._parameters_outside_blocks + self.layers * (self.attention_parameters + self.ffn_parameters)

    @property
    def attention_parameters(self) -> int:
        """Of one unique attention part, with its norm."""
        head_norms = 4 * (self.hidden // self.heads) if self.query_key_norm else 0
        return 4 * _linear(self.hidden, self.hidden) + 2 * self.hidden + head_norms

    @property
    def ffn_parameters(self) -> int:
        """Of one unique feed-forward part, with its norm."""
        return _linear(self.hidden, self.ffn) + _linear(self.ffn, self.hidden) + 2 * self.hidden

    @property
    def _parameters_outside_blocks(self) -> int:
        width = self.embedding_size
        tables = (self.vocab_size + self.position_offset + self.positions + self.type_vocab) * width + 2 * width
        projection = _linear(width, self.hidden) if width < self.hidden else 0
        norms = 2 * self.hidden * ((self.norm == "pre") + self.embedding_norm)
        pooler = _linear(self.hidden, self.hidden)
        return tables + projection + norms + pooler


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs
