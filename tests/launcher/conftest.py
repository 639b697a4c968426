"""Real shards and a recipe that trains on them in seconds."""

import json
from pathlib import Path

import pytest
from sample_corpus import DOCUMENTS, trained

from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Source
from remask.data_prep.pack import PackConfig
from remask.data_prep.prep import PrepConfig, prepare
from remask.data_prep.workers import local_workers

RECIPE = """
base: albert-tiny
data:
  pack: {mode: segment-pair, sequence_length: 32, short_probability: 0.1}
  batch_rows: 24
  lanes: 12
model: {vocab_size: 200, hidden: 32, heads: 2, layers: 3, ffn: 64, positions: 32, embedding: 16, dropout: 0.1, attention_dropout: 0.1}
optimizer: {lr: 3e-2}
schedule: {steps: 40, warmup_steps: 4}
engine: {micro_batch_tokens: 200}
checkpoint: {save_every_steps: 13, keep_last: 10}
metrics: {log_every_steps: 1, evaluate_every_steps: 20, evaluate_rows: 64, row_digests: true, tensorboard: false}
"""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and its tokenizer."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS[:260]))
    (folder / "tokenizer.json").write_text(trained("unigram").text)
    return folder


@pytest.fixture(scope="session")
def shards(corpus: Path) -> Path:
    """Few enough rows that 40 steps go over the end of an epoch."""
    return prepared(corpus, 32)


@pytest.fixture(scope="session")
def short_shards(corpus: Path) -> Path:
    return prepared(corpus, 16)


@pytest.fixture(scope="session")
def one_document(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of a document that is longer than a block, and nothing held out."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "corpus.jsonl").write_text(json.dumps({"text": " ".join(DOCUMENTS[:60])}) + "\n")
    (folder / "tokenizer.json").write_text((corpus / "tokenizer.json").read_text())
    return prepared(folder, 32, validation_share=0.0)


def prepared(corpus: Path, length: int, validation_share: float = 0.05) -> Path:
    settings = PrepConfig(
        sources=(Source(name="documents", paths=(str(corpus / "corpus.jsonl"),)),),
        tokenizer=corpus / "tokenizer.json",
        pack=PackConfig(mode="segment-pair", sequence_length=length, short_probability=0.1),
        clean=CleanConfig(validation_share=validation_share),
    )
    with local_workers(1) as workers:
        outcome = prepare(settings, corpus / f"shards-{length}", workers, lambda *_: None)
    assert outcome.manifest is not None
    return corpus / f"shards-{length}"


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    file.write_text(RECIPE)
    return str(file)
