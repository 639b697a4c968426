"""The same model in Hugging Face's classes: which class can express it, with which config, and where each weight stands there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from remask.model.config import EncoderConfig

Kind = Literal["bert", "roberta", "roberta-prelayernorm", "albert"]

# Ours -> theirs, for what is not a layer.
_BERT_TOPS = {
    "encoder.embeddings.words": "bert.embeddings.word_embeddings",
    "encoder.embeddings.positions": "bert.embeddings.position_embeddings",
    "encoder.embeddings.types": "bert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "masked_tokens.dense": "cls.predictions.transform.dense",
    "masked_tokens.norm": "cls.predictions.transform.LayerNorm",
    "masked_tokens": "cls.predictions",
    "sentence": "cls.seq_relationship",
}
_ROBERTA_TOPS = {
    "encoder.embeddings.words": "roberta.embeddings.word_embeddings",
    "encoder.embeddings.positions": "roberta.embeddings.position_embeddings",
    "encoder.embeddings.types": "roberta.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "roberta.embeddings.LayerNorm",
    "encoder.pooler": "roberta.pooler.dense",
    "masked_tokens.dense": "lm_head.dense",
    "masked_tokens.norm": "lm_head.layer_norm",
    "masked_tokens": "lm_head",
}
_ALBERT_TOPS = {
    "encoder.embeddings.words": "albert.embeddings.word_embeddings",
    "encoder.embeddings.positions": "albert.embeddings.position_embeddings",
    "encoder.embeddings.types": "albert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "albert.embeddings.LayerNorm",
    "encoder.embeddings.projection": "albert.encoder.embedding_hidden_mapping_in",
    "encoder.pooler": "albert.pooler",
    "masked_tokens.dense": "predictions.dense",
    "masked_tokens.norm": "predictions.LayerNorm",
    "masked_tokens": "predictions",
    "sentence": "sop_classifier.classifier",
}
_Parts = dict[str, tuple[str, ...]]
_BERT_PARTS: _Parts = {
    "attentions.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attentions.output": ("attention.output.dense",),
    "attentions.norm": ("attention.output.LayerNorm",),
    "ffns.inner": ("intermediate.dense",),
    "ffns.output": ("output.dense",),
    "ffns.norm": ("output.LayerNorm",),
}
_ALBERT_PARTS: _Parts = {
    "attentions.qkv": ("attention.query", "attention.key", "attention.value"),
    "attentions.output": ("attention.dense",),
    "attentions.norm": ("attention.LayerNorm",),
    "ffns.inner": ("ffn",),
    "ffns.output": ("ffn_output",),
    "ffns.norm": ("full_layer_layer_norm",),
}


def _renamed(names: dict[str, str], old: str, new: str) -> dict[str, str]:
    return {ours: theirs.replace(f"{old}.", f"{new}.", 1) for ours, theirs in names.items()}


class _Names(NamedTuple):
    tops: dict[str, str]
    slot: str
    """Where the weights of a layer stand, or for ALBERT those of a group of layers."""
    parts: _Parts


_NAMES: dict[Kind, _Names] = {
    "bert": _Names(_BERT_TOPS, "bert.encoder.layer.{}", _BERT_PARTS),
    "roberta": _Names(_ROBERTA_TOPS, "roberta.encoder.layer.{}", _BERT_PARTS),
    "roberta-prelayernorm": _Names(
        {**_renamed(_ROBERTA_TOPS, "roberta", "roberta_prelayernorm"), "encoder.final_norm": "roberta_prelayernorm.LayerNorm"},
        "roberta_prelayernorm.encoder.layer.{}",
        {**_BERT_PARTS, "attentions.norm": ("attention.LayerNorm",), "ffns.norm": ("intermediate.LayerNorm",)},
    ),
    "albert": _Names(_ALBERT_TOPS, "albert.encoder.albert_layer_groups.{}.albert_layers.0", _ALBERT_PARTS),
}
_CLASSES: dict[Kind, tuple[str, str]] = {  # with a sentence task, and without
    "bert": ("BertForPreTraining", "BertForMaskedLM"),
    "roberta": ("RobertaForMaskedLM", "RobertaForMaskedLM"),
    "roberta-prelayernorm": ("RobertaPreLayerNormForMaskedLM", "RobertaPreLayerNormForMaskedLM"),
    "albert": ("AlbertForPreTraining", "AlbertForMaskedLM"),
}
_ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_new"}
_OUR_ACTIVATIONS: dict[str, Literal["gelu", "gelu-tanh"]] = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
# Settings with one value that ours can express.
_ALLOWED = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False, "inner_group_num": 1}


@dataclass(frozen=True, kw_only=True)
class Form:
    """How Hugging Face holds a model of ours."""

    kind: Kind
    groups: int
    """Sets of layer weights: ALBERT's hidden groups, else the layers."""
    settings: dict[str, Any]
    """What config.json says."""
    notes: tuple[str, ...]
    """What became different on the way, for the user to read."""

    @property
    def architecture(self) -> str:
        """The class that opens it."""
        return str(self.settings["architectures"][0])


