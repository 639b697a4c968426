"""The encoder without padding against Hugging Face's padded models: scores, losses and gradients."""

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from remask.launcher.config import load, preset_names
from remask.model.config import EncoderConfig
from remask.model.encoder import Encoder
from remask.model.heads import PretrainingModel, masked_token_loss, sentence_loss
from remask.model.huggingface import from_hugging_face, to_hugging_face


def their_model(config: EncoderConfig) -> Any:
    common: dict[str, Any] = {
        "vocab_size": config.vocab_size, "hidden_size": config.hidden, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "intermediate_size": config.ffn, "type_vocab_size": config.type_vocab,
        "max_position_embeddings": config.positions + config.position_offset, "layer_norm_eps": config.norm_eps,
        "hidden_act": "gelu_new" if config.activation == "gelu-tanh" else "gelu",
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": 1 if config.family == "roberta" else 0,
    }  # fmt: skip
    if config.family == "bert":
        return transformers.BertForPreTraining(transformers.BertConfig(**common))
    if config.family == "roberta":
        return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**common))
    albert = transformers.AlbertConfig(
        **common, embedding_size=config.embedding_size, num_hidden_groups=config.groups, classifier_dropout_prob=0.0
    )
    return transformers.AlbertForPreTraining(albert)


@st.composite
def configs(draw: st.DrawFn) -> EncoderConfig:
    family = draw(st.sampled_from(["bert", "roberta", "albert"]))
    heads = draw(st.sampled_from([1, 2, 4]))
    hidden = heads * draw(st.sampled_from([4, 8, 12]))
    layers = draw(st.integers(1, 4))
    return EncoderConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=draw(st.integers(20, 90)), hidden=hidden, layers=layers, heads=heads, ffn=draw(st.integers(4, 40)),
        embedding=hidden // draw(st.sampled_from([2, 4])) if family == "albert" else None,
        sharing="all" if family == "albert" else "none", groups=draw(st.integers(1, layers)) if family == "albert" else 1,
        activation=draw(st.sampled_from(["gelu", "gelu-tanh"])), dropout=0.0, attention_dropout=0.0,
        type_vocab=1 if family == "roberta" else 2, positions=32, position_offset=2 if family == "roberta" else 0,
        norm_eps=1e-5, init_std=0.2,
    )  # fmt: skip


