"""The encoder without padding against Hugging Face's padded models: scores, losses and gradients."""

import re
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from remask.launcher.config import load, preset_names
from remask.model.config import EncoderConfig
from remask.model.encoder import Encoder
from remask.model.heads import PretrainingModel
from remask.model.huggingface import Form, choose_form, from_hugging_face, read_settings, to_hugging_face
from remask.model.packing import pack
from remask.model.smoothness import measure_movements

SPECIALS = {"pad": 1, "cls": 0, "sep": 2}


def their_model(form: Form) -> Any:
    settings = {name: value for name, value in form.settings.items() if name not in ("model_type", "architectures")}
    return getattr(transformers, form.architecture)(transformers.AutoConfig.for_model(form.settings["model_type"], **settings))


@st.composite
def configs(draw: st.DrawFn) -> EncoderConfig:
    family: Any = draw(st.sampled_from(["bert", "roberta", "albert"]))
    heads = draw(st.sampled_from([1, 2, 4]))
    hidden = heads * draw(st.sampled_from([4, 8, 12]))
    layers = draw(st.integers(1, 4))
    sharing: Any = draw(st.sampled_from(["none", "attention", "ffn", "all"]))
    factor = draw(st.sampled_from([None, 2, 4]))
    norm: Any = draw(st.sampled_from(["post", "pre"])) if factor is None else "post"
    exact = factor is not None if family == "roberta" else norm == "pre"  # what their classes can express
    return EncoderConfig(
        family=family, vocab_size=draw(st.integers(20, 90)), hidden=hidden, layers=layers, heads=heads, ffn=draw(st.integers(4, 40)),
        embedding=None if factor is None else hidden // factor,
        sharing=sharing, groups=draw(st.integers(1, layers)) if sharing != "none" else 1, norm=norm,
        activation="gelu" if exact else draw(st.sampled_from(["gelu", "gelu-tanh"])),
        dropout=0.0, attention_dropout=0.0, type_vocab=draw(st.integers(1, 3)), positions=32,
        position_offset=2 if family == "roberta" else draw(st.sampled_from([0, 3])), norm_eps=1e-5, init_std=0.2,
    )  # fmt: skip


def random_model(config: EncoderConfig, task: bool) -> PretrainingModel:
    """With every weight drawn, also norms and biases."""
    model = PretrainingModel(config, sentence_task=task).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model


