"""The same model in Hugging Face's classes: which class can express it, with which config, and where each weight stands there.

Scores are the same. In training one thing is not: their ALBERT makes a dropout behind its feed-forward part and never uses it.
"""

from collections.abc import Collection, Iterator, Mapping
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
_ALLOWED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "inner_group_num": 1,
    "tie_word_embeddings": True,
}
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "type_vocab": "type_vocab_size",
    "positions": "max_position_embeddings",
}
_RATES = {
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "init_std": "initializer_range",
    "norm_eps": "layer_norm_eps",
}


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
    shared = kind == "albert" and config.sharing == "all" and _groups_as_ours(config.layers, config.groups)
    groups = config.groups if shared else config.layers
    notes = []
    if groups == config.layers and config.total_parameters > config.unique_parameters:
        notes.append(
            f"sharing {config.sharing} is written out: every layer has its own copy of the weights ({config.total_parameters:,} instead of "
            f"{config.unique_parameters:,} parameters), because {_CLASSES[kind][0]} does not share so"
        )
    if sentence_task and not has_sentence:
        notes.append(f"the sentence head is left out: {_CLASSES[kind][0]} has none")
    settings: dict[str, Any] = {
        "model_type": kind,
        "architectures": [_CLASSES[kind][0 if has_sentence else 1]],
        **{theirs: getattr(config, ours) for ours, theirs in {**_SIZES, **_RATES}.items()},
        "max_position_embeddings": positions,
        "hidden_act": _ACTIVATIONS[config.activation],
        "pad_token_id": pad_id,
        "bos_token_id": specials["cls"],
        "eos_token_id": specials["sep"],
    }
    if kind == "albert":
        settings |= {"embedding_size": config.embedding_size, "num_hidden_groups": groups, "inner_group_num": 1}
    return Form(kind=kind, groups=groups, settings=settings, notes=tuple(notes))