def choose_form(config: EncoderConfig, sentence_task: bool, specials: Mapping[str, int]) -> Form:
    """The class that computes what ours does; `specials` are the ids of pad, cls and sep. ValueError if there is none."""
    kind, pad_id = _kind_of(config), specials["pad"]
    positions = config.positions + (pad_id + 1 if kind.startswith("roberta") else 0)
    has_sentence = sentence_task and "sentence" in _NAMES[kind].tops
    groups = config.groups if kind == "albert" and config.sharing == "all" and _groups_as_ours(config) else config.layers
    notes = []
    if config.sharing != "none" and groups == config.layers > 1:
        notes.append(
            f"sharing {config.sharing} is written out: every layer has its own copy of the weights ({config.total_parameters:,} instead of "
            f"{config.unique_parameters:,} parameters), because no class of Hugging Face shares so"
        )
    if sentence_task and not has_sentence:
        notes.append(f"the sentence head is left out: {_CLASSES[kind][0]} has none")
    settings: dict[str, Any] = {
        "model_type": kind,
        "architectures": [_CLASSES[kind][0 if has_sentence else 1]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "hidden_act": _ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": positions,
        "type_vocab_size": config.type_vocab,
        "initializer_range": config.init_std,
        "layer_norm_eps": config.norm_eps,
        "pad_token_id": pad_id,
        "bos_token_id": specials["cls"],
        "eos_token_id": specials["sep"],
    }
    if kind == "albert":
        settings |= {"embedding_size": config.embedding_size, "num_hidden_groups": groups, "inner_group_num": 1}
    return Form(kind=kind, groups=groups, settings=settings, notes=tuple(notes))


def read_config(settings: Mapping[str, Any]) -> EncoderConfig:
    """Our config from what config.json says. ValueError or KeyError if ours cannot express it."""
    kind = settings["model_type"]
    if kind not in _CLASSES:
        raise ValueError(f"model_type: {kind!r} was given, it must be one of {', '.join(_CLASSES)}")
    for name, allowed in _ALLOWED.items():
        if (given := settings.get(name, allowed)) != allowed:
            raise ValueError(f"{name}: {given!r} was given, it must be {allowed!r}")
    if (given := settings["hidden_act"]) not in _OUR_ACTIVATIONS:
        raise ValueError(f"hidden_act: {given!r} was given, it must be one of {', '.join(_OUR_ACTIVATIONS)}")
    layers, hidden = settings["num_hidden_layers"], settings["hidden_size"]
    groups = settings.get("num_hidden_groups", layers) if kind == "albert" else layers
    offset = settings["pad_token_id"] + 1 if kind.startswith("roberta") else 0
    config = EncoderConfig(
        family="roberta" if kind.startswith("roberta") else kind,
        vocab_size=settings["vocab_size"],
        hidden=hidden,
        layers=layers,
        heads=settings["num_attention_heads"],
        ffn=settings["intermediate_size"],
        embedding=settings["embedding_size"] if kind == "albert" and settings["embedding_size"] != hidden else None,
        sharing="all" if groups < layers else "none",
        groups=groups if groups < layers else 1,
        norm="pre" if kind == "roberta-prelayernorm" else "post",
        activation=_OUR_ACTIVATIONS[settings["hidden_act"]],
        dropout=float(settings["hidden_dropout_prob"]),
        attention_dropout=float(settings["attention_probs_dropout_prob"]),
        type_vocab=settings["type_vocab_size"],
        positions=settings["max_position_embeddings"] - offset,
        position_offset=offset,
        init_std=settings["initializer_range"],
        norm_eps=settings["layer_norm_eps"],
    )
    if not _groups_as_ours(config):
        raise ValueError(f"num_hidden_groups: {groups} for {layers} layers is cut unevenly by rounding, which our layer map does not do")
    return config


def _kind_of(config: EncoderConfig) -> Kind:
    for name in ("embedding_norm", "query_key_norm"):
        if getattr(config, name):
            raise ValueError(f"{name}: no class of Hugging Face has it")
    factorised = config.embedding_size < config.hidden
    if config.norm == "pre":
        if factorised:
            raise ValueError("norm: pre with a factorised embedding: no class of Hugging Face has both")
        if config.activation != "gelu" and config.family != "roberta":
            raise ValueError(f"activation: {config.activation} with norm pre: Hugging Face's class has the exact form in its head")
        return "roberta-prelayernorm"
    if factorised:
        if config.family == "roberta" and config.activation != "gelu":
            raise ValueError(
                f"embedding: {config.embedding} with family roberta and {config.activation}: no class of Hugging Face has both"
            )
        return "albert"
    if config.family == "albert":
        return "bert" if config.sharing in ("attention", "ffn") else "albert"
    return config.family


def _groups_as_ours(config: EncoderConfig) -> bool:
    """Whether ALBERT's class, which computes groups in floating point, puts every layer where our map puts it (18 layers in 14 do not)."""
    return all(int(i / (config.layers / config.groups)) == i * config.groups // config.layers for i in range(config.layers))


class _Place(NamedTuple):
    """A weight of ours and where Hugging Face has it, whole or as one of several equal pieces."""

    ours: str
    theirs: str
    piece: int = 0
    pieces: int = 1


def _places(form: Form, config: EncoderConfig, sentence: bool) -> Iterator[_Place]:
    names = _NAMES[form.kind]
    for ours, theirs in names.tops.items():
        if (ours == "sentence" and not sentence) or (ours == "encoder.embeddings.projection" and config.embedding_size == config.hidden):
            continue
        endings = {"masked_tokens": ["bias"]}.get(ours, ["weight"] if theirs.endswith("embeddings") else ["weight", "bias"])
        yield from (_Place(f"{ours}.{ending}", f"{theirs}.{ending}") for ending in endings)
    for slot in range(form.groups):
        layer = next(i for i in range(config.layers) if i * form.groups // config.layers == slot)
        numbers = dict(zip(("attentions", "ffns"), config.layer_map[layer], strict=True))
        for part, pieces in names.parts.items():
            kind, _, inner = part.partition(".")
            for piece, theirs in enumerate(pieces):
                for ending in ("weight", "bias"):
                    ours = f"encoder.{kind}.{numbers[kind]}.{inner}.{ending}"
                    yield _Place(ours, f"{names.slot.format(slot)}.{theirs}.{ending}", piece, len(pieces))


def to_hugging_face(state: Mapping[str, Tensor], config: EncoderConfig, form: Form) -> dict[str, Tensor]:
    """Weights under their names, without the zero rows behind the vocabulary."""
    found = {}
    for place in _places(form, config, "sentence.weight" in state):
        found[place.theirs] = _to_their_rows(place.ours, state[place.ours], config, form).chunk(place.pieces)[place.piece]
    if form.kind == "albert" and config.embedding_size == config.hidden:
        name = _ALBERT_TOPS["encoder.embeddings.projection"]
        weight = state["encoder.embeddings.words.weight"]
        found[f"{name}.weight"] = torch.eye(config.hidden, dtype=weight.dtype)
        found[f"{name}.bias"] = torch.zeros(config.hidden, dtype=weight.dtype)
    return {name: weight.detach().cpu().contiguous() for name, weight in found.items()}


def from_hugging_face(theirs: Mapping[str, Tensor], config: EncoderConfig, form: Form) -> dict[str, Tensor]:
    """The other way; the pooler only if they have one. KeyError names a missing weight, ValueError one that ours cannot hold."""
    if form.kind == "albert" and config.embedding_size == config.hidden:
        name = _ALBERT_TOPS["encoder.embeddings.projection"]
        if (
            not torch.equal(theirs[f"{name}.weight"], torch.eye(config.hidden, dtype=theirs[f"{name}.weight"].dtype))
            or theirs[f"{name}.bias"].any()
        ):
            raise ValueError(f"{name}: the embedding is as wide as the model and yet projected, which no encoder of ours does")
    pieces: dict[str, list[Tensor]] = {}
    for place in _places(form, config, _NAMES[form.kind].tops.get("sentence", "") + ".weight" in theirs):
        if place.ours.startswith("encoder.pooler.") and place.theirs not in theirs:
            continue
        found = pieces.setdefault(place.ours, [])
        if len(found) < place.pieces:
            found.append(theirs[place.theirs])
    return {name: _from_their_rows(name, torch.cat(found), config, form) for name, found in pieces.items()}


def _to_their_rows(name: str, weight: Tensor, config: EncoderConfig, form: Form) -> Tensor:
    if name in ("encoder.embeddings.words.weight", "masked_tokens.bias"):
        return weight[: config.vocab_size]
    if name == "encoder.embeddings.positions.weight":
        return _shift_positions(weight, form.settings["max_position_embeddings"] - config.positions, config.position_offset)
    return weight


def _from_their_rows(name: str, weight: Tensor, config: EncoderConfig, form: Form) -> Tensor:
    if name in ("encoder.embeddings.words.weight", "masked_tokens.bias"):
        return torch.cat([weight, weight.new_zeros(config.table_rows - len(weight), *weight.shape[1:])])
    if name == "encoder.embeddings.positions.weight":
        return _shift_positions(weight, config.position_offset, form.settings["max_position_embeddings"] - config.positions)
    return weight


def _shift_positions(table: Tensor, unused: int, has_unused: int) -> Tensor:
    """The position table with so many unused rows at its head; kept as they are where the number does not change."""
    if unused == has_unused:
        return table
    return torch.cat([table.new_zeros(unused, table.shape[1]), table[has_unused:]])
