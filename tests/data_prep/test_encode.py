"""Documents to tokens: Hugging Face's ids, with sentence and document ends where the text has them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rjieba
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_corpus import DOCUMENTS, trained
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from remask.data_prep import tokenizer
from remask.data_prep.encode import document_encoder
from remask.data_prep.engines import choose_engine
from remask.data_prep.errors import InputError
from remask.data_prep.marks import MarkConfig
from remask.data_prep.sentences import sentence_ends
from remask.data_prep.tokenizer import Kind, Vocabulary
from remask.data_prep.words import bytes_of, is_ideograph


def encoder_of(vocabulary: Vocabulary):  # type: ignore[no-untyped-def]
    return document_encoder(
        vocabulary, choose_engine(vocabulary.text, vocabulary.kind, [text.encode() for text in DOCUMENTS[:20]]), MarkConfig()
    )


def test_ids_are_hugging_faces_and_documents_end_where_they_do(vocabulary: Vocabulary) -> None:
    texts = [text.strip() for text in DOCUMENTS[100:200]]
    encoded = encoder_of(vocabulary)([text.encode() for text in texts])
    reference = [encoding.ids for encoding in Tokenizer.from_str(vocabulary.text).encode_batch(texts, add_special_tokens=False)]
    assert len(encoded.ids) > 1000
    assert encoded.ids.tolist() == [i for ids in reference for i in ids]
    assert encoded.documents.tolist() == np.cumsum([len(ids) for ids in reference]).tolist()
    assert set(encoded.documents) <= set(encoded.sentences)


def test_each_sentence_has_its_own_tokens(vocabulary: Vocabulary) -> None:
    """What is decoded between two ends is what stands between the ends in the text, white space aside."""
    reference = Tokenizer.from_str(vocabulary.text)
    text = next(text for text in DOCUMENTS if text.count(".") > 5).strip().encode()
    encoded = encoder_of(vocabulary)([text])
    begin = byte = 0
    ends = sentence_ends(text).tolist()
    assert len(ends) == len(encoded.sentences) > 5
    for token, end in zip(encoded.sentences, ends, strict=True):
        decoded = reference.decode(encoded.ids[begin:token].tolist(), skip_special_tokens=False)
        assert decoded.replace(" ", "").strip() == text[byte:end].decode().replace(" ", "").strip() or "unk" in decoded.lower()
        begin, byte = token, end


def test_names_of_special_tokens_in_a_text_are_text(vocabulary: Vocabulary) -> None:
    specials = {i for role, i in vocabulary.specials.items() if role != "unk"}
    texts = [b"It names <mask> and [MASK], </s>, [SEP] and <pad> in passing.", b"Nothing here."]
    encoded = encoder_of(vocabulary)(texts)
    assert len(encoded.ids) > 10 and len(encoded.documents) == 2
    assert not specials & set(encoded.ids.tolist())


def test_names_of_added_special_tokens_are_text_too(vocabulary: Vocabulary, tmp_path: Path) -> None:
    other = changed(vocabulary, lambda it: it.add_special_tokens([AddedToken("<ent>", special=True, lstrip=True)]), tmp_path)
    added = other.pieces.index("<ent>")
    encoded = encoder_of(other)([b"Hello <ent> there.", b"Nothing here."])
    assert added in other.control_ids and len(encoded.ids) > 4 and added not in encoded.ids


def test_words_begin_at_spaces_and_punctuation(vocabulary: Vocabulary) -> None:
    encoded = encoder_of(vocabulary)([b"the model (reads) masked tokens, mothers?"])
    reference = Tokenizer.from_str(vocabulary.text)
    words: list[str] = []
    for i, begins in zip(encoded.ids.tolist(), encoded.words, strict=True):
        piece = reference.id_to_token(i).replace("##", "").replace("Ġ", "").replace("▁", "")
        piece = piece.replace("<unk>", "")  # the sample has no brackets; what is unknown belongs to the word that it touches
        words = [*words, piece] if begins else [*words[:-1], words[-1] + piece]
    assert len(encoded.ids) > len(words)
    assert [word for word in words if word.isalpha()] == ["the", "model", "reads", "masked", "tokens", "mothers"]


CHINESE = ["我来到北京清华大学。", "今天天气很好，我们去北京大学看书！", "Python 是一种语言，北京欢迎你。", "𠮷野家在北京。"]


def chinese_vocabulary(kind: Kind) -> Vocabulary:
    return tokenizer.train(iter(CHINESE[:2] * 5), kind, 400 if kind == "bpe" else 60, lowercase=False)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_chinese_words_are_those_of_the_segmenter(kind: Kind) -> None:
    """Also where the vocabulary lacks an ideograph, and for tokens that begin in the middle of one."""
    vocabulary = chinese_vocabulary(kind)
    marks = MarkConfig(chinese_words=True, words=("吉野家", "欢迎你"))
    encode = document_encoder(vocabulary, choose_engine(vocabulary.text, vocabulary.kind, [text.encode() for text in CHINESE]), marks)
    reference = Tokenizer.from_str(vocabulary.text)
    checked = 0
    for text in CHINESE:
        encoded = encode([text.encode()])
        jieba = rjieba.Jieba()
        for word in ("吉野家", "欢迎你"):
            jieba.add_word(word, None, None)
        starts = set(np.cumsum([0, *map(len, jieba.cut(text))]).tolist())
        offsets = reference.encode(text, add_special_tokens=False).offsets
        first_of_character = {place: i for i, place in reversed(list(enumerate(offset[0] for offset in offsets)))}
        for place, token in first_of_character.items():
            if is_ideograph(text)[place]:
                assert encoded.words[token] == (place in starts), (text, text[place])
                checked += 1
        for token, offset in enumerate(offsets):  # what goes on inside an ideograph begins no word
            if is_ideograph(text)[offset[0]] and first_of_character[offset[0]] != token:
                assert not encoded.words[token], (text, token, offsets, encoded.words)
    assert checked > 10


@settings(max_examples=60)
@given(texts=st.lists(st.text(alphabet=st.sampled_from("abcD .!?\n字。é'1"), min_size=1, max_size=50), min_size=1, max_size=5))
def test_any_texts_keep_every_token_in_a_sentence_and_a_document(vocabulary: Vocabulary, texts: list[str]) -> None:
    cleaned = [text.strip().encode() for text in texts if text.strip()]
    if not cleaned:
        return
    encoded = encoder_of(vocabulary)(cleaned)
    for ends in (encoded.sentences, encoded.documents):
        assert np.all(np.diff(ends) > 0)
        assert (ends[-1] if len(ends) else 0) == len(encoded.ids)
    assert set(encoded.documents.tolist()) <= set(encoded.sentences.tolist())


def changed(vocabulary: Vocabulary, change: Callable[[Any], None], tmp_path: Path) -> Vocabulary:
    """The tokenizer after a change through the library, loaded from a file as a user's is."""
    other = Tokenizer.from_str(vocabulary.text)
    change(other)
    other.save(str(tmp_path / "tokenizer.json"))
    return tokenizer.load(tmp_path)


