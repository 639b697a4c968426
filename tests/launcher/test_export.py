"""`remask export` and `remask import`, with Hugging Face as the judge of what was written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sample_corpus import trained

from remask.launcher import hub_files
from remask.launcher.cli import main
from remask.launcher.model_folder import StoredModel, read_model, write_model
from remask.model.config import EncoderConfig
from remask.model.heads import PretrainingModel

KINDS: dict[str, Any] = {"bert": "wordpiece", "roberta": "bpe", "albert": "unigram"}


def stored(family: Any, sentence_task: bool = True, **options: Any) -> StoredModel:
    """A model with random weights everywhere, as training leaves them."""
    vocabulary = trained(KINDS[family])
    sizes: dict[str, Any] = {"hidden": 16, "layers": 4, "heads": 2, "ffn": 40, "positions": 64, "norm_eps": 1e-5}
    config = EncoderConfig(
        family=family, vocab_size=len(vocabulary.pieces), position_offset=2 if family == "roberta" else 0,
        type_vocab=1 if family == "roberta" else 2, **{**sizes, **options},
    )  # fmt: skip
    torch.manual_seed(7)
    model = PretrainingModel(config, sentence_task=sentence_task)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    record = {"steps": 20000, "data": {"manifest": "abc|def"}}
    return StoredModel(config=config, sentence_task=sentence_task, state=model.state_dict(), vocabulary=vocabulary, record=record)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("bert", "BertForPreTraining", {}),
    ("bert", "BertForMaskedLM", {"sentence_task": False}),
    ("bert", "BertForPreTraining", {"sharing": "attention"}),
    ("bert", "AlbertForPreTraining", {"sharing": "all"}),
    ("bert", "AlbertForPreTraining", {"embedding": 8}),
    ("roberta", "RobertaForMaskedLM", {"sentence_task": False}),
    ("roberta", "RobertaPreLayerNormForMaskedLM", {"sentence_task": False, "norm": "pre"}),
    ("albert", "AlbertForPreTraining", {"sharing": "all", "embedding": 8, "activation": "gelu-tanh"}),
    ("albert", "AlbertForPreTraining", {"sharing": "all", "groups": 2}),
    ("albert", "AlbertForMaskedLM", {"sharing": "all", "sentence_task": False}),
    ("albert", "BertForPreTraining", {"sharing": "ffn"}),
    ("albert", "AlbertForPreTraining", {"sharing": "ffn", "embedding": 8}),
]


@pytest.mark.parametrize(("family", "architecture", "options"), CASES)
def test_exported_models_open_in_hugging_face_with_the_same_scores(
    family: str, architecture: str, options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = stored(family, **options)
    write_model(tmp_path / "checkpoint", model)
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "exported")]) == 0
    told = capsys.readouterr().out
    settings = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert settings["architectures"] == [architecture] and settings["vocab_size"] == model.config.vocab_size
    assert ("is written out" in told) == (options.get("sharing") in ("attention", "ffn"))

    theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "exported").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    inputs = tokenizer("The encoder reads Éa and 北京 twice.", "And a second part.", return_tensors="pt")
    assert ("token_type_ids" in inputs) == (family != "roberta") and inputs["input_ids"].shape[1] > 10
    ids, segments = inputs["input_ids"][0], inputs.get("token_type_ids", [None])[0]
    scores, sentence = model.build().score(ids, torch.tensor([0, len(ids)]), torch.arange(len(ids)), segments)
    made = theirs(**inputs)
    their_scores = made.prediction_logits if architecture.endswith("PreTraining") else made.logits
    assert their_scores.shape[-1] == model.config.vocab_size
    torch.testing.assert_close(scores, their_scores[0], rtol=0, atol=1e-5)
    if architecture.endswith("PreTraining"):
        wanted = made.sop_logits if "Albert" in architecture else made.seq_relationship_logits
        torch.testing.assert_close(sentence, wanted, rtol=0, atol=1e-5)
    filled = transformers.pipeline("fill-mask", model=str(tmp_path / "exported"))(f"a {tokenizer.mask_token} b")
    assert len(filled) == 5
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "20000" in card and r"abc\|def" in card and architecture in card and "largest difference" in card
    assert not list(tmp_path.glob(".*partial"))


@pytest.mark.parametrize(("family", "architecture", "options"), [CASES[i] for i in (0, 1, 5, 6, 7, 8)])
def test_import_and_export_give_the_same_weights_again(family: str, architecture: str, options: dict[str, Any], tmp_path: Path) -> None:
    write_model(tmp_path / "checkpoint", stored(family, **options))
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "first")]) == 0
    assert main(["import", str(tmp_path / "first"), str(tmp_path / "imported")]) == 0
    assert main(["export", str(tmp_path / "imported"), str(tmp_path / "second")]) == 0
    ours, back = read_model(tmp_path / "checkpoint"), read_model(tmp_path / "imported")
    assert back.state.keys() == ours.state.keys() and all(torch.equal(back.state[name], ours.state[name]) for name in ours.state)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert first.keys() == second.keys() and len(first) > 20 and all(torch.equal(first[name], second[name]) for name in first)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / "first" / name).read_text()) == json.loads((tmp_path / "second" / name).read_text())


def test_models_that_hugging_face_saved_itself_can_be_imported(tmp_path: Path) -> None:
    """As fp16 in several files, with the names of old LayerNorms, and without a pooler."""
    vocabulary = trained("wordpiece")
    config = transformers.BertConfig(vocab_size=len(vocabulary.pieces), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                     intermediate_size=20, max_position_embeddings=32, pad_token_id=0)  # fmt: skip
    theirs = transformers.BertForMaskedLM(config).half().eval()
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="5KB")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=hub_tokenizer(vocabulary), pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(tmp_path / "theirs")  # fmt: skip
    files = list((tmp_path / "theirs").glob("model-*.safetensors"))
    assert len(files) > 1
    for file in files:
        weights = load_file(file)
        save_file({name.replace("LayerNorm.weight", "LayerNorm.gamma"): weight for name, weight in weights.items()}, file, {"format": "pt"})
    index = tmp_path / "theirs" / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("LayerNorm.weight", "LayerNorm.gamma"))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "imported")]) == 0
    found = read_model(tmp_path / "imported").state["encoder.ffns.1.inner.weight"]
    assert torch.equal(found, theirs.bert.encoder.layer[1].intermediate.dense.weight.float())


def hub_tokenizer(vocabulary: Any) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.processors import BertProcessing

    tokenizer = Tokenizer.from_str(vocabulary.text)
    specials = vocabulary.specials
    tokenizer.post_processor = BertProcessing(("[SEP]", specials["sep"]), ("[CLS]", specials["cls"]))
    return tokenizer


@pytest.mark.parametrize("damage", ["weights", "ids"])
def test_a_folder_that_does_not_match_is_not_left_behind(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = stored("bert")
    write_model(tmp_path / "checkpoint", model)
    write = hub_files.write_files

    def write_wrongly(folder: Path, *rest: Any) -> None:
        write(folder, *rest)
        if damage == "weights":
            weights = load_file(folder / "model.safetensors")
            weights["bert.encoder.layer.3.output.dense.bias"][3] += 1e-3
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        else:
            text = (folder / "tokenizer.json").read_text()
            assert '"lowercase": false' in text
            (folder / "tokenizer.json").write_text(text.replace('"lowercase": false', '"lowercase": true'))

    monkeypatch.setattr(hub_files, "write_files", write_wrongly)
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "exported")]) == 2
    complaint = capsys.readouterr().err
    assert ("gives other scores" if damage == "weights" else "its tokenizer encodes") in complaint
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_large_models_rounding_is_no_mismatch(tmp_path: Path) -> None:
    """Scores in the thousands differ by more than 1e-5 in fp32 however equal the weights are."""
    model = stored("bert")
    for name in ("encoder.embeddings.words.weight", "masked_tokens.norm.weight"):
        model.state[name].mul_(100)
    write_model(tmp_path / "checkpoint", model)
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "exported")]) == 0
    assert "fp64" in (tmp_path / "exported" / "README.md").read_text()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"x" + (folder / "model.safetensors").read_bytes()[1:]),
            "digest differs",
        ),
        (lambda folder: (folder / "model.json").unlink(), "cannot be read"),
        (lambda folder: (folder / "digests.json").unlink(), "neither a run nor a checkpoint"),
        (lambda folder: shutil.rmtree(folder), "neither a run nor a checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_named(spoil: Any, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "checkpoint", stored("bert"))
    spoil(tmp_path / "checkpoint")
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "exported")]) == 2
    assert complaint in capsys.readouterr().err and not (tmp_path / "exported").exists()


def test_a_run_is_exported_from_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (10, 20, 30):
        model = stored("bert")
        model.record["steps"] = step
        write_model(run / "checkpoints" / f"step-{step:08d}", model)
    (run / "checkpoints" / "step-00000030" / "model.safetensors").write_bytes(b"torn")
    assert main(["export", str(run), str(tmp_path / "exported")]) == 0
    assert "| steps | 20 |" in (tmp_path / "exported" / "README.md").read_text()


def test_what_cannot_be_expressed_or_overwritten_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "checkpoint", stored("bert", query_key_norm=True))
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "exported")]) == 2
    assert "cannot be exported: query_key_norm: no class of Hugging Face has it" in capsys.readouterr().err
    write_model(tmp_path / "plain", stored("bert"))
    (tmp_path / "exported").mkdir()
    assert main(["export", str(tmp_path / "plain"), str(tmp_path / "exported")]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert list((tmp_path / "exported").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model_type": "gpt2"}, "model_type: 'gpt2' was given"),
        ({"hidden_act": "relu"}, "hidden_act: 'relu' was given"),
        ({"is_decoder": True}, "is_decoder: True was given"),
        ({"intermediate_size": 44}, "encoder.ffns.0.inner.weight: has (40, 16) in the file and (44, 16) in the config"),
        ({"num_hidden_layers": 5}, "bert.encoder.layer.4.attention.self.query.weight is missing"),
        ({"hidden_size": "16"}, "hidden_size: '16' was given, it must be a whole number"),
        ({"hidden_size": 16.0}, "hidden_size: 16.0 was given, it must be a whole number"),
        ({"vocab_size": 5000}, "in the config"),
        ({"hidden_size": 60000, "num_attention_heads": 2}, "in the config"),
        ({"layer_norm_eps": "small"}, "norm_eps: 'small' was given"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: False was given"),
        ({"model_type": None}, "model_type: None was given"),
    ],
)
def test_folders_that_cannot_be_imported_are_told_why(
    change: dict[str, Any], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "checkpoint", stored("bert"))
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "theirs")]) == 0
    settings = json.loads((tmp_path / "theirs" / "config.json").read_text())
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**settings, **change}))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "imported")]) == 2
    assert complaint in capsys.readouterr().err and not (tmp_path / "imported").exists()


def test_folders_that_are_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tmp_path / "nothing"), str(tmp_path / "imported")]) == 2
    assert "config.json: cannot be read" in capsys.readouterr().err
    write_model(tmp_path / "checkpoint", stored("bert"))
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "theirs")]) == 0
    (tmp_path / "theirs" / "model.safetensors").rename(tmp_path / "theirs" / "pytorch_model.bin")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "imported")]) == 2
    assert "no model.safetensors in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "Hugging Face cannot open it"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "config.json: cannot be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"torn"), "model.safetensors: cannot be read"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json cannot be read"),
    ],
)
def test_damaged_folders_are_named(spoil: Any, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "checkpoint", stored("bert"))
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "theirs")]) == 0
    spoil(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "imported")]) == 2
    assert complaint in capsys.readouterr().err and not (tmp_path / "imported").exists()


def test_an_index_that_names_a_missing_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "checkpoint", stored("bert"))
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "theirs")]) == 0
    weights = tmp_path / "theirs" / "model.safetensors"
    weights.rename(tmp_path / "theirs" / "model-1.safetensors")
    index = tmp_path / "theirs" / "model.safetensors.index.json"
    for text, complaint in (
        ("{", "index.json: cannot be read"),
        ('{"weight_map": {"a": "model-2.safetensors"}}', "model-2.safetensors: cannot"),
    ):
        index.write_text(text)
        assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "imported")]) == 2
        assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sentence.weight", "encoder.pooler.weight", "encoder.attentions.1.qkv.bias"])
def test_numbers_that_are_not_finite_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = stored("bert")
    model.state[name].view(-1)[3] = float("nan")
    write_model(tmp_path / "checkpoint", model)
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "exported")]) == 2
    assert f"{name}: holds numbers that are not finite" in capsys.readouterr().err


def test_a_model_without_a_pooler_comes_back_without_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Hugging Face saves a RobertaForMaskedLM: the round trip adds nothing and loses nothing."""
    model = stored("roberta", sentence_task=False)
    state = {name: weight for name, weight in model.state.items() if "pooler" not in name}
    without = StoredModel(config=model.config, sentence_task=False, state=state, vocabulary=model.vocabulary, record={})
    write_model(tmp_path / "checkpoint", without)
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "ours")]) == 0
    theirs = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "ours")
    shutil.copytree(tmp_path / "ours", tmp_path / "theirs")
    theirs.save_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "imported")]) == 0
    assert "no pooler in it" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "imported"), str(tmp_path / "again")]) == 0
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again"))
    assert first.keys() == second.keys() and len(first) > 20 and all(torch.equal(first[name], second[name]) for name in first)


def test_a_refused_export_leaves_no_folder_at_all(tmp_path: Path) -> None:
    write_model(tmp_path / "checkpoint", stored("bert", query_key_norm=True))
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "new" / "deep" / "exported")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    write_model(tmp_path / "good", stored("bert"))
    assert main(["export", str(tmp_path / "good"), str(tmp_path / "new" / "deep" / "exported")]) == 0


def test_the_shortest_model_can_be_exported(tmp_path: Path) -> None:
    write_model(tmp_path / "checkpoint", stored("bert", positions=1))
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "exported")]) == 0


def test_a_seal_that_lists_nothing_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "checkpoint", stored("bert"))
    (tmp_path / "checkpoint" / "digests.json").write_text("{}")
    assert main(["export", str(tmp_path / "checkpoint"), str(tmp_path / "exported")]) == 2
    assert "digest differs" in capsys.readouterr().err
