"""Where sharing pays at the papers' own sizes: ALBERT against its unshared twin, by arithmetic; no machine was measured for it.

The step is the paper's: 4096 rows of 512 tokens (Lan et al. 2019), on GPUs of 80 GB with 312 TFLOP/s in bf16 (NVIDIA's data sheet of the
A100) at 40% of that; ZeRO-1 as shipped, gradients in fp32, weights gathered in bf16. Machines have eight GPUs, at 8 GPUs in all over a
network four; a ring enters and leaves each machine once, so the machine's link counts. A GPU takes as many micro-batches as its memory
asks for (`launcher/training/memory.py`, an upper bound), and gradients are sent in the last one: only its backward pass can hide them, as
`launcher/communication.py` models it. Nothing hides the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any

from remask.benchmarks.record import Table
from remask.launcher.communication import Link, exposed_seconds, predict, weights_of, when_ready
from remask.launcher.config import RunConfig, load
from remask.launcher.training.memory import estimate_memory
from remask.model.flops import count_flops

PRESETS = ("albert-base", "albert-large", "albert-xlarge", "albert-xxlarge")
GPUS = (8, 64, 256, 1024)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Between machines; each GPU has an adapter of its own, or the machine has one."""

    name: str
    gbit: float
    latency_us: float
    adapter_a_gpu: bool = True
    joins_machines: bool = True

    def link(self, gpus: int) -> Link:
        """Of one machine, each way."""
        in_machine = 4 if self.joins_machines and gpus <= 8 else 8
        return Link(name=self.name, gbit=self.gbit * (in_machine if self.adapter_a_gpu else 1), latency_us=self.latency_us)


NETWORKS = (
    Network(name="NVLink", gbit=2400, latency_us=3, adapter_a_gpu=False, joins_machines=False),  # 300 GB/s a GPU, A100's data sheet
    Network(name="InfiniBand NDR", gbit=400, latency_us=5),
    Network(name="InfiniBand HDR", gbit=200, latency_us=5),
    Network(name="100 GbE", gbit=100, latency_us=20, adapter_a_gpu=False),
    Network(name="25 GbE", gbit=25, latency_us=20, adapter_a_gpu=False),
    Network(name="10 GbE", gbit=10, latency_us=20, adapter_a_gpu=False),
)
_PEAK_FLOPS, _MFU, _MEMORY_BYTES, _ROWS, _LENGTH, _TARGETS = 312e12, 0.4, 0.85 * 80e9, 4096, 512, 0.15
PAYS_FROM = 1.05


@cache
def paper_rows() -> list[dict[str, Any]]:
    return [row for preset in PRESETS for row in _rows_of(preset)]


def _rows_of(preset: str) -> list[dict[str, Any]]:
    shared = load(preset)
    twins = {"shared": shared, "unshared": replace(shared, model=replace(shared.model, sharing="none", groups=1))}
    steps = {name: _steps_of(twin) for name, twin in twins.items()}
    rows = []
    for gpus in GPUS:
        for network in NETWORKS:
            found = {name: step(gpus, network.link(gpus)) for name, step in steps.items()}
            speedup = found["unshared"]["step_s"] / found["shared"]["step_s"]
            rows.append({"preset": preset, "gpus": gpus, "link": network.name, **found, "speedup": speedup})
    return rows


