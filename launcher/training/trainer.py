"""The loop of a run. A step is a function of the weights and its number, so it can be repeated exactly after any interruption."""

import logging
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch

from remask.data_prep.keys import key_of
from remask.data_prep.loader import Loader
from remask.data_prep.tokenizer import Vocabulary
from remask.launcher.config import RunConfig
from remask.launcher.device import give_back_memory
from remask.launcher.guard import Guard, loss_to_judge
from remask.launcher.model_folder import StoredModel
from remask.launcher.training.engine import Engine
from remask.launcher.training.evaluation import HeldOut, fill_masks
from remask.launcher.training.incidents import find_guilty_rows, write_incident
from remask.launcher.training.peers import Peers
from remask.launcher.training.records import Records
from remask.launcher.training.run_folder import plain
from remask.launcher.training.signals import StopRequest, name_of
from remask.launcher.training.state import RunState
from remask.launcher.training.step_batch import Agreed, StepBatch, cut
from remask.launcher.training.store import Checkpoint, Store
from remask.launcher.training.telling import Window

log = logging.getLogger(__name__)

_DONE = {"skip": "the step is left out", "rollback": "the run goes back", "stop": "the run ends"}
_DROPOUT = 6  # what a key is for; the loader has those below
_FEW_LABELLED = 0.2  # of the rows: hardly a task any more


class TrainingError(Exception):
    """A run that cannot go on, in a sentence."""


