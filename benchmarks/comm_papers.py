"""Where sharing pays at the papers' own sizes: ALBERT against its unshared twin, by arithmetic; no machine was measured for it.

The step is the paper's: 4096 rows of 512 tokens (Lan et al. 2019), on GPUs of 312 TFLOP/s in bf16 (NVIDIA's data sheet of the A100) at
40% of that; ZeRO-1 as shipped, gradients in fp32, weights gathered in bf16. Machines have eight GPUs; a ring enters and leaves each of
them once, so the machine's link counts. Gradients overlap with the backward pass as `launcher/communication.py` models it, weights with
nothing.
"""

from dataclasses import replace
from typing import Any

from remask.benchmarks.record import Table
from remask.launcher.communication import Link, Weights, exposed_seconds, predict, weights_of, when_ready
from remask.launcher.config import RunConfig, load
from remask.model.flops import count_flops

PRESETS = ("albert-base", "albert-large", "albert-xlarge", "albert-xxlarge")
GPUS = (8, 64, 256, 1024)
# Of a machine with eight GPUs, each way. NVLink: 300 GB/s (A100's data sheet); InfiniBand: an adapter a GPU; Ethernet: one a machine.
LINKS = (
    Link(name="NVLink", gbit=2400, latency_us=3),
    Link(name="InfiniBand NDR", gbit=8 * 400, latency_us=5),
    Link(name="InfiniBand HDR", gbit=8 * 200, latency_us=5),
    Link(name="100 GbE", gbit=100, latency_us=20),
    Link(name="25 GbE", gbit=25, latency_us=20),
    Link(name="10 GbE", gbit=10, latency_us=20),
)
_PEAK_FLOPS, _MFU, _ROWS, _LENGTH, _TARGETS = 312e12, 0.4, 4096, 512, 0.15
PAYS_FROM = 1.05


def paper_rows() -> list[dict[str, Any]]:
    return [row for preset in PRESETS for row in _rows_of(load(preset))]


def _rows_of(shared: RunConfig) -> list[dict[str, Any]]:
    twins = {"shared": shared, "unshared": replace(shared, model=replace(shared.model, sharing="none", groups=1))}
    weights = {name: weights_of(twin) for name, twin in twins.items()}
    rows = []
    for gpus in GPUS:
        for link in LINKS:
            found = {name: _step(twins[name], weights[name], gpus, link) for name in twins}
            speedup = found["unshared"]["step_s"] / found["shared"]["step_s"]
            rows.append({"preset": _name(shared), "gpus": gpus, "link": link.name, **found, "speedup": speedup})
    return rows


def _name(config: RunConfig) -> str:
    return next(preset for preset in PRESETS if load(preset).model == config.model)


def _step(config: RunConfig, weights: Weights, gpus: int, link: Link) -> dict[str, float]:
    """Seconds of a step, and of what it waits for the network."""
    flops = count_flops(config.model, [_LENGTH] * _ROWS, round(_TARGETS * _ROWS * _LENGTH), _ROWS)
    compute = flops.total / gpus / (_PEAK_FLOPS * _MFU)
    sent = predict(config, weights, gpus, accumulation=1)
    wire = sent.wire(gpus, "nccl")
    gathered = (gpus - 1) * sent.payload["all_gather"]
    per_byte = 2 * (gpus - 1) / gpus
    ready = [(share, 4 * per_byte * parameters) for share, parameters in when_ready(config.model, _head_share(config))]
    overlapped = exposed_seconds(ready, compute * 2 / 3, link.gbit * 1e9 / 8) + link.seconds(gathered, sum(sent.calls.values()), gpus)
    alone = link.seconds(wire, sum(sent.calls.values()), gpus)
    return {
        "parameters": weights.total,
        "payload_bytes": sum(sent.payload.values()),
        "wire_bytes": wire,
        "compute_s": compute,
        "communication_s": alone,
        "exposed_s": overlapped,
        "step_s": compute + overlapped,
        "exposed_share": overlapped / (compute + overlapped),
    }


def _head_share(config: RunConfig) -> float:
    with_head, without = (count_flops(config.model, [_LENGTH], targets).total for targets in (round(_TARGETS * _LENGTH), 0))
    return 1 - without / with_head


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Bytes by model, and for each number of GPUs what every link makes of them."""
    sizes = {row["preset"]: row for row in rows if row["gpus"] == GPUS[-1]}
    sent = Table(
        title="ALBERT and its unshared twin at the papers' size: what a GPU sends in a step (ZeRO-1, bf16; computed, not measured)",
        columns=("model", "parameters, shared", "not shared", "GB, shared", "not shared", "saved"),
        rows=[
            (
                preset,
                *(f"{row[name]['parameters'] / 1e6:,.1f} M" for name in ("shared", "unshared")),
                *(f"{row[name]['wire_bytes'] / 1e9:.2f}" for name in ("shared", "unshared")),
                f"{row['unshared']['wire_bytes'] / row['shared']['wire_bytes']:.1f}x",
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
            columns=("model", "GPUs", *(link.name for link in LINKS)),
            rows=[
                (preset, str(gpus), *(show(row) for row in rows if row["preset"] == preset and row["gpus"] == gpus))
                for preset in PRESETS
                for gpus in GPUS
            ],
            note=_where_it_pays(rows) if "faster" in title else "",
        )
        for title, show in told.items()
    ]
    return [sent, *by_link]


def _pair(row: dict[str, Any], name: str, unit: float) -> str:
    return " / ".join(f"{row[which][name] * unit:.{0 if row[which][name] * unit >= 9.95 else 1}f}" for which in ("shared", "unshared"))


def _where_it_pays(rows: list[dict[str, Any]]) -> str:
    pays = [row for row in rows if row["speedup"] >= PAYS_FROM]
    links = {link.name: sum(row["link"] == link.name for row in pays) for link in LINKS}
    told = ", ".join(f"{link} {count} of {len(PRESETS) * len(GPUS)}" for link, count in links.items())
    return (
        f"Sharing makes a step at least {PAYS_FROM - 1:.0%} faster in {len(pays)} of {len(rows)} cases: {told}. It pays where links are "
        "slow or GPUs are many for the batch; on fast links an unshared model hides most of its gradients behind the backward pass, and "
        "what sharing saves is memory. NVLink joins 8 GPUs in most machines: more of them are there to compare."
    )
