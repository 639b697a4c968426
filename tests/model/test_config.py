"""Parameter counts against the papers' tables and against Hugging Face's models."""

import pytest
import torch
import transformers

from remask.launcher.config import load
from remask.model.config import EncoderConfig
from remask.model.encoder import Encoder

BASE = {"vocab_size": 30000, "hidden": 768, "layers": 12, "heads": 12, "ffn": 3072}

# Lan et al. 2019, tables 3 and 4, in millions: embedding size -> all, attention, ffn, none shared.
BY_EMBEDDING = {
    64: (9.7, 61.6, 35.7, 87.6),
    128: (11.7, 63.6, 37.7, 89.7),
    256: (15.7, 67.7, 41.7, 93.7),
    768: (31.1, 83.1, 57.1, 109.1),
}
# Preset -> unique and total parameters in millions; the papers' own roundings stand behind.
PRESETS = {
    "bert-base": (109.1, 109.1),  # 108
    "bert-large": (334.6, 334.6),  # 334
    "bert-xlarge": (1275.3, 1275.3),  # about 1270
    "albert-base": (11.7, 89.7),  # 12
    "albert-large": (17.7, 307.4),  # 18
    "albert-xlarge": (58.7, 1217.0),  # 60
    "albert-xxlarge": (222.6, 2437.8),  # 235; by hidden size 225
    "roberta-base": (124.6, 124.6),  # 125
    "roberta-large": (355.4, 355.4),  # 355
}


def millions(count: int) -> float:
    return round(count / 1e6, 1)


@pytest.mark.parametrize("embedding", BY_EMBEDDING)
def test_sharing_gives_the_papers_table(embedding: int) -> None:
    modes = ("all", "attention", "ffn", "none")
    configs = [EncoderConfig(**BASE, embedding=embedding, sharing=mode) for mode in modes]
    assert tuple(millions(config.unique_parameters) for config in configs) == BY_EMBEDDING[embedding]
    with torch.device("meta"):
        encoders = [Encoder(config) for config in configs]
    assert tuple(millions(sum(weight.numel() for weight in encoder.parameters())) for encoder in encoders) == BY_EMBEDDING[embedding]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_the_papers_sizes(preset: str) -> None:
    model = load(preset).model
    assert (millions(model.unique_parameters), millions(model.total_parameters)) == PRESETS[preset]


@pytest.mark.parametrize("layers", [1, 3, 6, 12, 24, 48])
def test_depth_costs_no_unique_parameters_when_all_is_shared(layers: int) -> None:
    large = EncoderConfig(vocab_size=30000, hidden=1024, layers=layers, heads=16, ffn=4096, embedding=128, sharing="all")
    assert round(large.unique_parameters / 1e6) == 18


@pytest.mark.parametrize(("hidden", "paper"), [(1024, 18), (2048, 60), (4096, 225), (6144, 499)])
def test_width_gives_the_papers_table(hidden: int, paper: int) -> None:
    shape = EncoderConfig(vocab_size=30000, hidden=hidden, layers=3, heads=hidden // 64, ffn=4 * hidden, embedding=128, sharing="all")
    assert shape.unique_parameters / 1e6 == pytest.approx(paper, rel=0.025)


@pytest.mark.parametrize("preset", ["bert-base", "bert-tiny", "roberta-large", "roberta-tiny", "albert-xxlarge", "albert-tiny"])
def test_unique_parameters_equal_hugging_faces_model(preset: str) -> None:
    model = load(preset).model
    shared = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.ffn,
        "type_vocab_size": model.type_vocab,
        "max_position_embeddings": model.positions + model.position_offset,
    }
    with torch.device("meta"):
        if model.family == "albert":
            config = transformers.AlbertConfig(**shared, embedding_size=model.embedding_size, num_hidden_groups=model.groups)
            encoder = transformers.AlbertModel(config)
        elif model.family == "roberta":
            encoder = transformers.RobertaModel(transformers.RobertaConfig(**shared))
        else:
            encoder = transformers.BertModel(transformers.BertConfig(**shared))
    count = sum(parameter.numel() for parameter in encoder.parameters())
    assert count > 100_000
    assert model.unique_parameters == count


def test_pre_norm_counts_its_final_norm() -> None:
    assert EncoderConfig(**BASE, norm="pre").unique_parameters - EncoderConfig(**BASE).unique_parameters == 2 * 768


def test_layer_map_shares_what_it_says() -> None:
    four = {**BASE, "layers": 4}
    assert EncoderConfig(**four).layer_map == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert EncoderConfig(**four, sharing="attention").layer_map == ((0, 0), (0, 1), (0, 2), (0, 3))
    assert EncoderConfig(**four, sharing="ffn").layer_map == ((0, 0), (1, 0), (2, 0), (3, 0))
    assert EncoderConfig(**four, sharing="all", groups=2).layer_map == ((0, 0), (0, 0), (1, 1), (1, 1))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"heads": 7}, r"heads: 7 was given, it must divide hidden \(768\); the nearest that does is 6"),
        ({"embedding": 1000}, "embedding: 1000 was given, it must be from 1 to hidden"),
        ({"groups": 2}, "groups: 2 was given but sharing is none"),
        ({"groups": 13, "sharing": "all"}, "groups: 13 was given, it must be at most layers"),
        ({"layers": 0}, "layers: 0 was given, it must be from 1 to 10000"),
        ({"dropout": float("nan")}, "dropout: nan was given"),
        ({"init_std": float("inf")}, "init_std: inf was given"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        EncoderConfig(**{**BASE, **change})