@dataclass(kw_only=True)
class Trainer:
    """One rank of a run. Every method is called by all ranks."""

    config: RunConfig
    run: Path
    peers: Peers
    engine: Engine
    store: Store
    records: Records
    loaders: dict[bool, Loader]
    """Of the phase of short rows, and of the full ones."""
    held_out: HeldOut
    vocabulary: Vocabulary
    data: dict[str, str]
    micro_batch_tokens: int
    state: RunState
    stop: StopRequest
    window: Window
    _setbacks: int = 0
    """Incidents without a good step in between, or rollbacks without a new checkpoint."""
    _told_of_few_questions: bool = False
    _batches: Iterator[StepBatch] | None = None
    _saved_step: int | None = None
    _saved_at: float = field(default_factory=time.monotonic)

    def train(self) -> dict[str, Any]:
        """Until the budget is used up or a signal comes; how it ended."""
        schedule, state = self.config.schedule, self.state
        self._began = time.monotonic() - state.seconds
        self.guard = Guard(self.config.guard, state.losses, state.norms)
        if state.step == 0:  # what an untrained model makes of it, to compare with
            self._evaluate()
        self.window.begin(schedule, state)
        while (done := schedule.done_at(state.step, state.tokens, state.seconds)) < 1:
            if schedule.is_short(done) != state.short:
                state.short, state.position, self._batches = schedule.is_short(done), 0, None
            if state.step >= schedule.warmup_steps and state.done_when_warm is None:
                state.done_when_warm = done
            batch = self._next_batch()
            agreed = self._agree(batch)
            state.seconds = agreed.seconds
            if agreed.signal:
                return self._end("stopped", name_of(agreed.signal))
            if agreed.save:
                self._save()
            self._step(batch, agreed, schedule.rate_at(state.step, done, state.done_when_warm))
            state = self.state  # a rollback puts another one there
            if state.step % self.config.metrics.evaluate_every_steps == 0:
                self._evaluate()
            if state.step % self.config.checkpoint.save_every_steps == 0:
                self._save()
        self._evaluate()
        if state.since_last_line.steps:
            self._tell()
        return self._end("finished", "the budget is used up")

    def _next_batch(self) -> StepBatch:
        state, engine = self.state, self.config.engine
        if self._batches is None:
            loader = self.loaders[state.short]
            pin = self.engine.device.type == "cuda"

            def prepare(batch: Any) -> StepBatch:
                return cut(batch, self.micro_batch_tokens, self.config.model, pin=pin, digests=self.config.metrics.row_digests)

            self._batches = loader.prepared(prepare, self._windows(), engine.loader_threads, ahead=2 * engine.loader_threads)
        begin = time.perf_counter()
        batch = next(self._batches)
        self.window.waited += time.perf_counter() - begin
        return batch

    def _windows(self) -> Iterator[tuple[int, int]]:
        """Global batches from here on, as long as the phase lasts."""
        position, short = self.state.position, self.state.short
        for step in count(self.state.step):
            rows = self.config.schedule.rows_at(step, short, self.config.data.batch_rows)
            yield position, rows
            position += rows

    def _agree(self, batch: StepBatch) -> Agreed:
        minutes = self.config.checkpoint.save_every_minutes
        overdue = minutes is not None and time.monotonic() - self._saved_at > 60 * minutes
        mine = [
            len(batch.batch.targets), batch.labelled, len(batch.batch), batch.batch.tokens, len(batch.pieces),
            self.stop.number, time.monotonic() - self._began, overdue,
        ]  # fmt: skip
        columns = list(zip(*self.peers.gather(mine), strict=True))
        targets, labelled, rows, tokens = (int(sum(column)) for column in columns[:4])
        return Agreed(
            counts={"masked_tokens": targets, "sentence": labelled},
            rows=rows,
            tokens=tokens,
            pieces=int(max(columns[4])),
            signal=int(max(columns[5])),
            seconds=columns[6][0],
            save=bool(columns[7][0]),
        )

    def _step(self, batch: StepBatch, agreed: Agreed, rate: float) -> None:
        state, world = self.state, self.peers.place.world_size
        torch.manual_seed(int(key_of(self.config.seed, _DROPOUT, state.step, self.peers.place.rank)) >> 1)
        sums: list[dict[str, torch.Tensor]] = []
        for number in range(agreed.pieces):
            losses = self.engine.losses(batch.pieces[number] if number < len(batch.pieces) else batch.empty)
            # DeepSpeed divides by the ranks; each micro-batch has its exact share in the mean over the global batch.
            loss = sum(part.sum * (world / max(agreed.counts[name], 1)) for name, part in losses.items())
            self.engine.backward(loss, last=number == agreed.pieces - 1)  # type: ignore[arg-type]
            sums.append({name: part.sum.detach() for name, part in losses.items()})
        losses_by_name = self._mean_losses(sums, agreed)
        total = sum(losses_by_name.values())
        judged = loss_to_judge(losses_by_name)
        why: list[str] = []

        def may_step(norm: float) -> bool:
            why.append(self.peers.tell(self.guard.judge(judged, norm)))
            return not why[0]

        outcome = self.engine.step(rate, may_step)
        told = losses_by_name if outcome.applied else {}
        self.window.add(batch, agreed, state, told, outcome.norm, rate * self.config.optimizer.lr)
        if batch.digests is not None:
            self.records.write({"step": state.step + 1, "kind": "rows", "digests": batch.digests})
        # With fp16 a gradient that overflows is ordinary: DeepSpeed lowers its scale and goes on.
        ordinary = self.config.engine.precision == "fp16" and math.isfinite(total) and not math.isfinite(outcome.norm)
        if why[0] and not ordinary:
            facts: dict[str, Any] = {"losses": losses_by_name, "gradient_norm": outcome.norm, "batch_rows": agreed.rows}
            self._meet_incident(why[0], batch, agreed, facts, [float(sum(piece.values())) for piece in sums])
            return
        if outcome.applied:
            self._setbacks = 0 if self.config.guard.policy != "rollback" else self._setbacks
            self.guard.remember(judged, outcome.norm)
        self._advance(agreed)

    def _advance(self, agreed: Agreed) -> None:
        state = self.state
        state.step += 1
        state.position += agreed.rows
        state.rows += agreed.rows
        state.tokens += agreed.tokens
        state.optimizer_steps = self.engine.optimizer.steps
        if state.step % self.config.metrics.log_every_steps == 0:
            self._tell()

    def _mean_losses(self, sums: list[dict[str, torch.Tensor]], agreed: Agreed) -> dict[str, float]:
        """Over the global batch, by part that it has something of; the same numbers on every rank."""
        names = sorted(sums[0])
        mine = torch.stack([torch.stack([piece[name].double() for piece in sums]).sum() for name in names]).tolist()
        columns = zip(*self.peers.gather(mine), strict=True)
        means = {name: sum(column) / max(agreed.counts[name], 1) for name, column in zip(names, columns, strict=True)}
        return {name: mean for name, mean in means.items() if agreed.counts[name] or not math.isfinite(mean)}

    def _meet_incident(self, why: str, batch: StepBatch, agreed: Agreed, facts: dict[str, Any], means: list[float]) -> None:
        policy, state = self.config.guard.policy, self.state
        self._setbacks += 1
        checkpoint = self.store.choose(lambda _: "") if policy == "rollback" else None
        if policy == "rollback" and (checkpoint is None or checkpoint.state.short != state.short):
            policy = "skip"  # there is nothing to go back to in this phase
        rows = find_guilty_rows(self.engine, self.peers, batch, means, self.micro_batch_tokens)
        if self.peers.place.rank == 0:
            file = write_incident(self.run, why, policy, state, facts, rows, self.vocabulary)
            log.warning("step %d: %s; %s, its rows are in %s", state.step, why, _DONE[policy], file)
        if policy == "stop":
            raise TrainingError(f"step {state.step}: {why}; the run ends as guard.policy says, its rows are in {self.run / 'incidents'}")
        if self._setbacks > self.config.guard.most_in_a_row:
            raise TrainingError(f"step {state.step}: {why}, {self._setbacks} times in a row; lower optimizer.lr or look at the rows")
        if policy == "rollback" and checkpoint is not None:
            self._go_back(checkpoint, state.position + agreed.rows)
        else:
            self._advance(agreed)

    def _go_back(self, checkpoint: Checkpoint, position: int) -> None:
        """To a checkpoint's weights, and on with the rows from a position on."""
        seconds = self.state.seconds
        self.store.load_into(self.engine, checkpoint)
        log.warning("back to step %d; its rows up to here are left out", checkpoint.state.step)
        self.state = checkpoint.state
        self.state.position, self.state.seconds = position, seconds
        self.guard = Guard(self.config.guard, self.state.losses, self.state.norms)
        self.records.forget_after(self.state.step)
        self._batches = None

    def _tell(self) -> None:
        record, sentence, scalars = self.window.close(self.config.schedule, self.state)
        if self.config.data.sentence_task != "none" and record["labelled_rows"] < _FEW_LABELLED * record["rows"]:
            self._tell_of_few_questions(record["labelled_rows"], record["rows"])
        self.records.write(record)
        self.records.plot(self.state.step, scalars)
        done = self.config.schedule.done_at(self.state.step, self.state.tokens, self.state.seconds)
        self.records.show(sentence, done)

    def _tell_of_few_questions(self, labelled: int, rows: int) -> None:
        if not self._told_of_few_questions:
            log.warning(
                "step %d: %s has a question about %d of the last %d rows only; it needs rows of two sentences, and nsp also other "
                "documents in the same block of rows: make longer rows or blocks with remask prep, or set data.sentence_task to none",
                self.state.step, self.config.data.sentence_task, labelled, rows,
            )  # fmt: skip
        self._told_of_few_questions = True

    def _evaluate(self) -> None:
        if self.state.evaluated_step == self.state.step:
            return
        self.state.evaluated_step = self.state.step
        with self.window.paused():
            evaluation = self.held_out.evaluate(self.engine, self.micro_batch_tokens)
            filled = fill_masks(self.engine, self.vocabulary, self.config.metrics.sentences)
            texts = {sentence: ", ".join(f"{word} {share:.0%}" for word, share in guesses) for sentence, guesses in filled.items()}
            scalars: dict[str, float] = {}
            if evaluation is not None:
                scalars = {f"validation/{name}": loss for name, loss in evaluation.losses.items()}
                scalars["validation/perplexity"] = evaluation.perplexity
                parts = ", ".join(f"{name} {loss:.4f}" for name, loss in evaluation.losses.items())
                log.info(
                    "step %d, validation on %d rows: perplexity %.2f (%s)", self.state.step, evaluation.rows, evaluation.perplexity, parts
                )
            if self.config.metrics.layer_movements:
                for layer, movement in enumerate(self.held_out.movements(self.engine, self.micro_batch_tokens)):
                    scalars |= {f"layers/{layer}/{name}": value for name, value in movement._asdict().items()}
            if self.peers.place.rank == 0:
                for sentence, text in texts.items():
                    log.info("step %d, %s  %s", self.state.step, sentence, text)
                self.records.write({"step": self.state.step, "kind": "evaluation", **scalars, "filled": filled})
            self.records.plot(self.state.step, scalars, {f"filled/{sentence}": text for sentence, text in texts.items()})
            give_back_memory()

    def _save(self) -> str:
        if self._saved_step == self.state.step:
            return ""
        with self.window.paused():
            begin = time.monotonic()
            self.records.sync()
            self.state.losses, self.state.norms = list(self.guard.losses), list(self.guard.norms)
            self.state.loss_scaler = self.engine.loss_scaler()
            about = {"config": plain(self.config), "data": self.data, "micro_batch_tokens": self.micro_batch_tokens}
            error = self.store.save(self.engine, self.state, about, self._stored)
            self._saved_at = time.monotonic()
            if error:
                log.warning("step %d: the checkpoint could not be written (%s); older ones stand, the run goes on", self.state.step, error)
            else:
                self._setbacks, self._saved_step = 0, self.state.step
                log.info("step %d: checkpoint written in %.1f s", self.state.step, self._saved_at - begin)
        return error

    def _stored(self, weights: dict[str, torch.Tensor]) -> StoredModel:
        record = {"step": self.state.step, "tokens": self.state.tokens, "rows": self.state.rows, "seed": self.config.seed,
                  "shards": self.data, "config": plain(self.config)}  # fmt: skip
        task = self.config.data.sentence_task != "none"
        return StoredModel(config=self.config.model, sentence_task=task, state=weights, vocabulary=self.vocabulary, record=record)

    def _end(self, how: str, why: str) -> dict[str, Any]:
        if error := self._save():
            raise TrainingError(f"step {self.state.step}: the last checkpoint could not be written ({error})")
        return {"end": how, "why": why, "step": self.state.step, "tokens": self.state.tokens, "interrupted": why == signal.SIGINT.name}