def read_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The values of our config from what config.json says. ValueError if ours cannot express it."""
    kind = settings.get("model_type")
    if kind not in _CLASSES:
        raise ValueError(f"model_type: {kind!r} was given, it must be one of {', '.join(_CLASSES)}")
    for name, allowed in _ALLOWED.items():
        if (given := settings.get(name, allowed)) != allowed:
            raise ValueError(f"{name}: {given!r} was given, it must be {allowed!r}")
    if (given := settings.get("hidden_act")) not in _OUR_ACTIVATIONS:
        raise ValueError(f"hidden_act: {given!r} was given, it must be one of {', '.join(_OUR_ACTIVATIONS)}")
    values: dict[str, Any] = {ours: _whole(settings, theirs) for ours, theirs in _SIZES.items()}
    values |= {ours: settings.get(theirs) for ours, theirs in _RATES.items()}
    offset = _whole(settings, "pad_token_id") + 1 if kind.startswith("roberta") else 0
    groups = _whole(settings, "num_hidden_groups") if kind == "albert" else values["layers"]
    width = _whole(settings, "embedding_size") if kind == "albert" else values["hidden"]
    layers = values["layers"]
    if not _groups_as_ours(layers, groups):
        raise ValueError(f"num_hidden_groups: {groups} for {layers} layers is cut unevenly by rounding, which our layer map does not do")
    return values | {
        "family": "roberta" if kind.startswith("roberta") else kind,
        "embedding": width if width != values["hidden"] else None,
        "sharing": "all" if groups < layers else "none",
        "groups": groups if groups < layers else 1,
        "norm": "pre" if kind == "roberta-prelayernorm" else "post",
        "activation": _OUR_ACTIVATIONS[settings["hidden_act"]],
        "positions": values["positions"] - offset,
        "position_offset": offset,
    }


def _whole(settings: Mapping[str, Any], name: str) -> int:
    if type(value := settings.get(name)) is not int:
        raise ValueError(f"{name}: {value!r} was given, it must be a whole number")
    return value


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
    as_albert = config.family != "roberta" or config.activation == "gelu"  # their ALBERT's head has the activation of its layers
    if factorised:
        if not as_albert:
            raise ValueError(f"activation: {config.activation} with family roberta and a factorised embedding: no class has both")
        return "albert"
    if config.sharing == "all" and as_albert:
        return "albert"
    if config.family == "albert":
        return "albert" if config.sharing == "none" else "bert"
    return config.family


def _groups_as_ours(layers: int, groups: int) -> bool:
    """Whether ALBERT's class, which computes groups in floating point, puts every layer where our map puts it (18 layers in 14 do not)."""
    return 1 <= groups <= layers and all(int(i / (layers / groups)) == i * groups // layers for i in range(layers))


class _Place(NamedTuple):
    """A weight of ours and where Hugging Face has it, whole or as one of several equal pieces."""

    ours: str
    theirs: str
    piece: int = 0
    pieces: int = 1


def _places(form: Form, config: EncoderConfig, without: Collection[str]) -> Iterator[_Place]:
    """Of all weights but those parts that the model is without."""
    names = _NAMES[form.kind]
    for ours, theirs in names.tops.items():
        if ours in without or (ours == "encoder.embeddings.projection" and config.embedding_size == config.hidden):
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


_OPTIONAL = ("sentence", "encoder.pooler")


def to_hugging_face(state: Mapping[str, Tensor], config: EncoderConfig, form: Form) -> dict[str, Tensor]:
    """Weights under their names; without a pooler or a sentence head if the state has none."""
    without = [part for part in _OPTIONAL if f"{part}.weight" not in state]
    found = {}
    for place in _places(form, config, without):
        weight = state[place.ours]
        if place.ours == _POSITIONS:
            weight = _shift_positions(weight, _unused_positions(form, config), config.position_offset)
        found[place.theirs] = weight.chunk(place.pieces)[place.piece].contiguous()
    if form.kind == "albert" and config.embedding_size == config.hidden:
        found |= _identity(config, state["encoder.pooler.weight" if "encoder.pooler.weight" in state else "masked_tokens.dense.weight"])
    return found


def from_hugging_face(theirs: Mapping[str, Tensor], config: EncoderConfig, form: Form) -> dict[str, Tensor]:
    """The other way. KeyError names a missing weight, ValueError one that ours cannot hold."""
    if form.kind == "albert" and config.embedding_size == config.hidden:
        for name, wanted in _identity(config, theirs[f"{_PROJECTION}.weight"]).items():
            if not torch.equal(theirs[name], wanted):
                raise ValueError(f"{name}: the embedding is as wide as the model and yet projected, which no encoder of ours does")
    tops = _NAMES[form.kind].tops
    without = [part for part in _OPTIONAL if part in tops and not any(name.startswith(f"{tops[part]}.") for name in theirs)]
    pieces: dict[str, list[Tensor]] = {}
    for place in _places(form, config, without):
        found = pieces.setdefault(place.ours, [])
        if len(found) < place.pieces:
            found.append(theirs[place.theirs])
    state = {name: torch.cat(found) for name, found in pieces.items()}
    return state | {_POSITIONS: _shift_positions(state[_POSITIONS], config.position_offset, _unused_positions(form, config))}


_POSITIONS, _PROJECTION = "encoder.embeddings.positions.weight", _ALBERT_TOPS["encoder.embeddings.projection"]


def _identity(config: EncoderConfig, like: Tensor) -> dict[str, Tensor]:
    """Their ALBERT projects the embedding even where it is as wide as the model; this projection does nothing."""
    return {
        f"{_PROJECTION}.weight": torch.eye(config.hidden, dtype=like.dtype, device=like.device),
        f"{_PROJECTION}.bias": torch.zeros(config.hidden, dtype=like.dtype, device=like.device),
    }


def _unused_positions(form: Form, config: EncoderConfig) -> int:
    """Rows at the head of their position table that no token uses."""
    return int(form.settings["max_position_embeddings"]) - config.positions


def _shift_positions(table: Tensor, unused: int, has_unused: int) -> Tensor:
    """The position table with so many unused rows at its head; kept as they are where the number does not change."""
    if unused == has_unused:
        return table
    return torch.cat([table.new_zeros(unused, table.shape[1]), table[has_unused:]])