@settings(max_examples=25)
@given(config=configs(), lengths=st.lists(st.integers(2, 30), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_scores_losses_and_gradients_equal_hugging_faces(config: EncoderConfig, lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    ours = PretrainingModel(config, sentence_task=config.family != "roberta").eval()
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs = their_model(config).eval()
    state = to_hugging_face(ours.state_dict(), config)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert all(config.family == "roberta" and "pooler" in name for name in unexpected), unexpected
    assert all("decoder" in name or "position_ids" in name for name in missing), missing
    theirs.tie_weights()

    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    ids = torch.randint(5, config.vocab_size, (int(offsets[-1]),))
    segments = torch.randint(0, config.type_vocab, ids.shape)
    positions = torch.randperm(len(ids))[: max(1, len(ids) // 4)].sort().values
    targets = torch.randint(5, config.vocab_size, positions.shape)
    labels = torch.randint(0, 2, (len(lengths),))

    scores, sentence = ours(ids, offsets, positions, segments)
    loss = masked_token_loss(scores, targets).sum
    padded = torch.full((len(lengths), max(lengths)), 1 if config.family == "roberta" else 0)
    is_token = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    padded[is_token] = ids
    padded_segments = torch.zeros_like(padded)
    padded_segments[is_token] = segments
    made = theirs(padded, attention_mask=is_token.long(), token_type_ids=padded_segments)
    their_scores = (made.logits if config.family == "roberta" else made.prediction_logits)[is_token][positions]
    their_loss = torch.nn.functional.cross_entropy(their_scores, targets, reduction="sum")
    if sentence is not None:
        their_sentence = made.sop_logits if config.family == "albert" else made.seq_relationship_logits
        torch.testing.assert_close(sentence, their_sentence, rtol=1e-5, atol=1e-5)
        loss = loss + sentence_loss(sentence, labels).sum
        their_loss = their_loss + torch.nn.functional.cross_entropy(their_sentence, labels, reduction="sum")
    torch.testing.assert_close(scores, their_scores, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, their_loss, rtol=1e-5, atol=1e-5)

    loss.backward()
    their_loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    our_names = {name: parameter for name, parameter in ours.named_parameters() if parameter.grad is not None}
    assert len(our_names) > 10
    for name, gradient in to_hugging_face({name: p.grad for name, p in our_names.items() if p.grad is not None}, config).items():
        scale = gradients[name].abs().max().clamp(min=1e-3)
        torch.testing.assert_close(gradient / scale, gradients[name] / scale, rtol=0, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


@given(config=configs())
@settings(max_examples=10)
def test_names_go_both_ways(config: EncoderConfig) -> None:
    state = PretrainingModel(config, sentence_task=config.family != "roberta").state_dict()
    back = from_hugging_face(to_hugging_face(state, config), state, config)
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("preset", preset_names())
def test_presets_build_on_the_meta_device_with_the_counted_parameters(preset: str) -> None:
    config = load(preset).model
    with torch.device("meta"):
        encoder = Encoder(config)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == config.unique_parameters
    names = list(encoder.state_dict())
    assert len(names) == len(set(names))


@pytest.mark.parametrize("sharing", ["none", "attention", "ffn", "all"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_shared_blocks_do_what_their_unshared_twin_does(sharing: Any, norm: Any) -> None:
    """Every layer of the twin has a copy of the weights that the shared layers use."""
    sizes: dict[str, Any] = {"vocab_size": 50, "hidden": 16, "layers": 4, "heads": 2, "ffn": 24, "positions": 16, "norm": norm}
    config = EncoderConfig(**sizes, sharing=sharing, groups=2 if sharing != "none" else 1)
    shared, twin = Encoder(config).eval(), Encoder(EncoderConfig(**sizes)).eval()
    twin.load_state_dict(shared.state_dict(), strict=False)
    for layer, (attention, ffn) in enumerate(config.layer_map):
        twin.attentions[layer].load_state_dict(shared.attentions[attention].state_dict())
        twin.ffns[layer].load_state_dict(shared.ffns[ffn].state_dict())
    ids, offsets = torch.randint(5, 50, (20,)), torch.tensor([0, 7, 20 - 7, 20])
    torch.testing.assert_close(shared(ids, offsets), twin(ids, offsets))


def test_rows_do_not_see_each_other() -> None:
    encoder = Encoder(EncoderConfig(vocab_size=50, hidden=16, layers=2, heads=2, ffn=24, positions=16)).eval()
    ids = torch.randint(5, 50, (20,))
    together = encoder(ids, torch.tensor([0, 7, 20 - 7, 20]))
    for begin, end in ((0, 7), (7, 13), (13, 20)):
        alone = encoder(ids[begin:end], torch.tensor([0, end - begin]))
        torch.testing.assert_close(together[begin:end], alone)


def test_a_micro_batch_without_targets_gives_zero() -> None:
    model = PretrainingModel(EncoderConfig(vocab_size=50, hidden=16, layers=1, heads=2, ffn=24, positions=16), sentence_task=True)
    scores, sentence = model(torch.randint(5, 50, (6,)), torch.tensor([0, 6]), torch.empty(0, dtype=torch.int64))
    nothing = masked_token_loss(scores, torch.empty(0, dtype=torch.int64))
    assert sentence is not None
    no_pair = sentence_loss(sentence, torch.tensor([-1]))
    assert (nothing.sum.item(), nothing.count, no_pair.sum.item(), no_pair.count) == (0.0, 0, 0.0, 0)
    (nothing.sum + no_pair.sum).backward()
