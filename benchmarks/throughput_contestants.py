"""Who takes part in the benchmark of throughput; each rank of each contestant is a process of its own.

    RANK=0 WORLD_SIZE=1 … python -m remask.benchmarks.throughput_contestants NAME CONFIG.yaml

Reads a number of steps by the line, makes them and answers with one line of JSON, on rank 0 with what all ranks measured; ends with its
input. Ours is the trainer's step without evaluations, saves and records. All read the same rows by the same loader.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

import torch
from torch import Tensor

from remask.benchmarks.step_contestants import peak_memory
from remask.benchmarks.throughput_figures import PARTS, Step
from remask.data_prep.batch import Batch
from remask.launcher import distributed
from remask.launcher.build import build_model
from remask.launcher.config import RunConfig, load
from remask.launcher.device import describe_device, keep_freed_memory
from remask.launcher.engine import fill_ds_config
from remask.launcher.ranks import Place, place_of
from remask.launcher.training.engine import Engine
from remask.launcher.training.peers import Peers
from remask.launcher.training.run_folder import host_name
from remask.launcher.training.start import open_loaders, share_of_cores
from remask.launcher.training.step_batch import StepBatch, cut
from remask.launcher.training.traffic import watch_collectives
from remask.model.huggingface import choose_form

_PATIENCE_SECONDS = 300.0
_SENTENCE_LABELS = {"bert": "next_sentence_label", "albert": "sentence_order_label"}


class Clock:
    """Seconds of a step by part. On a GPU by events in its queue, so that nothing has to wait for being measured."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, Any]] = [("", self._now())]

    def mark(self, part: str) -> None:
        """What was done since the last mark is of this part."""
        self._marks.append((part, self._now()))

    def parts(self) -> dict[str, float]:
        seconds = dict.fromkeys(PARTS, 0.0)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for (_, before), (part, now) in zip(self._marks, self._marks[1:], strict=False):
            seconds[part] += before.elapsed_time(now) / 1e3 if torch.cuda.is_available() else now - before
        return seconds

    def _now(self) -> Any:
        if not torch.cuda.is_available():
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@dataclass(frozen=True, kw_only=True)
class Share:
    """A rank's part of a step: one micro-batch."""

    cut: StepBatch
    padded: dict[str, Tensor]
    """The same as Hugging Face's models take it."""
    padded_tokens: int


@dataclass(kw_only=True)
class Group:
    """A rank among the others, with its rows."""

    config: RunConfig
    place: Place
    peers: Peers
    batches: Iterator[Share]
    device: torch.device
    specials: dict[str, int]
    hosts: int
    made: list[tuple[Share, dict[str, float]]] = field(default_factory=list)
    """Steps since the last answer, with their seconds by part or in all."""

    def gather(self) -> list[Step]:
        """The steps of all ranks put together; every rank must have made as many."""
        columns = [
            [sum(seconds.values()), share.cut.batch.tokens, share.padded_tokens, share.cut.flops, *(seconds.get(p, 0.0) for p in PARTS)]
            for share, seconds in self.made
        ]
        known = "forward" in self.made[0][1]
        everyone = self.peers.gather([number for row in columns for number in row])
        self.made = []
        width = 4 + len(PARTS)
        steps = []
        for first in range(0, len(columns) * width, width):
            own, tokens, padded, flops, *parts = zip(*(numbers[first : first + width] for numbers in everyone), strict=True)
            means = {name: sum(part) / len(part) for name, part in zip(PARTS, parts, strict=True)} if known else {}
            steps.append(
                Step(seconds=max(own), tokens=int(sum(tokens)), padded_tokens=int(sum(padded)), flops=int(sum(flops)), parts=means)
            )
        return steps


