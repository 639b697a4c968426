"""Whether a model can answer a sentence task, whatever task it was trained on, and how far lengths alone get."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from remask.data_prep.blocks import Blocks
from remask.data_prep.data import DataConfig
from remask.data_prep.loader import fixed_batches, make_masker, row_maker
from remask.data_prep.masking import MaskingConfig
from remask.data_prep.pack import PackConfig
from remask.data_prep.rows import SentenceTask
from remask.launcher.training.step_batch import arguments_of
from remask.model.heads import PretrainingModel

Arguments = dict[str, Tensor]
Answer = Callable[[Arguments], Tensor]
_ROWS = 1024


def longer_first(given: Arguments) -> Tensor:
    """Answers by lengths alone, as far as they tell anything: where the second part is longer, the parts were swapped."""
    lengths = given["offsets"].diff()
    second = torch.stack([part.sum() for part in given["segments"].split(lengths.tolist())])
    return 2 * second > lengths


def answers_of(model: PretrainingModel) -> Answer:
    def answer(given: Arguments) -> Tensor:
        _, scores = model.score(given["ids"], given["offsets"], given["positions"][:0], given["segments"])
        if scores is None:
            raise ValueError("the model has no head for a sentence task")
        return scores.argmax(-1)

    return answer


def right_answers(answer: Answer, shards: Path, pack: PackConfig, task: SentenceTask) -> dict[str, float]:
    """How a sentence task's held-out rows are answered: the share that is right, as the mean of both labels', and the rows asked."""
    blocks, masking = Blocks(shards, split="validation"), MaskingConfig()
    maker = row_maker(blocks, DataConfig(sets=(str(shards),), pack=pack, sentence_task=task), masking)
    right, asked = torch.zeros(2), torch.zeros(2)
    with torch.inference_mode():
        for batch in fixed_batches(blocks, maker, make_masker(blocks, masking), 64, most_rows=_ROWS):
            given = arguments_of(batch)
            answers = answer(given)
            for label in (0, 1):
                of_label = given["labels"] == label
                asked[label] += of_label.sum()
                right[label] += (answers[of_label] == label).sum()
    return {"share": float((right / asked).mean()), "asked": int(asked.sum())}