@settings(max_examples=60)
@given(config=configs(), lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6), task=st.booleans(), seed=st.integers(0, 1000))
def test_scores_losses_and_gradients_equal_hugging_faces(config: EncoderConfig, lengths: list[int], task: bool, seed: int) -> None:
    """In fp64, where rounding cannot hide a difference: of two values, a LayerNorm blows fp32's up to 1e-5."""
    torch.manual_seed(seed)
    form = choose_form(config, task, SPECIALS)
    ours, theirs = random_model(config, task).double(), their_model(form).double().eval()
    missing, unexpected = theirs.load_state_dict(to_hugging_face(ours.state_dict(), config, form), strict=False)
    assert all("pooler" in name for name in unexpected), unexpected
    assert all("decoder" in name or "position_ids" in name for name in missing), missing
    theirs.tie_weights()

    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    ids = torch.randint(5, config.vocab_size, (int(offsets[-1]),))
    segments = torch.randint(0, config.type_vocab, ids.shape)
    positions = torch.randperm(len(ids))[: max(1, len(ids) // 4)].sort().values
    targets = torch.randint(5, config.vocab_size, positions.shape)
    labels = torch.randint(0, 2, (len(lengths),)) if form.architecture.endswith("ForPreTraining") else None

    scores, sentence = ours.score(ids, offsets, positions, segments)
    losses = ours(ids, offsets, positions, targets, segments, labels)
    padded = torch.full((len(lengths), max(lengths)), SPECIALS["pad"])
    is_token = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    padded[is_token] = ids
    padded_segments = torch.zeros_like(padded)
    padded_segments[is_token] = segments
    made = theirs(padded, attention_mask=is_token.long(), token_type_ids=padded_segments)
    their_scores = (made.logits if labels is None else made.prediction_logits)[is_token][positions]
    torch.testing.assert_close(scores, their_scores, rtol=1e-8, atol=1e-10)
    their_losses = [torch.nn.functional.cross_entropy(their_scores, targets, reduction="sum")]
    assert losses["masked_tokens"].counted == len(targets) > 0
    if labels is not None:
        their_sentence = made.sop_logits if form.kind == "albert" else made.seq_relationship_logits
        torch.testing.assert_close(sentence, their_sentence, rtol=1e-8, atol=1e-10)
        their_losses.append(torch.nn.functional.cross_entropy(their_sentence, labels, reduction="sum"))
    for loss, their_loss in zip(losses.values(), their_losses, strict=True):
        torch.testing.assert_close(loss.sum, their_loss, rtol=1e-8, atol=1e-10)

    torch.stack([loss.sum for loss in losses.values()]).sum().backward()
    torch.stack(their_losses).sum().backward()
    wanted = from_hugging_face(gradients_of(theirs, ours, form), config, form)
    found = {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    assert found.keys() == wanted.keys() and len(found) > 10
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-6, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


def gradients_of(theirs: Any, ours: PretrainingModel, form: Form) -> dict[str, torch.Tensor]:
    """Where they hold several copies of a weight that ours shares, each gets the sum over the copies."""
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    numbers = {name: torch.full_like(weight, number) for number, (name, weight) in enumerate(ours.state_dict().items(), start=1)}
    sums: dict[tuple[float, str], torch.Tensor] = {}
    keys = {}
    for name, mark in to_hugging_face(numbers, ours.config, form).items():
        if name in gradients:
            keys[name] = (mark.max().item(), re.sub(r"\d+", "", name))
            sums[keys[name]] = sums.get(keys[name], torch.zeros_like(mark)) + gradients[name]
    mapping = "albert.encoder.embedding_hidden_mapping_in"
    summed = {name: sums[key] for name, key in keys.items()}
    if ours.encoder.embeddings.projection is None:  # theirs has one, which does nothing
        identity = {"weight": torch.eye(ours.config.hidden), "bias": torch.zeros(ours.config.hidden)}
        summed |= {f"{mapping}.{ending}": weight.double() for ending, weight in identity.items()}
    return summed


@given(config=configs(), task=st.booleans())
@settings(max_examples=20)
def test_weights_and_config_come_back_from_hugging_face(config: EncoderConfig, task: bool) -> None:
    form = choose_form(config, task, SPECIALS)
    state = random_model(config, task).state_dict()
    theirs = to_hugging_face(state, config, form)
    read = EncoderConfig(**read_settings(form.settings))
    again = to_hugging_face(from_hugging_face(theirs, read, form), read, form)
    assert again.keys() == theirs.keys() and len(theirs) > 10
    assert all(torch.equal(again[name], theirs[name]) for name in theirs)
    if config.sharing == "none" and config.position_offset == read.position_offset and form.architecture.endswith("ForPreTraining"):
        back = from_hugging_face(theirs, config, form)
        assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("preset", preset_names())
def test_presets_build_on_the_meta_device_with_the_counted_parameters(preset: str) -> None:
    config = load(preset).model
    with torch.device("meta"):
        encoder = Encoder(config)
    count = sum(parameter.numel() for parameter in encoder.parameters())
    assert count == config.unique_parameters
    assert sum(weight.numel() for weight in encoder.state_dict().values()) == count, "a shared weight stands twice"


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


@pytest.mark.parametrize("training", [False, True])
def test_a_micro_batch_without_rows_gives_zero(training: bool) -> None:
    model = PretrainingModel(EncoderConfig(vocab_size=50, hidden=16, layers=2, heads=2, ffn=24, positions=16), sentence_task=True)
    none = torch.empty(0, dtype=torch.int64)
    losses = model.train(training)(none, torch.tensor([0]), none, none, labels=none)
    assert [(loss.sum.item(), loss.counted) for loss in losses.values()] == [(0.0, 0), (0.0, 0)]
    torch.stack([loss.sum for loss in losses.values()]).sum().backward()


@pytest.mark.parametrize("offsets", [[0, 5, 5, 9], [0, 5, 9, 9], [1, 9], [0, 7]])
def test_offsets_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    encoder = Encoder(EncoderConfig(vocab_size=50, hidden=16, layers=1, heads=2, ffn=24, positions=16))
    with pytest.raises(ValueError, match=r"was given, they must begin with 0|tokens were given, the offsets end at 7"):
        encoder(torch.randint(5, 50, (9,)), torch.tensor(offsets))


def test_a_micro_batch_without_targets_gives_zero() -> None:
    model = PretrainingModel(EncoderConfig(vocab_size=50, hidden=16, layers=1, heads=2, ffn=24, positions=16), sentence_task=True)
    none = torch.empty(0, dtype=torch.int64)
    losses = model(torch.randint(5, 50, (6,)), torch.tensor([0, 6]), none, none, labels=torch.tensor([-1]))
    nothing, no_pair = losses["masked_tokens"], losses["sentence"]
    assert (nothing.sum.item(), nothing.counted, no_pair.sum.item(), no_pair.counted) == (0.0, 0, 0.0, 0)
    (nothing.sum + no_pair.sum).backward()


SMALL: dict[str, Any] = {"vocab_size": 50, "hidden": 16, "layers": 4, "heads": 2, "ffn": 24, "positions": 16}


def test_documents_kept_apart_do_not_see_each_other_and_keep_their_positions() -> None:
    encoder = Encoder(EncoderConfig(**SMALL)).eval()
    ids, offsets = torch.randint(5, 50, (20,)), torch.tensor([0, 12, 20])
    apart = encoder(ids, offsets, documents=torch.tensor([0, 5, 12, 20]))
    across = encoder(ids, offsets)
    changed = ids.clone()
    changed[7] = ids[7] % 44 + 5 + 1
    moved = (encoder(changed, offsets, documents=torch.tensor([0, 5, 12, 20])) != apart).any(1).nonzero().flatten()
    assert moved.tolist() == list(range(5, 12))
    torch.testing.assert_close(apart[12:], across[12:])
    assert not torch.allclose(apart[:12], across[:12], atol=1e-3)
    # The second document of a row goes on with the row's positions: alone at the row's begin it is another.
    torch.testing.assert_close(apart[:5], encoder(ids[:5], torch.tensor([0, 5])))
    assert not torch.allclose(apart[5:12], encoder(ids[5:12], torch.tensor([0, 7])), atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"sharing": "all"}, {"sharing": "attention", "groups": 2, "norm": "pre"}])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_recomputed_layers_give_the_same_loss_and_gradients(options: dict[str, Any], fraction: float) -> None:
    """With dropout: the layers are computed again with the same masks."""
    model = PretrainingModel(EncoderConfig(**SMALL, **options), sentence_task=False).train()
    ids, offsets, positions = torch.randint(5, 50, (20,)), torch.tensor([0, 7, 20 - 7, 20]), torch.tensor([1, 9, 15])
    found = []
    for share in (0.0, fraction):
        model.encoder.recompute(share)
        assert len(model.encoder.recomputed) == round(share * 4)
        model.zero_grad()
        torch.manual_seed(3)
        loss = model(ids, offsets, positions, ids[positions])["masked_tokens"].sum
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)])
    assert len(found[0]) > 10
    for kept, recomputed in zip(*found, strict=True):
        assert torch.equal(kept, recomputed)


