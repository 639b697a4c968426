"""One rank of the communication lab: makes real steps of our engine, counts what they send, and makes them again with the wires cut.

    python -m remask.benchmarks.comm_ranks JOB.json

with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set; rank 0 writes its findings to the job's `out`.
"""

import inspect
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.distributed import distributed_c10d

from remask.benchmarks.comm_cells import configure
from remask.benchmarks.machines import sent_bytes
from remask.launcher import distributed
from remask.launcher.build import build_model
from remask.launcher.config import RunConfig, load
from remask.launcher.ranks import Place, place_of
from remask.launcher.training.engine import Engine
from remask.launcher.training.traffic import Traffic, watch_collectives

_WARM_UP_STEPS = 2
_TARGETS_EVERY = 7  # tokens, about 15%
_PROBE_ELEMENTS = 1 << 20
_PROBES = 9
_BUCKET_MB = 2  # about a layer of the small model


class Wires:
    """Between the ranks. While they are cut a collective only moves data inside its rank, in the shapes of the real one."""

    def __init__(self) -> None:
        self.cut = False
        inside: dict[str, Callable[[dict[str, Any]], None]] = {
            "all_reduce": lambda _: None,
            "all_gather_into_tensor": _gather_own,
            "reduce_scatter_tensor": _scatter_own,
        }
        for name, move in inside.items():
            switched = self._switched(getattr(distributed_c10d, name), move)
            for module in (torch.distributed, distributed_c10d):
                setattr(module, name, switched)

    def _switched(self, call: Callable[..., Any], move: Callable[[dict[str, Any]], None]) -> Callable[..., Any]:
        signature = inspect.signature(call)

        @wraps(call)
        def switched(*args: Any, **kwargs: Any) -> Any:
            if not self.cut:
                return call(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            move(given)
            return _Done() if given.get("async_op") else None

        return switched


class _Done:
    """A transfer that is over."""

    def wait(self, *_: Any) -> None:
        return


def _gather_own(given: dict[str, Any]) -> None:
    part: Tensor = given["input_tensor"]
    for place in given["output_tensor"].view(-1, part.numel()):
        if place.data_ptr() != part.data_ptr():  # ZeRO's own part lies in the whole already
            place.copy_(part.view(-1))


def _scatter_own(given: dict[str, Any]) -> None:
    part: Tensor = given["output"]
    part.view(-1).copy_(given["input"].view(-1, part.numel())[torch.distributed.get_rank()])


class Lab:
    """All ranks, joined once; cells are measured one after the other."""

    def __init__(self, place: Place) -> None:
        self.place, self.wires = place, Wires()  # below the counters, which see every call
        self.traffic: Traffic = watch_collectives()
        distributed.meet(place)
        distributed.start(place, seconds=600)
        if not torch.cuda.is_available():
            torch.set_num_threads(1)

    def time_collectives(self) -> dict[str, float]:
        """Seconds of a call, and of each further byte on the wire, as all-reduces of one number and of 4 MB take them."""
        few, many = (self._time_all_reduce(elements) for elements in (1, _PROBE_ELEMENTS))
        wire = 2 * (self.place.world_size - 1) / self.place.world_size * 4 * _PROBE_ELEMENTS
        return {"call_s": few, "wire_byte_s": max(many - few, 0.0) / wire}

    def _time_all_reduce(self, elements: int) -> float:
        tensor, seconds = torch.zeros(elements, device=_device(self.place)), []
        with self.traffic.aside():
            for _ in range(_PROBES):
                self._wait()
                start = time.perf_counter()
                torch.distributed.all_reduce(tensor)
                self._finish()
                seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    def measure(self, config: RunConfig, cell: dict[str, Any], repeats: int) -> dict[str, Any]:
        """Steps with the wires and without, in turn, so that a busy machine slows both alike."""
        config = configure(config, cell)
        rows = cell["micro_batch"] * cell["accumulation"] * self.place.world_size
        config = replace(config, data=replace(config.data, batch_rows=rows))
        batches = [full_rows(config, cell["micro_batch"], cell["length"], number, self.place) for number in range(cell["accumulation"])]
        engine = Engine(config, build_model(config.model, config.engine, sentence_task=False, seed=1), self.place)

        def step() -> None:
            for number, batch in enumerate(batches, start=1):
                loss = sum(part.sum / part.counted for part in engine.losses(batch).values())
                engine.backward(loss, last=number == len(batches))  # type: ignore[arg-type]
            engine.step(1.0, lambda _: True)

        for _ in range(_WARM_UP_STEPS):
            step()
        found = [self._observe(step, cut=cut) for _ in range(repeats) for cut in (False, True)]
        real, alone = found[::2], found[1::2]
        if any(one["payload"] != real[0]["payload"] or one["calls"] != real[0]["calls"] for one in found):
            raise RuntimeError(f"{cell}: not every step sent the same")
        return {
            **{name: real[0][name] for name in ("calls", "payload")},
            "wire_bytes": None if real[0]["wire"] is None else statistics.median(one["wire"] for one in real),
            "alone_wire_bytes": None if real[0]["wire"] is None else statistics.median(one["wire"] for one in alone),
            "steps_s": [one["seconds"] for one in real],
            "alone_s": [one["seconds"] for one in alone],
        }

    def _observe(self, step: Callable[[], None], *, cut: bool) -> dict[str, Any]:
        calls, payload = Counter(self.traffic.calls), Counter(self.traffic.payload_bytes)
        self._wait()
        wire, start = sent_bytes(), time.perf_counter()
        self.wires.cut = cut
        step()
        self.wires.cut = False
        self._finish()
        seconds, wire_after = time.perf_counter() - start, sent_bytes()
        return {
            "seconds": seconds,
            "wire": None if wire is None or wire_after is None else wire_after - wire,
            "calls": _by_collective(self.traffic.calls - calls),
            "payload": _by_collective(self.traffic.payload_bytes - payload),
        }

    def overlap(self, config: RunConfig, cell: dict[str, Any], repeats: int) -> dict[str, Any]:
        """Plain data-parallel steps by torch's own wrapper: gradients sent while the backward pass goes on, and after it.

        On a CPU DeepSpeed does not overlap, so this is where overlap can be measured.
        """
        config = configure(config, cell)
        batch = full_rows(config, cell["micro_batch"], cell["length"], 0, self.place)
        model = build_model(config.model, config.engine, sentence_task=False, seed=1).to(_device(self.place))
        ready = _readiness(model, batch)
        with self.traffic.aside():
            wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=_BUCKET_MB)
            buckets = _buckets(model)

            def meanwhile() -> None:
                _loss(wrapped(**batch)).backward()

            def afterwards() -> None:
                with wrapped.no_sync():
                    _loss(wrapped(**batch)).backward()
                for bucket in buckets:
                    torch.distributed.all_reduce(torch.cat([weight.grad.view(-1) for weight in bucket if weight.grad is not None]))

            meanwhile()
            afterwards()
            found = [self._observe(one, cut=False)["seconds"] for _ in range(repeats) for one in (meanwhile, afterwards)]
        return {"overlapped_s": found[::2], "after_s": found[1::2], "ready": ready}

    def _wait(self) -> None:
        torch.distributed.barrier()

    def _finish(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def full_rows(config: RunConfig, rows: int, length: int, number: int, place: Place) -> dict[str, Tensor]:
    """A micro-batch; each rank and each number has its own."""
    draw = torch.Generator().manual_seed(1000 * place.rank + number)
    ids = torch.randint(5, config.model.vocab_size, (rows * length,), generator=draw)
    positions = torch.arange(0, rows * length, _TARGETS_EVERY)
    offsets = torch.arange(0, rows * length + 1, length, dtype=torch.int32)
    return {"ids": ids, "offsets": offsets, "positions": positions, "targets": ids[positions].clone()}


def _buckets(model: torch.nn.Module) -> list[list[torch.nn.Parameter]]:
    """The weights in the order of the backward pass, as the wrapper puts them together."""
    buckets: list[list[torch.nn.Parameter]] = [[]]
    for weight in reversed([weight for weight in model.parameters() if weight.requires_grad]):
        if buckets[-1] and 4 * sum(one.numel() for one in [*buckets[-1], weight]) > _BUCKET_MB * 2**20:
            buckets.append([])
        buckets[-1].append(weight)
    return buckets


def _readiness(model: torch.nn.Module, batch: dict[str, Tensor]) -> list[tuple[float, int]]:
    """(share of the backward pass after which a weight's gradient is whole, bytes), as measured."""
    times: list[tuple[float, int]] = []
    hooks = [
        weight.register_post_accumulate_grad_hook(lambda weight: times.append((time.perf_counter(), 4 * weight.numel())))
        for weight in model.parameters()
        if weight.requires_grad
    ]
    for _ in range(2):  # the first pass allocates
        times.clear()
        loss = _loss(model(**batch))
        start = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
    for hook in hooks:
        hook.remove()
    return [((moment - start) / (end - start), amount) for moment, amount in times]


def _loss(losses: dict[str, Any]) -> Tensor:
    total: Tensor = sum(part.sum / part.counted for part in losses.values())
    return total


def _by_collective(counts: "Counter[str]") -> dict[str, int]:
    """torch has several functions for one collective."""
    found: Counter[str] = Counter()
    for name, count in counts.items():
        found[name.removesuffix("_coalesced").removesuffix("_tensor").removesuffix("_into")] += count
    return dict(found)


def _device(place: Place) -> torch.device:
    return torch.device("cuda", place.local_rank) if torch.cuda.is_available() else torch.device("cpu")


def run(job: dict[str, Any], place: Place) -> dict[str, Any]:
    """The job's cells; the same on every rank, but for clocks."""
    lab, config = Lab(place), load(job["config"])
    found: dict[str, Any] = {"backend": torch.distributed.get_backend(), "collectives": lab.time_collectives()}
    found["cells"] = [{**cell, **lab.measure(config, cell, job["repeats"])} for cell in job["cells"]]
    found["overlaps"] = [{**cell, **lab.overlap(config, cell, job["repeats"])} for cell in job["overlaps"]]
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    place = place_of(os.environ)
    found = run(job, place)
    if place.rank == 0:
        Path(job["out"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
