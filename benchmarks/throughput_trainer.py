"""Hugging Face's Trainer as a contestant: its own loop makes the steps, and stops where it is told to wait for its turn."""

import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

if TYPE_CHECKING:
    from remask.benchmarks.throughput_contestants import Group, Share, Turns


class _Rows(IterableDataset[dict[str, torch.Tensor]]):
    """Batches of this rank, one behind the other."""

    def __init__(self, group: "Group") -> None:
        self._group = group
        self.share: Share | None = None
        """The last one that was read."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for share in self._group.batches:
            self.share = share
            yield share.padded


class _Fed(Trainer):
    """With rows of ours; all else is theirs."""

    rows: _Rows

    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.rows, batch_size=None)


class _Timed(TrainerCallback):
    """Waits for a turn, notes a step's seconds from the end of the one before, answers."""

    def __init__(self, rows: _Rows, group: "Group", turns: "Turns") -> None:
        self._rows, self._group, self._turns = rows, group, turns
        self._left, self._began = 0, 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._left, self._began = self._turns.next(), time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 (theirs)
        assert self._rows.share is not None  # noqa: S101 (a step has read rows)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._group.made.append((self._rows.share, {"step": time.perf_counter() - self._began}))
        self._left -= 1
        if self._left == 0:
            self._turns.answer()
            self._left = self._turns.next()
            control.should_training_stop = not self._left
        self._began = time.perf_counter()


def train(group: "Group", model: torch.nn.Module, turns: "Turns") -> None:
    config, optimizer = group.config, group.config.optimizer
    rows, threads = _Rows(group), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out, use_cpu=group.device.type == "cpu", max_steps=10**9, learning_rate=1e-4, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, optim="adamw_torch_fused", adam_beta1=optimizer.betas[0],
            adam_beta2=optimizer.betas[1], adam_epsilon=optimizer.eps, weight_decay=0.01, max_grad_norm=optimizer.clip_norm or 0.0,
            bf16=config.engine.precision == "bf16", fp16=config.engine.precision == "fp16", lr_scheduler_type="constant",
            per_device_train_batch_size=config.data.batch_rows // group.place.world_size,
        )  # fmt: skip
        trainer = _Fed(model=model, args=arguments, callbacks=[_Timed(rows, group, turns)])
        trainer.rows = rows
        torch.set_num_threads(threads)  # accelerate sets another number
        trainer.train()
