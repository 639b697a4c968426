"""Our loader, model and engine against Hugging Face's model in a plain torch loop: the same rows and masks give the same loss curve."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from launcher.training.ranks import losses, records, train
from sample_corpus import DOCUMENTS, trained

from remask.data_prep.corpus import Source
from remask.data_prep.loader import open_loader
from remask.data_prep.pack import PackConfig
from remask.data_prep.prep import PrepConfig, prepare
from remask.data_prep.workers import local_workers
from remask.launcher.build import build_model
from remask.launcher.config import load
from remask.model.huggingface import choose_form, to_hugging_face

pytestmark = pytest.mark.slow

STEPS, ROWS, LENGTH = 300, 32, 64
OVERRIDES = {
    "data": {"pack": {"mode": "full-sentences", "sequence_length": LENGTH}, "batch_rows": ROWS},
    "model": {"vocab_size": 600, "positions": LENGTH, "dropout": 0.0, "attention_dropout": 0.0},
    "schedule": {"steps": STEPS, "warmup_steps": 30},
    "metrics": {"log_every_steps": 1, "evaluate_every_steps": STEPS, "tensorboard": False},
    "engine": {"micro_batch_tokens": 500, "zero_stage": 2},
}


def test_roberta_tiny_learns_as_hugging_faces_model_does(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    (tmp_path / "tokenizer.json").write_text(trained("bpe").text)
    settings = PrepConfig(
        sources=(Source(name="documents", paths=(str(tmp_path / "corpus.jsonl"),)),),
        tokenizer=tmp_path / "tokenizer.json",
        pack=PackConfig(mode="full-sentences", sequence_length=LENGTH),
    )
    with local_workers(1) as workers:
        prepare(settings, tmp_path / "shards", workers, lambda *_: None)
    (tmp_path / "recipe.json").write_text(json.dumps({"base": "roberta-tiny", **OVERRIDES}))  # JSON is YAML
    (tmp_path / "recipe.json").rename(tmp_path / "recipe.yaml")
    train(2, "--preset", str(tmp_path / "recipe.yaml"), "--data", str(tmp_path / "shards"), "--out", str(tmp_path / "run"))
    ours = [loss for _, loss in losses(tmp_path / "run")]
    theirs = hugging_face_losses(tmp_path)
    assert len(ours) == len(theirs) == STEPS and np.mean(ours[-20:]) < ours[0] - 2
    assert ours == pytest.approx(theirs, rel=2e-3) and ours[:50] == pytest.approx(theirs[:50], rel=1e-5)
    evaluations = records(tmp_path / "run", "evaluation")
    assert evaluations[-1]["validation/perplexity"] < evaluations[0]["validation/perplexity"] / 5


def hugging_face_losses(folder: Path) -> list[float]:
    """Padded batches, whole, one process; nothing of ours but the rows, the initial weights and the learning rates."""
    config = load(str(folder / "recipe.yaml"), {"data": {"sets": [str(folder / "shards")]}})
    loader = open_loader(config.data, config.masking, config.seed)
    specials = loader.sets[0].manifest.specials
    initial = build_model(config.model, config.engine, sentence_task=False, seed=config.seed)
    form = choose_form(config.model, False, specials)
    model = getattr(transformers, form.architecture)(transformers.AutoConfig.for_model(**form.settings)).train()
    model.load_state_dict(to_hugging_face(initial.state_dict(), config.model, form), strict=False)
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.optimizer.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=config.optimizer.lr, betas=config.optimizer.betas, eps=config.optimizer.eps,
    )  # fmt: skip
    seen = []
    for step in range(STEPS):
        padded = {name: torch.from_numpy(values) for name, values in loader.batch(step * ROWS).padded(specials["pad"]).items()}
        loss = model(input_ids=padded["input_ids"], attention_mask=padded["attention_mask"], labels=padded["labels"]).loss
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = config.optimizer.lr * config.schedule.rate_at(step)
        optimizer.step()
        seen.append(loss.item())
    return seen
