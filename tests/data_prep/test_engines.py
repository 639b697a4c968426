"""The fast engine is used only where it gives Hugging Face's ids."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from remask.data_prep import engines
from remask.data_prep.engines import choose_engine
from remask.launcher.checks.software import _SAMPLE, _sample_tokenizers

TOKENIZERS = _sample_tokenizers()
SAMPLE = [text.encode() for text in _SAMPLE]


@pytest.fixture(autouse=True)
def no_engine_is_kept() -> None:
    engines.load_engine.cache_clear()


@pytest.mark.parametrize(("kind", "package"), [("BPE", "gigatoken"), ("WordPiece", "tokie"), ("Unigram", "tokenizers")])
def test_chosen_engine_gives_hugging_faces_ids(kind: str, package: str) -> None:
    engine = choose_engine(TOKENIZERS[kind], kind, SAMPLE)
    assert engine.package == package
    texts = [*_SAMPLE, "", "an unseen text, with unseen words"]
    expected = [Tokenizer.from_str(TOKENIZERS[kind]).encode(text, add_special_tokens=False).ids for text in texts]
    ids, counts = engine.encode([text.encode() for text in texts])
    assert len(ids) > 100
    assert ids.tolist() == [i for text in expected for i in text]
    assert counts.tolist() == [len(text) for text in expected]


def test_an_engine_with_other_ids_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.FAST, "BPE", ("gigatoken", lambda _: lambda texts: (np.ones(len(texts)), np.ones(len(texts)))))
    engine = choose_engine(TOKENIZERS["BPE"], "BPE", SAMPLE)
    assert engine.package == "tokenizers" and "gigatoken gave other ids for" in engine.reason


def test_an_engine_that_fails_is_replaced_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> engines.Encode:
        raise OSError("no such symbol")

    monkeypatch.setitem(engines.FAST, "WordPiece", ("tokie", broken))
    engine = choose_engine(TOKENIZERS["WordPiece"], "WordPiece", SAMPLE)
    assert engine.package == "tokenizers" and engine.reason == "tokie failed (OSError: no such symbol)"
    assert len(engine.encode([b"quick"])[0])


def test_an_empty_sample_proves_nothing() -> None:
    assert json.loads(TOKENIZERS["BPE"])["model"]["type"] == "BPE"
    with pytest.raises(ValueError, match="no text was given"):
        choose_engine(TOKENIZERS["BPE"], "BPE", [])
