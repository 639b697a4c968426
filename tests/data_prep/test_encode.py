"""Documents to tokens: Hugging Face's ids, with sentence and document ends where the text has them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_corpus import DOCUMENTS
from tokenizers import Tokenizer

from remask.data_prep.encode import document_encoder
from remask.data_prep.engines import choose_engine
from remask.data_prep.sentences import sentence_ends
from remask.data_prep.tokenizer import Vocabulary
from remask.data_prep.words import continuation_tables, mark_words


def encoder_of(vocabulary: Vocabulary):  # type: ignore[no-untyped-def]
    return document_encoder(vocabulary, choose_engine(vocabulary.text, DOCUMENTS[:20]))


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
    tokenizer = Tokenizer.from_str(vocabulary.text)
    text = next(text for text in DOCUMENTS if text.count(".") > 5).strip().encode()
    encoded = encoder_of(vocabulary)([text])
    begin = byte = 0
    ends = sentence_ends(text).tolist()
    assert len(ends) == len(encoded.sentences) > 5
    for token, end in zip(encoded.sentences, ends, strict=True):
        decoded = tokenizer.decode(encoded.ids[begin:token].tolist(), skip_special_tokens=False)
        assert decoded.replace(" ", "").strip() == text[byte:end].decode().replace(" ", "").strip() or "unk" in decoded.lower()
        begin, byte = token, end


def test_names_of_special_tokens_in_a_text_are_text(vocabulary: Vocabulary) -> None:
    specials = {i for role, i in vocabulary.specials.items() if role != "unk"}
    texts = [b"It names <mask> and [MASK], </s>, [SEP] and <pad> in passing.", b"Nothing here."]
    encoded = encoder_of(vocabulary)(texts)
    assert len(encoded.ids) > 10 and len(encoded.documents) == 2
    assert not specials & set(encoded.ids.tolist())


def test_words_begin_at_spaces_and_punctuation(vocabulary: Vocabulary) -> None:
    encoded = encoder_of(vocabulary)([b"the model (reads) masked tokens, mothers?"])
    marks = mark_words(encoded.ids, encoded.documents, *continuation_tables(vocabulary))
    tokenizer = Tokenizer.from_str(vocabulary.text)
    words: list[str] = []
    for i, begins in zip(encoded.ids.tolist(), marks, strict=True):
        piece = tokenizer.id_to_token(i).replace("##", "").replace("Ġ", "").replace("▁", "")
        words = [*words, piece] if begins else [*words[:-1], words[-1] + piece]
    assert len(encoded.ids) > len(words)
    assert [word for word in words if word.isalpha()] == ["the", "model", "reads", "masked", "tokens", "mothers"]


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