def test_truncation_and_padding_in_the_file_do_not_touch_the_text(vocabulary: Vocabulary, tmp_path: Path) -> None:
    def cut_and_fill(other: Any) -> None:
        other.enable_truncation(16)
        other.enable_padding(length=16)

    texts = [text.encode() for text in DOCUMENTS[:50]]
    expected = encoder_of(vocabulary)(texts)
    got = encoder_of(changed(vocabulary, cut_and_fill, tmp_path))(texts)
    assert len(expected.ids) > 1000 and np.array_equal(got.ids, expected.ids)


def add_prefix_space(other: Any) -> None:
    other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def add_wide_token(other: Any) -> None:
    other.add_tokens(["日本語"])


def add_stripping_token(other: Any) -> None:
    other.add_tokens([AddedToken("<x>", lstrip=True, rstrip=True)])


def split_at_white_space_first(other: Any) -> None:
    other.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)])


@pytest.mark.parametrize("change", [add_prefix_space, add_wide_token, add_stripping_token, split_at_white_space_first])
def test_byte_level_tokenizers_of_other_forms_keep_their_sentences(change: Callable[[Any], None], tmp_path: Path) -> None:
    other = changed(trained("bpe"), change, tmp_path)
    texts = ["The model reads. The words end here! Both sides?", "日本語 日本語. A sentence <x> follows. Another one."] * 4
    encoded = encoder_of(other)([text.encode() for text in texts])
    reference = Tokenizer.from_str(other.text)
    begin, sentences = 0, []
    for end in encoded.sentences.tolist():
        sentences.append(re.sub(r"\s", "", reference.decode(encoded.ids[begin:end].tolist(), skip_special_tokens=False)))
        begin = end
    expected = [re.sub(r"\s", "", part) for text in texts for part in re.split(r"(?<=[.!?]) ", text)]
    assert len(expected) == 24 and sentences == expected


def test_words_of_byte_level_bpe_follow_the_characters_not_the_bytes() -> None:
    text = "“Hello” he said—quite naïve élève. Привет мир, don’t"
    vocabulary = tokenizer.train(iter([text, *DOCUMENTS[:200]]), "bpe", 700, lowercase=False)
    encoded = encoder_of(vocabulary)([text.encode()])
    ends = np.cumsum([len(bytes_of(vocabulary.pieces[i])) for i in encoded.ids.tolist()]).tolist()
    marked = [start for start, begins in zip([0, *ends], encoded.words, strict=False) if begins]
    data = text.encode()
    words = [data[begin:end].decode().strip() for begin, end in zip(marked, [*marked[1:], len(data)], strict=True)]
    expected = ["“", "Hello", "”", "he", "said", "—", "quite", "naïve", "élève", ".", "Привет", "мир", ",", "don", "’", "t"]
    assert [word for word in words if word] == expected


def test_a_tokenizer_whose_pieces_do_not_mark_words_is_refused() -> None:
    plain = Tokenizer(models.BPE(unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.train_from_iterator(
        DOCUMENTS[:50], trainers.BpeTrainer(vocab_size=300, special_tokens=[names[0] for names in tokenizer.ROLES.values()])
    )
    with pytest.raises(InputError, match="do not tell where words begin"):
        encoder_of(Vocabulary(text=plain.to_str()))