def test_recomputing_keeps_less() -> None:
    encoder = Encoder(EncoderConfig(**SMALL)).train()
    kept = []
    for fraction in (0.0, 1.0):
        encoder.recompute(fraction)
        sizes: list[int] = []

        def count(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            encoder(torch.randint(5, 50, (16,)), torch.tensor([0, 16]))
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 3


def test_compiled_parts_give_the_same_results() -> None:
    encoder = Encoder(EncoderConfig(**SMALL, sharing="all")).eval()
    batches = [(torch.randint(5, 50, (size,)), torch.tensor([0, 5, size])) for size in (12, 17, 20)]
    plain = [encoder(*batch) for batch in batches]
    names = list(encoder.state_dict())
    encoder.compile_parts()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for batch, wanted in zip(batches, plain, strict=True):
        torch.testing.assert_close(encoder(*batch), wanted, rtol=1e-5, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    assert list(encoder.state_dict()) == names


@pytest.mark.parametrize("family", ["bert", "roberta"])  # their ALBERT makes the dropout behind its feed-forward part and never uses it
def test_dropout_has_the_same_effect_as_hugging_faces(family: Any) -> None:
    """Many copies of one row: mean and spread of the first scores over the draws agree within their statistical error."""
    torch.manual_seed(1)
    config = EncoderConfig(**{**SMALL, "layers": 2}, family=family, position_offset=2, dropout=0.2, attention_dropout=0.3, init_std=0.5)
    form = choose_form(config, False, SPECIALS)
    ours, theirs = PretrainingModel(config, sentence_task=False).train(), their_model(form).train()
    theirs.load_state_dict(to_hugging_face(ours.state_dict(), config, form), strict=False)
    theirs.tie_weights()
    copies, row = 4000, torch.randint(5, 50, (9,))
    with torch.no_grad():
        scores, _ = ours.score(row.repeat(copies), torch.arange(copies + 1) * 9, torch.arange(copies) * 9 + 4)
        wanted = theirs(row.repeat(copies, 1), attention_mask=torch.ones(copies, 9, dtype=torch.long)).logits[:, 4]
    spread = wanted.std(0)
    assert spread.min() > 0.01, "dropout is off"
    error = spread * (2 / copies) ** 0.5
    assert ((scores.mean(0) - wanted.mean(0)).abs() / error).max() < 5
    torch.testing.assert_close(scores.std(0), spread, rtol=0.12, atol=0)


def test_z_loss_adds_the_square_of_log_z() -> None:
    plain = PretrainingModel(EncoderConfig(**SMALL, init_std=0.3), sentence_task=False).eval()
    with_z = PretrainingModel(EncoderConfig(**SMALL, z_loss=1e-2), sentence_task=False).eval()
    with_z.load_state_dict(plain.state_dict())
    ids, offsets, positions = torch.arange(5, 17), torch.tensor([0, 12]), torch.tensor([2, 7])
    losses = [model(ids, offsets, positions, ids[positions])["masked_tokens"].sum for model in (plain, with_z)]
    wanted = 1e-2 * plain.score(ids, offsets, positions)[0].exp().sum(1).log().square().sum()
    assert wanted > 1e-2
    torch.testing.assert_close(losses[1] - losses[0], wanted, rtol=1e-4, atol=0)


def test_query_key_norm_bounds_the_scores_of_attention() -> None:
    """However large the weights grow: with it, a tenfold weight of queries and keys changes nothing."""
    for norm in (False, True):
        encoder = Encoder(EncoderConfig(**SMALL, query_key_norm=norm, init_std=0.5)).eval()
        ids, offsets = torch.randint(5, 50, (12,)), torch.tensor([0, 12])
        before = encoder(ids, offsets)
        with torch.no_grad():
            for attention in encoder.attentions:
                attention.get_parameter("qkv.weight")[:32] *= 10
        assert torch.allclose(encoder(ids, offsets), before, atol=1e-3) == norm


def test_embedding_norm_stands_before_the_first_layer() -> None:
    encoder = Encoder(EncoderConfig(**SMALL, embedding=4, embedding_norm=True, init_std=0.5)).eval()
    hidden, _ = encoder.embed(torch.randint(5, 50, (12,)), pack(torch.tensor([0, 12])))
    torch.testing.assert_close(hidden.mean(1), torch.zeros(12), rtol=0, atol=1e-6)
    torch.testing.assert_close(hidden.std(1, correction=0), torch.ones(12))


@pytest.mark.parametrize("options", [{"query_key_norm": True}, {"embedding_norm": True}, {"norm": "pre", "embedding": 4}])
def test_what_hugging_face_cannot_express_is_refused(options: dict[str, Any]) -> None:
    config = EncoderConfig(**SMALL, **options)
    assert sum(p.numel() for p in Encoder(config).parameters()) == config.unique_parameters
    with pytest.raises(ValueError, match="no class of Hugging Face"):
        choose_form(config, False, SPECIALS)


def test_pre_norm_starts_with_smaller_outputs() -> None:
    post, pre = Encoder(EncoderConfig(**SMALL)), Encoder(EncoderConfig(**SMALL, norm="pre"))
    ratio = pre.attentions[0].get_parameter("output.weight").std() / post.attentions[0].get_parameter("output.weight").std()
    assert 0.28 < ratio < 0.43  # 1 / sqrt(2 * 4 layers) = 0.354
    assert post.ffns[0].get_parameter("inner.weight").abs().max() <= 0.04  # cut at two standard deviations


def test_movements_are_those_of_each_layer() -> None:
    encoder = Encoder(EncoderConfig(**SMALL, init_std=0.3)).eval()
    with torch.no_grad():
        for part in ("output.weight", "output.bias"):
            encoder.attentions[2].get_parameter(part).zero_()
            encoder.ffns[2].get_parameter(part).zero_()
    movements = measure_movements(encoder, torch.randint(5, 50, (12,)), torch.tensor([0, 5, 12]))
    assert [movement.distance > 0.1 for movement in movements] == [True, True, False, True]
    assert [movement.cosine < 0.999 for movement in movements] == [True, True, False, True]