def join_group(config: RunConfig) -> Group:
    place = place_of(os.environ)
    loaders, _ = open_loaders(config, place)
    loader = loaders[False]
    keep_freed_memory()
    traffic = watch_collectives()
    distributed.start(place, seconds=_PATIENCE_SECONDS)
    peers = Peers(place, traffic)
    hosts = peers.collect(host_name())
    device = torch.device("cuda", place.local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(config.engine.cpu_threads or share_of_cores(hosts.count(hosts[place.rank])))
    most_tokens, specials = config.engine.micro_batch_tokens or 1, loader.sets[0].manifest.specials

    def prepare(batch: Batch) -> Share:
        return Share(
            cut=cut(batch, most_tokens, config.model, pin=device.type == "cuda"),
            padded=padded_arguments(batch, config, specials),
            padded_tokens=len(batch) * batch.longest,
        )

    threads = config.engine.loader_threads
    batches = loader.prepared(prepare, loader.windows(0), threads, ahead=2 * threads)
    return Group(config=config, place=place, peers=peers, batches=batches, device=device, specials=specials, hosts=len(set(hosts)))


def padded_arguments(batch: Batch, config: RunConfig, specials: dict[str, int]) -> dict[str, Tensor]:
    """As their own collators pad: to the longest row."""
    arguments = {name: torch.from_numpy(values) for name, values in batch.padded(specials["pad"]).items()}
    if config.model.type_vocab < 2:
        del arguments["token_type_ids"]
    labels = batch.swapped if batch.swapped is not None else batch.stranger
    form = choose_form(config.model, config.data.sentence_task != "none", specials)
    if labels is not None and form.kind in _SENTENCE_LABELS:
        arguments[_SENTENCE_LABELS[form.kind]] = torch.from_numpy(labels).long().masked_fill(torch.from_numpy(labels < 0), -100)
    return arguments


def build_theirs(group: Group) -> torch.nn.Module:
    import transformers

    config = group.config
    form = choose_form(config.model, config.data.sentence_task != "none", group.specials)
    settings = {name: value for name, value in form.settings.items() if name not in ("model_type", "architectures")}
    made = transformers.AutoConfig.for_model(form.settings["model_type"], **settings, attn_implementation="sdpa")
    torch.manual_seed(config.seed)
    model: torch.nn.Module = getattr(transformers, form.architecture)(made).train()
    return model


def be_ours(group: Group, turns: "Turns") -> None:
    """The trainer's step: the ranks agree on what they have, the engine makes it."""
    config, peers, world = group.config, group.peers, group.place.world_size
    model = build_model(config.model, config.engine, sentence_task=config.data.sentence_task != "none", seed=config.seed)
    engine = Engine(config, model, group.place)

    def step() -> None:
        clock = Clock()
        share = next(group.batches)
        clock.mark("data_wait")
        batch = share.cut
        targets, labelled = (sum(column) for column in zip(*peers.gather([len(batch.batch.targets), batch.labelled]), strict=True))
        counts = {"masked_tokens": targets, "sentence": labelled}
        clock.mark("other")
        losses = engine.losses(batch.pieces[0])
        clock.mark("forward")
        engine.backward(sum(part.sum * (world / max(counts[name], 1)) for name, part in losses.items()), last=True)
        clock.mark("backward")
        peers.gather([float(losses[name].sum.detach()) for name in sorted(losses)])
        clock.mark("other")
        engine.step(1.0, lambda _: True)
        clock.mark("optimizer")
        group.made.append((share, clock.parts()))

    turns.serve(step)


def be_hf_deepspeed(group: Group, turns: "Turns") -> None:
    """Hugging Face's model and torch's fused AdamW under DeepSpeed, with the same JSON."""
    import deepspeed

    config, optimizer = group.config, group.config.optimizer
    model = build_theirs(group).to(group.device)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=optimizer.betas, eps=optimizer.eps, weight_decay=0.01, fused=True)
    filled = fill_ds_config(config.engine, batch_rows=config.data.batch_rows, clip_norm=optimizer.clip_norm, world=group.place.world_size)
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw, config=filled)

    def step() -> None:
        clock = Clock()
        share = next(group.batches)
        clock.mark("data_wait")
        loss = engine(**{name: values.to(group.device, non_blocking=True) for name, values in share.padded.items()}).loss
        clock.mark("forward")
        engine.backward(loss)
        clock.mark("backward")
        engine.step()
        clock.mark("optimizer")
        group.made.append((share, clock.parts()))

    turns.serve(step)


def be_hf_trainer(group: Group, turns: "Turns") -> None:
    """Hugging Face's Trainer with its own loop, DDP and AdamW, fed with the same rows."""
    from remask.benchmarks.throughput_trainer import train

    train(group, build_theirs(group), turns)


CONTESTANTS: dict[str, Callable[[Group, "Turns"], None]] = {
    "remask": be_ours,
    "hf_deepspeed": be_hf_deepspeed,
    "hf_trainer": be_hf_trainer,
}


class Turns:
    """Numbers of steps that are asked for, and the answers."""

    def __init__(self, group: Group, answers: TextIO) -> None:
        self.group, self._answers = group, answers
        device = describe_device()
        self._about = {"device": device.name, "peak_flops": sum(numbers[0] for numbers in group.peers.gather([device.peak_flops]))}

    def serve(self, step: Callable[[], None]) -> None:
        while count := self.next():
            for _ in range(count):
                step()
            self.answer()

    def next(self) -> int:
        """Steps to make now; 0 at the end."""
        return int(sys.stdin.readline() or 0)

    def answer(self) -> None:
        cuda = torch.cuda.is_available()
        peak = torch.cuda.max_memory_allocated() if cuda else peak_memory()
        peaks = self.group.peers.gather([peak])
        steps = self.group.gather()
        told: dict[str, Any] = {}
        if self.group.place.rank == 0:
            told = {**self._about, "hosts": self.group.hosts, "peak_bytes": int(max(one[0] for one in peaks))}
            told["steps"] = [asdict(step) for step in steps]
        print(json.dumps(told), file=self._answers, flush=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print, too
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    group = join_group(load(sys.argv[2]))
    CONTESTANTS[sys.argv[1]](group, Turns(group, answers))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
