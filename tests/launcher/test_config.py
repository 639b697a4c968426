"""Presets, inheritance, strictness: a config, or one sentence."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.data_prep.loader import DataConfig
from remask.launcher import strict_yaml
from remask.launcher.config import RunConfig, dump, load, preset_names
from remask.launcher.decode import decode, encode
from remask.launcher.engine import EngineConfig
from remask.launcher.errors import UserError
from remask.launcher.optimizer import OptimizerConfig
from remask.launcher.schedule import ScheduleConfig
from remask.model.config import EncoderConfig

# The recipes' figures: batch, lr, warm-up, steps, betas, clipping, optimizer.
RECIPES = {
    "bert-base": (256, 1e-4, 10_000, 1_000_000, (0.9, 0.999), 1.0, "adamw"),
    "roberta-base": (8192, 6e-4, 24_000, 500_000, (0.9, 0.98), None, "adamw"),
    "roberta-large": (8192, 4e-4, 30_000, 500_000, (0.9, 0.98), None, "adamw"),
    "albert-xlarge": (4096, 1.76e-3, 3125, 125_000, (0.9, 0.999), 1.0, "lamb"),
}


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def complaint(name_or_path: str, **overrides: object) -> str:
    with pytest.raises(UserError) as caught:
        load(name_or_path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("preset", RECIPES)
def test_presets_carry_the_papers_figures(preset: str) -> None:
    run = load(preset)
    optimizer = run.optimizer
    figures = (run.data.batch_rows, optimizer.lr, run.schedule.warmup_steps, run.schedule.steps, optimizer.betas, optimizer.clip_norm)
    assert (*figures, optimizer.name) == RECIPES[preset]


def test_every_preset_has_a_source_in_its_first_line() -> None:
    folder = Path(__file__).parents[2] / "launcher" / "presets"
    names = preset_names()
    assert len(names) == 12
    for name in names:
        assert (folder / f"{name}.yaml").read_text().startswith("# ")


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
    assert complaint(file) == f"{base}: model.layers: 'many' was given, it must be a whole number"


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
        ("data: {sequence_length: 1024}", "data.sequence_length: 1024 was given, it must be at most model.positions (512)"),
        ("model: {heads: 7}", "model.heads: 7 was given, it must divide hidden"),
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
    dropout=st.floats(0, 0.99),
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
    data=st.builds(DataConfig, sequence_length=st.integers(8, 512), batch_rows=st.integers(1, 10**9)),
    schedule=st.builds(ScheduleConfig, warmup_steps=st.integers(0, 100), steps=st.integers(100, 10**12)),
    engine=st.builds(EngineConfig, zero_stage=st.sampled_from([1, 2, 3]), micro_batch_rows=st.none() | st.integers(1, 4096)),
)


@given(runs)
def test_saved_config_loads_back_equal(tmp_path_factory: pytest.TempPathFactory, run: RunConfig) -> None:
    file = tmp_path_factory.mktemp("saved") / "config.yaml"
    file.write_text(dump(run), encoding="utf-8")
    assert load(str(file)) == run
    assert decode(RunConfig, encode(run), lambda path: path) == run
