"""Presets, inheritance, strictness: a config, or one sentence."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.data_prep.data import DataConfig
from remask.data_prep.pack import PackConfig
from remask.launcher import strict_yaml
from remask.launcher.config import RunConfig, dump, load, preset_names
from remask.launcher.decode import decode, encode
from remask.launcher.engine import EngineConfig
from remask.launcher.errors import UserError
from remask.launcher.optimizer import OptimizerConfig
from remask.launcher.schedule import ScheduleConfig
from remask.model.config import EncoderConfig

BERT = {
    "data.pack": {"mode": "segment-pair", "sequence_length": 512, "short_probability": 0.1, "seed": 1},
    "data.sentence_task": "nsp",
    "data.batch_rows": 256,
    "masking": {
        "strategy": "token", "rate": 0.15, "final_rate": None, "mask_share": 0.8, "random_share": 0.1, "max_words": None,
        "levels": ["phrase", "entity"], "similar_words": None, "refresh": "copies", "copies": 10,
    },
    "model.dropout": 0.1, "model.attention_dropout": 0.1, "model.init_std": 0.02, "model.activation": "gelu", "model.type_vocab": 2,
    "model.sharing": "none", "model.vocab_size": 30000, "model.norm": "post", "model.positions": 512, "model.norm_eps": 1e-12,
    "optimizer": {"name": "adamw", "lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01, "clip_norm": 1.0},
    "schedule": {"steps": 1_000_000, "warmup_steps": 10_000, "shape": "linear", "short_fraction": 0.9, "short_length": 128},
}  # fmt: skip
ROBERTA = {
    "data.pack": {"mode": "full-sentences", "sequence_length": 512, "short_probability": 0.0, "seed": 1},
    "data.sentence_task": "none",
    "data.batch_rows": 8192,
    "masking.strategy": "token", "masking.rate": 0.15, "masking.refresh": "epoch",
    "model.dropout": 0.1, "model.type_vocab": 1, "model.positions": 512, "model.position_offset": 2, "model.norm_eps": 1e-5,
    "model.vocab_size": 50265, "model.sharing": "none",
    "optimizer": {"name": "adamw", "lr": 6e-4, "betas": [0.9, 0.98], "eps": 1e-6, "weight_decay": 0.01, "clip_norm": None},
    "schedule": {"steps": 500_000, "warmup_steps": 24_000, "shape": "linear", "short_fraction": 0.0, "short_length": 128},
}  # fmt: skip
ALBERT = {
    "data.pack.mode": "segment-pair", "data.pack.sequence_length": 512, "data.sentence_task": "sop", "data.batch_rows": 4096,
    "masking.strategy": "ngram", "masking.max_words": None, "masking.rate": 0.15, "masking.refresh": "epoch",
    "model.dropout": 0.0, "model.attention_dropout": 0.0, "model.activation": "gelu-tanh", "model.embedding": 128,
    "model.sharing": "all", "model.groups": 1, "model.vocab_size": 30000,
    "optimizer": {"name": "lamb", "lr": 1.76e-3, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01, "clip_norm": 1.0},
    "schedule": {"steps": 125_000, "warmup_steps": 3125, "shape": "linear", "short_fraction": 0.0, "short_length": 128},
}  # fmt: skip
BERT_BY_LAMB = {"data.batch_rows": 4096, "optimizer": ALBERT["optimizer"], "schedule": ALBERT["schedule"]}
# Preset -> its recipe, and layers, hidden, heads, ffn.
RECIPES = {
    "bert-base": (BERT, (12, 768, 12, 3072)),
    "bert-large": (BERT, (24, 1024, 16, 4096)),
    "bert-xlarge": ({**BERT, **BERT_BY_LAMB}, (24, 2048, 32, 8192)),
    "roberta-base": (ROBERTA, (12, 768, 12, 3072)),
    "roberta-large": (
        {**ROBERTA, "optimizer": {**ROBERTA["optimizer"], "lr": 4e-4}, "schedule": {**ROBERTA["schedule"], "warmup_steps": 30_000}},
        (24, 1024, 16, 4096),
    ),
    "albert-base": (ALBERT, (12, 768, 12, 3072)),
    "albert-large": (ALBERT, (24, 1024, 16, 4096)),
    "albert-xlarge": (ALBERT, (24, 2048, 16, 8192)),
    "albert-xxlarge": (ALBERT, (12, 4096, 64, 16384)),
}


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def complaint(name_or_path: str, **overrides: object) -> str:
    with pytest.raises(UserError) as caught:
        load(name_or_path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def at(config: dict[str, Any], path: str) -> Any:
    for key in path.split("."):
        config = config[key]
    return config


def among(wanted: Any, found: Any) -> Any:
    """Of a mapping, what the recipe speaks of."""
    return {key: found[key] for key in wanted} if isinstance(wanted, dict) else found


@pytest.mark.parametrize("preset", RECIPES)
def test_presets_carry_the_papers_figures(preset: str) -> None:
    recipe, shape = RECIPES[preset]
    resolved = encode(load(preset))
    assert {path: among(recipe[path], at(resolved, path)) for path in recipe} == recipe
    assert tuple(resolved["model"][key] for key in ("layers", "hidden", "heads", "ffn")) == shape
    assert resolved["model"]["family"] == preset.split("-")[0]


def test_every_preset_names_its_source_in_its_first_line() -> None:
    folder = Path(__file__).parents[2] / "launcher" / "presets"
    assert sorted(RECIPES) == [name for name in preset_names() if "tiny" not in name]
    for name in RECIPES:
        assert re.match(r"# .*(Devlin|Liu|Lan) et al\. 20(18|19)", (folder / f"{name}.yaml").read_text())
    for name in ("bert-tiny", "roberta-tiny", "albert-tiny"):
        assert "not from a paper" in (folder / f"{name}.yaml").read_text().splitlines()[0]


def test_file_builds_on_preset_and_overrides_lie_on_top(tmp_path: Path) -> None:
    write(tmp_path, "wide.yaml", "base: albert-base\nmodel: {hidden: 1024, heads: 16}\noptimizer: {lr: 1e-3}\n")
    file = write(tmp_path, "run.yaml", "base: wide.yaml\noptimizer: {lr: 2e-3}\n")
    run = load(file, {"model": {"layers": 6}})
    assert (run.model.hidden, run.model.layers, run.optimizer.lr, run.model.embedding) == (1024, 6, 2e-3, 128)


def test_unknown_key_names_file_path_and_nearest_key(tmp_path: Path) -> None:
    file = write(tmp_path, "run.yaml", "base: bert-base\nmodel: {layerz: 3}\n")
    assert complaint(file) == f"{file}: model.layerz: unknown key; did you mean layers?"
    assert "modle: unknown key; did you mean model?" in complaint("bert-base", modle={"layers": 3})


def test_error_in_a_base_names_the_base(tmp_path: Path) -> None:
    base = write(tmp_path, "base.yaml", "model: {layers: many}\n")
    file = write(tmp_path, "run.yaml", "base: base.yaml\nmodel: {hidden: 768}\n")
    assert complaint(file) == f"{base}: model.layers: 'many' was given, it must be a whole number of at most 19 digits"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: {layers: 1.0}", "model.layers: 1.0 was given, it must be a whole number"),
        ("model: {layers: true}", "model.layers: True was given, it must be a whole number"),
        ("model: {sharing: al}", "must be one of none, attention, ffn, all; did you mean all?"),
        ("engine: {zero_stage: '1'}", "engine.zero_stage: '1' was given, it must be one of 0, 1, 2, 3"),
        ("engine: {zero_stage: 0}", "engine.precision: bf16 was given with zero_stage 0"),
        ("optimizer: {betas: [0.9]}", "optimizer.betas: [0.9] was given, it must be a list of 2 values"),
        ("optimizer: {lr: .inf}", "optimizer.lr: inf was given, it must be a finite number"),
        ("metrics: {tensorboard: yes}", "metrics.tensorboard: 'yes' was given, it must be true or false"),
        ("model: 3", "model: 3 was given, it must be a mapping with some of the keys family, vocab_size"),
        ("data: {pack: {sequence_length: 1024}}", "data.pack.sequence_length: 1024 was given, it must be at most model.positions (512)"),
        ("model: {heads: 7}", "model.heads: 7 was given, it must divide hidden"),
        ("data: {sentence_task: sop}", "data.sentence_task: sop was given, it needs data.pack.mode segment-pair or sentence-pair"),
        ("base: bert-base\nmodel: {type_vocab: 1}", "model.type_vocab: 1 was given, data.sentence_task nsp needs 2"),
        ("schedule: {short_fraction: 0.5, short_length: 600}", "schedule.short_length: 600 was given, it must be at most data.pack"),
        ("engine: {micro_batch_tokens: 0}", "engine.micro_batch_tokens: 0 was given, it must be at least 1, or null to find what fits"),
        ("optimizer: {betas: [0.9, 1.0]}", "optimizer.betas: [0.9, 1.0] was given, each must be at least 0 and less than 1"),
        (
            "masking: {mask_share: 0.9, random_share: 0.2}",
            "masking.random_share: 0.2 was given, with mask_share (0.9) it must be at most 1",
        ),
        ("masking: {rate: 0}", "masking.rate: 0.0 was given, it must be more than 0 and less than 1"),
        ("seed: -1", "seed: -1 was given, it must be from 0 to 2^63 - 1"),
        ('x: "\\UFFFFFFFF"', "an escape stands for no character"),
        ('"": 2', "'': unknown key"),
        ("", "the file holds nothing, it must hold a mapping"),
        ("model: {layers: 3, layers: 4}", "line 1: the key 'layers' stands twice"),
        ("model: [", "line 1: expected the node content"),
        ("model: !!python/object:os.system {}", "tags (tag:yaml.org,2002:python/object:os.system) are not allowed"),
        ("a: &x [1]\nb: *x", "line 2: aliases (*name) are not allowed"),
        ("- 1", "the file holds list, it must hold a mapping"),
        ("base: bert-bas", "base: 'bert-bas' is no preset; did you mean bert-base?"),
        ("base: 3", "base: 3 was given, it must be a preset's name or a file's path"),
        ("base: missing.yaml", "missing.yaml: cannot be read (No such file or directory)"),
        ("base: run.yaml", "more than 10 files build on each other"),
        ("[" * 5000, "more than 20 levels of nesting"),
        ("\x00", "not a text file"),
    ],
)
def test_each_mistake_is_one_sentence_with_its_file(tmp_path: Path, text: str, expected: str) -> None:
    file = write(tmp_path, "run.yaml", text)
    said = complaint(file)
    assert str(tmp_path) in said and expected in said


def test_yaml_numbers_are_what_they_look_like() -> None:
    text = b"{a: 1e-4, b: 010, c: 1:30, d: no, e: 1_000, f: '1e-4', g: null, h: 0x10, i: 12345678901234567890123}"
    assert strict_yaml.read(text) == {
        "a": 1e-4, "b": "010", "c": "1:30", "d": "no", "e": "1_000", "f": "1e-4", "g": None, "h": "0x10", "i": "12345678901234567890123",
    }  # fmt: skip


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_written_yaml_reads_back_equal(value: object) -> None:
    assert strict_yaml.read(strict_yaml.write(value).encode()) == value


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_random_bytes_give_a_value_or_a_value_error(data: bytes) -> None:
    try:
        strict_yaml.read(data)
    except ValueError as error:
        assert "\n" not in str(error)


PIECES = [
    *[
        "model",
        "base",
        ": ",
        ":",
        "\n",
        "  ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "&a ",
        "*a",
        "!!int ",
        "!x ",
        "%YAML 1.1\n",
        "---\n",
        "...\n",
    ],
    *["'", '"', "\\U", "FFFFFFFF", "\\x", "\\ud800", "|", ">-", "? ", "<<", "=", "1e-4", ".inf", "0x", "9" * 30, "~", "#", "@", "`", "\t"],
]
fragments = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@given(fragments)
def test_random_pieces_of_yaml_give_a_config_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.mktemp("pieces") / "run.yaml"
    file.write_text(text, encoding="utf-8")
    try:
        assert isinstance(load(str(file)), RunConfig)
    except UserError as error:
        assert len(str(error).splitlines()) == 1


known_keys = st.sampled_from(["base", "seed", "data", "model", "optimizer", "engine", "layers", "hidden", "betas", "zero_stage", "rate"])
config_like = st.dictionaries(known_keys | st.text(max_size=6), plain | st.dictionaries(known_keys, plain, max_size=4), max_size=4)


@given(config_like)
def test_random_yaml_gives_a_config_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, value: dict[str, object]) -> None:
    file = tmp_path_factory.mktemp("random") / "run.yaml"
    file.write_text(strict_yaml.write(value), encoding="utf-8")
    try:
        assert isinstance(load(str(file)), RunConfig)
    except UserError as error:
        assert len(str(error).splitlines()) == 1


models = st.builds(
    EncoderConfig,
    hidden=st.sampled_from([768, 1024]),
    layers=st.integers(1, 99),
    embedding=st.none() | st.integers(1, 768),
    sharing=st.sampled_from(["attention", "ffn", "all"]),
    dropout=st.just(0.0) | st.floats(0.001, 0.99),
    init_std=st.floats(1e-300, 0.9),
    heads=st.sampled_from([1, 2, 4, 8]),
)
optimizers = st.builds(
    OptimizerConfig,
    lr=st.floats(1e-300, 0.9),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    clip_norm=st.none() | st.floats(1e-10, 1e10),
)
runs = st.builds(
    RunConfig,
    seed=st.integers(0, 2**63 - 1),
    model=models,
    optimizer=optimizers,
    data=st.builds(DataConfig, pack=st.builds(PackConfig, sequence_length=st.integers(8, 512)), batch_rows=st.integers(64, 10**9)),
    schedule=st.builds(ScheduleConfig, warmup_steps=st.integers(0, 100), steps=st.integers(100, 10**12)),
    engine=st.builds(EngineConfig, zero_stage=st.sampled_from([1, 2, 3]), micro_batch_tokens=st.none() | st.integers(1, 64)),
)


@given(runs)
def test_saved_config_loads_back_equal(tmp_path_factory: pytest.TempPathFactory, run: RunConfig) -> None:
    file = tmp_path_factory.mktemp("saved") / "config.yaml"
    file.write_text(dump(run), encoding="utf-8")
    assert load(str(file)) == run
    assert decode(RunConfig, encode(run), lambda path: path) == run
