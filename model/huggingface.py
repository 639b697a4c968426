"""Our names of weights and Hugging Face's, both ways, for BERT, RoBERTa and ALBERT."""

import re

import torch
from torch import Tensor

from remask.model.config import EncoderConfig

# Ours -> theirs, for what is not a layer. ALBERT's classes have names of their own.
_TOPS: dict[str, dict[str, str]] = {
    "bert": {
        "encoder.embeddings.words": "bert.embeddings.word_embeddings",
        "encoder.embeddings.positions": "bert.embeddings.position_embeddings",
        "encoder.embeddings.types": "bert.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
        "encoder.pooler": "bert.pooler.dense",
        "masked_tokens.dense": "cls.predictions.transform.dense",
        "masked_tokens.norm": "cls.predictions.transform.LayerNorm",
        "masked_tokens.bias": "cls.predictions.bias",
        "sentence": "cls.seq_relationship",
    },
    "roberta": {
        "encoder.embeddings.words": "roberta.embeddings.word_embeddings",
        "encoder.embeddings.positions": "roberta.embeddings.position_embeddings",
        "encoder.embeddings.types": "roberta.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "roberta.embeddings.LayerNorm",
        "encoder.pooler": "roberta.pooler.dense",
        "masked_tokens.dense": "lm_head.dense",
        "masked_tokens.norm": "lm_head.layer_norm",
        "masked_tokens.bias": "lm_head.bias",
    },
    "albert": {
        "encoder.embeddings.words": "albert.embeddings.word_embeddings",
        "encoder.embeddings.positions": "albert.embeddings.position_embeddings",
        "encoder.embeddings.types": "albert.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "albert.embeddings.LayerNorm",
        "encoder.embeddings.projection": "albert.encoder.embedding_hidden_mapping_in",
        "encoder.pooler": "albert.pooler",
        "masked_tokens.dense": "predictions.dense",
        "masked_tokens.norm": "predictions.LayerNorm",
        "masked_tokens.bias": "predictions.bias",
        "sentence": "sop_classifier.classifier",
    },
}
_LAYERS = {
    "bert": "bert.encoder.layer.{}",
    "roberta": "roberta.encoder.layer.{}",
    "albert": "albert.encoder.albert_layer_groups.{}.albert_layers.0",
}
_Parts = dict[str, dict[str, tuple[str, ...]]]
_BERT_PARTS: _Parts = {
    "attentions": {
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "output": ("attention.output.dense",),
        "norm": ("attention.output.LayerNorm",),
    },
    "ffns": {"inner": ("intermediate.dense",), "output": ("output.dense",), "norm": ("output.LayerNorm",)},
}
_ALBERT_PARTS: _Parts = {
    "attentions": {
        "qkv": ("attention.query", "attention.key", "attention.value"),
        "output": ("attention.dense",),
        "norm": ("attention.LayerNorm",),
    },
    "ffns": {"inner": ("ffn",), "output": ("ffn_output",), "norm": ("full_layer_layer_norm",)},
}


def to_hugging_face(state: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Weights under their names; layers that share weights stand once in ALBERT's groups, else once for each layer."""
    theirs: dict[str, Tensor] = {}
    for name, weight in state.items():
        block = re.fullmatch(r"encoder\.(attentions|ffns)\.(\d+)\.(\w+)\.(weight|bias)", name)
        if block is None:
            top = next(ours for ours in _TOPS[config.family] if name == ours or name.startswith(f"{ours}."))
            theirs[_TOPS[config.family][top] + name.removeprefix(top)] = weight
            continue
        kind, number, part, ending = block[1], int(block[2]), block[3], block[4]
        parts = (_ALBERT_PARTS if config.family == "albert" else _BERT_PARTS)[kind][part]
        for layer in _layers_of(config, 0 if kind == "attentions" else 1, number):
            for inner, piece in zip(parts, weight.chunk(len(parts)), strict=True):
                theirs[f"{_LAYERS[config.family].format(layer)}.{inner}.{ending}"] = piece
    return theirs


def _layers_of(config: EncoderConfig, kind: int, number: int) -> list[int]:
    """Where a unique part stands in Hugging Face's model."""
    if config.family == "albert":
        return [number]
    return [layer for layer, pair in enumerate(config.layer_map) if pair[kind] == number]


def from_hugging_face(theirs: dict[str, Tensor], ours: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """The other way, into the names that `ours` has."""
    names = {name: torch.full_like(weight, number, dtype=torch.int64) for number, (name, weight) in enumerate(ours.items())}
    found: dict[str, list[Tensor]] = {}
    for their_name, marks in to_hugging_face(names, config).items():
        found.setdefault(list(ours)[int(marks.flatten()[0])], []).append(theirs[their_name])
    return {name: torch.cat(pieces[: ours[name].numel() // pieces[0].numel()]) for name, pieces in found.items()}
