"""Phrases and names: the longest entry of a list at a word's start, in tokens, against a plain search; and what reaches the shards."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rjieba
from hypothesis import given
from hypothesis import strategies as st
from sample_corpus import DOCUMENTS
from tokenizers import Tokenizer

from remask.data_prep import manifest, tokenizer
from remask.data_prep.encode import document_encoder
from remask.data_prep.engines import REFERENCE, Engine, load_engine
from remask.data_prep.marks import MarkConfig
from remask.data_prep.phrases import LEVELS, make_lexicon, united
from remask.data_prep.tokenizer import Kind, Vocabulary

Remask = Callable[..., subprocess.CompletedProcess[str]]


def letters(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Each letter is a token, the space none."""
    ids = [[byte - 96 for byte in text if byte != 32] for text in texts]
    return np.array([i for text in ids for i in text], dtype=np.uint32), np.array([len(text) for text in ids])


PIECES = ["[UNK]", "a", "b", "c"]
LETTERS = Engine(package="test", version="0", encode=letters, reason="")


@given(
    entries=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=12),
    ids=st.lists(st.integers(1, 3), min_size=1, max_size=60),
    marks=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_the_longest_entry_is_found_from_left_to_right(entries: list[str], ids: list[int], marks: list[bool]) -> None:
    words = [True, *marks[1 : len(ids)]]
    known = {tuple(ord(letter) - 96 for letter in entry) for entry in entries}
    expected, at = [], 0
    while at < len(ids):
        ends = [end for end in range(at + 1, len(ids) + 1) if tuple(ids[at:end]) in known and (end == len(ids) or words[end])]
        if words[at] and ends:
            expected.append([at, max(ends), LEVELS["phrase"]])
            at = max(ends)
        else:
            at += 1
    found = make_lexicon({"phrase": entries}, LETTERS, PIECES, 0).find(
        np.array(ids, dtype=np.uint32), np.array(words), np.array([len(ids)])
    )
    assert found.tolist() == expected


def test_an_entry_of_both_lists_is_an_entity_and_lists_come_before_tags() -> None:
    lexicon = make_lexicon({"phrase": ["ab", "c"], "entity": ["ab"]}, LETTERS, PIECES, 0)
    found = lexicon.find(np.array([1, 2, 3, 3, 3], dtype=np.uint32), np.ones(5, dtype=np.bool_), np.array([5]))
    assert found.tolist() == [[0, 2, 2], [2, 3, 1], [3, 4, 1], [4, 5, 1]]
    tagged = np.array([[1, 3, 2], [3, 5, 2]])
    assert united(found[:2], tagged, 5).tolist() == [[0, 2, 2], [2, 3, 1], [3, 5, 2]]
    assert united(found[:0], tagged, 5).tolist() == tagged.tolist()


PHRASES = ["masked tokens", "both sides of a", "both sides", "3.5 don't"]
ENTITIES = ["U.S.", "世界"]


def test_listed_phrases_reach_the_shards_and_nothing_else_does(vocabulary: Vocabulary, remask: Remask, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS[:400]))
    (tmp_path / "t.json").write_text(vocabulary.text)
    (tmp_path / "phrases.txt").write_text("\n".join(PHRASES))
    (tmp_path / "entities.txt").write_text("\n".join(ENTITIES))
    lists = ["--phrase-list", "phrases.txt", "--entity-list", "entities.txt", "--clean.validation-share", "0"]
    result = remask("prep", "corpus.jsonl", "--tokenizer", "t.json", "--out", "set", "--pack.sequence-length", "64", *lists)
    assert result.returncode == 0, result.stderr

    import webdataset

    shards = manifest.read(tmp_path / "set").train
    reference = Tokenizer.from_str(vocabulary.text)
    found = []
    for block in webdataset.WebDataset([str(tmp_path / "set" / shard.name) for shard in shards], shardshuffle=False).decode():
        assert block["phrases.npy"].dtype == np.uint32
        rows = block["rows.npy"]
        for begin, end, level in block["phrases.npy"].tolist():
            assert np.searchsorted(rows, begin, side="right") == np.searchsorted(rows, end, side="left"), "it lies in one row"
            text = reference.decode(block["ids.npy"][begin:end].tolist(), skip_special_tokens=False).strip()
            found.append((text.replace(" ", ""), level))
    expected = {(entry.replace(" ", ""), 1) for entry in PHRASES} | {(entry.replace(" ", ""), 2) for entry in ENTITIES}
    assert set(found) <= expected
    pattern = re.compile("|".join(rf"\b{re.escape(entry)}\b" for entry in PHRASES))
    in_text = sum(len(pattern.findall(text)) for text in DOCUMENTS[:400])
    phrases = sum(level == 1 for _, level in found)
    least = 0.2 if vocabulary.kind == "Unigram" else 0.8  # SentencePiece has tokens such as "tokens.", which end no phrase
    assert in_text > 100 and least * in_text <= phrases <= in_text, "some lie across two rows"
    if vocabulary.kind == "WordPiece":
        assert sum(level == 2 for _, level in found) > 50


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_chinese_names_are_those_that_rjieba_tags(kind: Kind) -> None:
    texts = ["联合国秘书长在北京大学讲话。", "南京市长江大桥很长，葡萄牙很远。", "Python 在北京。"]
    vocabulary = tokenizer.train(iter(texts * 5), kind, 280 if kind == "bpe" else 60, lowercase=False)
    marks = MarkConfig(chinese_words=True, chinese_entities=True)
    encode = document_encoder(vocabulary, load_engine(REFERENCE, vocabulary.text), marks)
    reference = Tokenizer.from_str(vocabulary.text)
    encoded = encode([text.encode() for text in texts])
    names = [word for text in texts for word, tag in rjieba.Jieba().tag(text) if tag[:2] in ("nr", "ns", "nt")]
    decoded = [reference.decode(encoded.ids[begin:end].tolist()).replace(" ", "") for begin, end, _ in encoded.phrases]
    assert len(names) >= 5 and "北京大学" in names
    if kind == "wordpiece":  # one token an ideograph; in others a token may reach over a name's border, and the name is left out
        assert decoded == names
    assert decoded and set(decoded) <= set(names)
    assert set(encoded.phrases[:, 2].tolist()) == {LEVELS["entity"]}


