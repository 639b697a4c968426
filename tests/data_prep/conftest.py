"""A small corpus with everything in it, tokenizers of each kind trained on it, and shards of some of its documents."""

import json
from pathlib import Path

import pytest
from data_prep.loading import make_set
from sample_corpus import DOCUMENTS, trained

from remask.data_prep.tokenizer import Vocabulary


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents, some twice, one with a special token's name, and a few lines that cannot be read."""
    file = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    lines = [json.dumps({"text": text}) for text in DOCUMENTS]
    lines[500:500] = [json.dumps({"text": DOCUMENTS[3]}), "not json", json.dumps({"text": "  "}), json.dumps({"text": 5})]
    lines.append(json.dumps({"text": "A text that names <mask> and [MASK] and </s> in passing. It is text."}))
    lines.append(json.dumps({"text": DOCUMENTS[700]}))
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="session", params=["bpe", "wordpiece", "unigram"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return trained(request.param)


@pytest.fixture(scope="session")
def bpe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    file.write_text(trained("bpe").text)
    return file


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory, bpe_file: Path) -> Path:
    return make_set(tmp_path_factory.mktemp("loader") / "a", bpe_file, DOCUMENTS[:300])


@pytest.fixture(scope="session")
def more_shards(tmp_path_factory: pytest.TempPathFactory, bpe_file: Path) -> Path:
    return make_set(tmp_path_factory.mktemp("loader") / "b", bpe_file, DOCUMENTS[300:400])
