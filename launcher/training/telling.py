"""The steps between two lines of metrics, and what is told of them."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from remask.launcher.device import Device
from remask.launcher.ranks import Place
from remask.launcher.schedule import ScheduleConfig
from remask.launcher.training.state import RunState, SinceLastLine
from remask.launcher.training.step_batch import Agreed, StepBatch
from remask.launcher.training.traffic import Traffic


@dataclass(kw_only=True)
class Window:
    """Steps since the last line. What is told of the training itself lies in the run's state, so that a resumed run tells the same; what is
    told of speed is this start's, without the time of evaluations and saves."""

    place: Place
    device: Device
    traffic: Traffic
    waited: float = 0.0
    _began: float = field(default_factory=time.monotonic)
    _timed_steps: int = 0
    _timed_tokens: int = 0
    _pieces: int = 0
    _flops: int = 0
    _norm: float = 0.0
    _rate: float = 0.0
    _bytes: Counter[str] = field(default_factory=Counter)
    """What had been sent when the steps began."""
    _first_seen: tuple[float, float] = (0.0, 0.0)
    """Time and share of the budget when this start's steps began, which the time to go is reckoned from."""

    def __post_init__(self) -> None:
        self._bytes = Counter(self.traffic.payload_bytes)

    def begin(self, schedule: ScheduleConfig, state: RunState) -> None:
        """The steps of this start begin."""
        self._began = time.monotonic()
        self._first_seen = (self._began, schedule.done_at(state.step, state.tokens, state.seconds))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done in the block, and what it sends, does not count as training."""
        began, sent = time.monotonic(), Counter(self.traffic.payload_bytes)
        yield
        self._began += time.monotonic() - began
        self._bytes += self.traffic.payload_bytes - sent

    def add(self, batch: StepBatch, agreed: Agreed, state: RunState, losses: dict[str, float], norm: float, rate: float) -> None:
        """A step that begins at the state's position; without losses if it was left out."""
        told = state.since_last_line
        if told.steps == 0:
            told.position = state.position
        told.steps += 1
        told.rows += agreed.rows
        told.labelled += agreed.counts["sentence"]
        for name, loss in losses.items():
            told.losses[name] = told.losses.get(name, 0.0) + loss
            told.counted[name] = told.counted.get(name, 0) + 1
        self._timed_steps += 1
        self._timed_tokens += agreed.tokens
        self._pieces += agreed.pieces
        self._flops += batch.flops
        self._norm, self._rate = norm, rate

    def close(self, schedule: ScheduleConfig, state: RunState) -> tuple[dict[str, Any], str, dict[str, float]]:
        """The record, the sentence for the terminal and the scalars for TensorBoard; the next steps are counted anew."""
        seconds, told = max(time.monotonic() - self._began, 1e-9), state.since_last_line
        losses = {name: loss / told.counted[name] for name, loss in told.losses.items()}
        mfu = self._flops / seconds / self.device.peak_flops if self.device.peak_flops else 0.0
        moved = {name: round(sent / max(self._timed_steps, 1)) for name, sent in (self.traffic.payload_bytes - self._bytes).items()}
        done, (since, share) = schedule.done_at(state.step, state.tokens, state.seconds), self._first_seen
        record: dict[str, Any] = {
            "step": state.step,
            "kind": "training",
            "steps": told.steps,
            "position": told.position,
            "rows": told.rows,
            "labelled_rows": told.labelled,
            "loss": sum(losses.values()) if losses else float("nan"),
            "losses": losses,
            "lr": self._rate,
            "gradient_norm": self._norm,
            "tokens": state.tokens,
            "tokens_per_s": self._timed_tokens / seconds,
            "mfu": mfu,
            "tflops": self._flops / seconds / 1e12,
            "data_wait": self.waited / seconds,
            "seconds": seconds,
            "done": done,
            "seconds_left": (1 - done) * (time.monotonic() - since) / max(done - share, 1e-12),
            "bytes_per_step": moved,
            "micro_batches": self._pieces / max(self._timed_steps, 1),
        }
        scalars: dict[str, float] = {
            "train/loss": record["loss"],
            **{f"train/{name}": loss for name, loss in losses.items()},
            "train/lr": self._rate,
        }
        scalars |= {"train/gradient_norm": self._norm, "speed/tokens_per_s": record["tokens_per_s"], "speed/mfu": mfu}
        scalars |= {"speed/data_wait": record["data_wait"], **{f"bytes_per_step/{name}": amount for name, amount in moved.items()}}
        sentence = _sentence(record)
        self._bytes, state.since_last_line = Counter(self.traffic.payload_bytes), SinceLastLine()
        self._timed_steps = self._timed_tokens = self._pieces = self._flops = 0
        self.waited, self._began = 0.0, time.monotonic()
        return record, sentence, scalars


def _sentence(record: dict[str, Any]) -> str:
    parts = ", ".join(f"{name.replace('_', ' ')} {loss:.4f}" for name, loss in record["losses"].items())
    moved = ", ".join(f"{name} {_size(amount)}" for name, amount in record["bytes_per_step"].items()) or "nothing"
    return (
        f"step {record['step']:,} ({record['done']:.1%}): loss {record['loss']:.4f} ({parts}), lr {record['lr']:.2e}, "
        f"gradient norm {record['gradient_norm']:.2f}, {record['tokens_per_s']:,.0f} tokens/s, MFU {record['mfu']:.1%}, "
        f"data wait {record['data_wait']:.1%}, sent a step: {moved}, {clock(record['seconds_left'])} to go"
    )


def _size(amount: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if amount >= size:
            return f"{amount / size:.1f} {unit}"
    return f"{amount} B"


def clock(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{hours} h {minutes % 60:02d} min" if hours else f"{minutes} min {int(seconds) % 60:02d} s" if minutes else f"{seconds:.0f} s"