@pytest.mark.parametrize(("content", "said"), [("", "has no entry"), (None, "cannot be read"), (b"\xff\xfe\x00", "cannot be read")])
def test_a_list_that_gives_nothing_is_one_sentence(remask: Remask, tmp_path: Path, content: str | bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "list.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "c.txt").write_text("text")
    result = remask("prep", "c.txt", "--tokenizer", "t.json", "--out", "set", "--phrase-list", "list.txt")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "--phrase-list: list.txt" in line and said in line


def spans_of(vocabulary: Vocabulary, texts: list[str], phrases: list[str]) -> list[str]:
    encode = document_encoder(vocabulary, load_engine(REFERENCE, vocabulary.text), MarkConfig(phrases=tuple(phrases)))
    encoded = encode([text.encode() for text in texts])
    reference = Tokenizer.from_str(vocabulary.text)
    return [reference.decode(encoded.ids[begin:end].tolist()).strip() for begin, end, _ in encoded.phrases]


def test_a_phrase_does_not_reach_into_the_next_document(vocabulary: Vocabulary) -> None:
    texts = ["the model reads both", "sides of a model reads"]
    assert spans_of(vocabulary, texts, ["model reads", "both sides", "reads both sides"]) == ["model reads", "model reads"]


def test_an_entry_that_the_vocabulary_cannot_write_marks_nothing_and_is_told(remask: Remask, tmp_path: Path) -> None:
    vocabulary = tokenizer.train(iter(DOCUMENTS[:200]), "wordpiece", 300, lowercase=False)
    assert spans_of(vocabulary, ["the \u2603 model \u265e reads"], ["\N{UNICORN FACE}"]) == []
    (tmp_path / "t.json").write_text(vocabulary.text)
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "the \u2603 model"}))
    (tmp_path / "list.txt").write_text("\N{UNICORN FACE}\nthe model\n")
    options = ["--clean.validation-share", "0", "--phrase-list", "list.txt"]
    result = remask("prep", "c.jsonl", "--tokenizer", "t.json", "--out", "set", *options)
    assert result.returncode == 0 and "--phrase-list: 1 of 2 entries cannot be written in this vocabulary" in result.stderr
    assert "0 phrases and 0 entities marked" in result.stdout


def test_entries_are_cleaned_as_the_corpus_is(remask: Remask, tmp_path: Path) -> None:
    text = "We met in the Cafe\u0301 Noir again."
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": text}))
    (tmp_path / "list.txt").write_text("Cafe\u0301 Noir\n")
    (tmp_path / "t.json").write_text(tokenizer.train(iter([text.replace("e\u0301", "é")] * 5), "bpe", 320, lowercase=False).text)
    options = ["--clean.validation-share", "0", "--phrase-list", "list.txt"]
    result = remask("prep", "c.jsonl", "--tokenizer", "t.json", "--out", "set", *options)
    assert "1 phrases and 0 entities marked" in result.stdout, result.stderr


def test_unigram_finds_entries_behind_brackets_and_inside_chinese() -> None:
    vocabulary = tokenizer.train(iter(["(new york) new york 在new york里", "york new"] * 20), "unigram", 40, lowercase=False)
    assert len(spans_of(vocabulary, ["(new york) is new york"], ["new york"])) == 2