def _steps_of(config: RunConfig) -> Callable[[int, Link], dict[str, float]]:
    """A function of the GPUs and the link that tells the seconds of a step, and of what it waits for the network."""
    weights, head_share = weights_of(config), _head_share(config)
    flops = count_flops(config.model, [_LENGTH] * _ROWS, round(_TARGETS * _ROWS * _LENGTH), _ROWS).total
    memory = {gpus: estimate_memory(config, weights.total, gpus) for gpus in GPUS}

    def step(gpus: int, link: Link) -> dict[str, float]:
        compute = flops / gpus / (_PEAK_FLOPS * _MFU)
        tokens = _ROWS * _LENGTH / gpus
        pieces = max(1, ceil(tokens * memory[gpus].activations_per_token / (_MEMORY_BYTES - memory[gpus].states)))
        sent = predict(config, weights, gpus, accumulation=pieces)
        ready = [(share, 4 * 2 * (gpus - 1) / gpus * parameters) for share, parameters in when_ready(config.model, head_share)]
        gathered = link.seconds((gpus - 1) * sent.payload["all_gather"], sent.calls["all_gather"] + 1, gpus)
        exposed = exposed_seconds(ready, compute * 2 / 3 / pieces, link.gbit * 1e9 / 8) + gathered
        return {
            "parameters": weights.total,
            "micro_batches": pieces,
            "payload_bytes": sum(sent.payload.values()),
            "wire_bytes": sent.wire(gpus, "nccl"),
            "compute_s": compute,
            "communication_s": link.seconds(sent.wire(gpus, "nccl"), sum(sent.calls.values()), gpus),
            "exposed_s": exposed,
            "step_s": compute + exposed,
            "exposed_share": exposed / (compute + exposed),
        }

    return step


def _head_share(config: RunConfig) -> float:
    with_head, without = (count_flops(config.model, [_LENGTH], targets).total for targets in (round(_TARGETS * _LENGTH), 0))
    return 1 - without / with_head


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Bytes by model, and for each number of GPUs what every link makes of them."""
    sizes = {row["preset"]: row for row in rows if row["gpus"] == GPUS[-1]}
    sent = Table(
        title="ALBERT and its unshared twin at the papers' size: what a GPU sends in a step (ZeRO-1, bf16; computed, not measured)",
        columns=("model", "parameters, shared", "not shared", "GB, shared", "not shared", "saved", "micro-batches by GPUs"),
        rows=[
            (
                preset,
                *(f"{row[name]['parameters'] / 1e6:,.1f} M" for name in ("shared", "unshared")),
                *(f"{row[name]['wire_bytes'] / 1e9:.2f}" for name in ("shared", "unshared")),
                f"{row['unshared']['wire_bytes'] / row['shared']['wire_bytes']:.1f}x",
                ", ".join(f"{one['gpus']}: {one['unshared']['micro_batches']}" for one in rows if _is_first(one, preset)),
            )
            for preset, row in sizes.items()
        ],
    )
    told = {
        "Milliseconds that a step of 4096 x 512 tokens waits for the network, shared / not shared": lambda row: _pair(
            row, "exposed_s", 1e3
        ),
        "Share of the step that this is, in percent, shared / not shared": lambda row: _pair(row, "exposed_share", 100),
        "How much faster sharing makes the step": lambda row: f"{row['speedup']:.2f}x",
    }
    by_link = [
        Table(
            title=title,
            columns=("model", "GPUs", *(network.name for network in NETWORKS)),
            rows=[
                (preset, str(gpus), *(show(row) for row in rows if (row["preset"], row["gpus"]) == (preset, gpus)))
                for preset in PRESETS
                for gpus in GPUS
            ],
            note=_where_it_pays(rows) if "faster" in title else "",
        )
        for title, show in told.items()
    ]
    return [sent, *by_link]


def _is_first(row: dict[str, Any], preset: str) -> bool:
    return bool(row["preset"] == preset and row["link"] == NETWORKS[0].name)


def _pair(row: dict[str, Any], name: str, unit: float) -> str:
    return " / ".join(f"{row[which][name] * unit:.{0 if row[which][name] * unit >= 9.95 else 1}f}" for which in ("shared", "unshared"))


def _where_it_pays(rows: list[dict[str, Any]]) -> str:
    pays = [row for row in rows if row["speedup"] >= PAYS_FROM]
    links = {link.name: sum(row["link"] == link.name for row in pays) for link in NETWORKS}
    told = ", ".join(f"{link} {count} of {len(PRESETS) * len(GPUS)}" for link, count in links.items())
    return (
        f"Sharing makes a step at least {PAYS_FROM - 1:.0%} faster in {len(pays)} of {len(rows)} cases: {told}. It pays where links are "
        "slow or GPUs are many for the batch; on fast links an unshared model hides most of its gradients behind the backward pass, and "
        "what sharing saves is memory. NVLink joins 8 GPUs in most machines: more of them are there to compare."
    )
