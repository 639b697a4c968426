"""What is looked at before the first step, because it would cost days to find out later: machines that differ, shards that are not what
they were, a disk that is too small, a slow link."""

import json
import logging
import platform
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from remask.data_prep.blocks import Blocks
from remask.data_prep.errors import InputError
from remask.data_prep.files import hash_of
from remask.data_prep.loader import Loader
from remask.launcher.communication import weights_of
from remask.launcher.config import RunConfig
from remask.launcher.errors import UserError
from remask.launcher.training.peers import Peers
from remask.launcher.training.run_folder import package_versions

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_SAMPLED_BLOCKS = 2
_MOST_SECONDS_APART = 5.0
_ROUNDS = 3
_PAYLOAD_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}
_BYTES_A_PARAMETER = 12  # weight and two moments in fp32


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was measured; kept in the run's folder."""

    hosts: list[str]
    seconds_apart: float
    """Between the fastest and the slowest clock."""
    free_gb: float
    checkpoint_gb: float
    shards: int
    sampled_blocks: int
    all_reduce_gb_per_s: float | None
    """Of bus bandwidth, over all ranks; None with one rank."""


def check(config: RunConfig, run: Path, peers: Peers, loaders: dict[bool, Loader], hosts: list[str], device: "torch.device") -> Findings:
    """UserError on every rank alike, with all that is wrong, if the run cannot go well."""
    place = peers.place
    here = [rank for rank, host in enumerate(hosts) if host == hosts[place.rank]]
    sets = [blocks for loader in loaders.values() for blocks in loader.sets]
    problems = [problem for blocks in sets for problem in _wrong_shards(blocks, here.index(place.rank), len(here), place.rank)]
    told = peers.collect({"code": _describe_code(), "problems": problems})
    problems = [f"{hosts[rank]}: {problem}" for rank, one in enumerate(told) for problem in one["problems"]]
    problems += _different_machines(hosts, [one["code"] for one in told])
    clocks = [clock for (clock,) in peers.gather([time.time()])]
    checkpoint = _BYTES_A_PARAMETER * weights_of(config).total
    free = peers.tell(shutil.disk_usage(run).free if place.rank == 0 else 0)
    if free < checkpoint:
        problems.append(
            f"{run}: {free / 1e9:.2f} GB are free, one checkpoint needs {checkpoint / 1e9:.2f}; free some, or give another --out"
        )
    if problems:
        raise UserError(f"the run cannot start: {'; '.join(dict.fromkeys(problems))}")
    findings = Findings(
        hosts=sorted(set(hosts)),
        seconds_apart=max(clocks) - min(clocks),
        free_gb=free / 1e9,
        checkpoint_gb=checkpoint / 1e9,
        shards=sum(len(blocks.manifest.shards) for blocks in sets),
        sampled_blocks=_SAMPLED_BLOCKS * place.world_size * len(sets),
        all_reduce_gb_per_s=_measure_all_reduce(peers, device) if place.world_size > 1 else None,
    )
    if place.rank == 0:
        _tell(findings, config.checkpoint.keep_last, clocks, hosts)
        (run / "preflight.json").write_text(json.dumps(asdict(findings), indent=1) + "\n", encoding="utf-8")
    return findings


def check_shared(run: Path, peers: Peers, hosts: list[str]) -> None:
    """UserError on every rank alike if one of them does not see the run's folder as rank 0 does."""
    token = peers.tell(f".seen-{time.time_ns()}" if peers.place.rank == 0 else None)
    if peers.place.rank == 0:
        (run / token).touch()
    peers.tell(None)
    blind = sorted({host for host, sees in zip(hosts, peers.collect((run / token).exists()), strict=True) if not sees})
    if peers.place.rank == 0:
        (run / token).unlink(missing_ok=True)
    if blind:
        raise UserError(f"--out {run}: {', '.join(blind)} has another folder there than {hosts[0]}; give one that all machines share")


def _wrong_shards(blocks: Blocks, mine: int, ranks_here: int, rank: int) -> list[str]:
    """Sizes of this rank's share of the machine's files, and the hashes of some blocks, other ones on every rank."""
    if blocks.skip_damaged:
        return []
    wrong = []
    for shard in blocks.manifest.shards[mine::ranks_here]:
        file = blocks.folder / shard.name
        try:
            if (size := file.stat().st_size) != shard.bytes:
                wrong.append(f"{file}: {size} bytes, {shard.bytes} were written; prepare the shards again")
        except OSError as error:
            wrong.append(f"{file}: {error.strerror}; every machine must see the shards")
    if wrong:
        return wrong
    sample = np.random.default_rng(rank).integers(len(blocks.sizes), size=_SAMPLED_BLOCKS)
    try:
        blocks.open(sample)
    except InputError as error:
        wrong.append(str(error))
    return wrong


def _describe_code() -> dict[str, str]:
    """Versions, and what this package's files hash to: copies of one version may differ."""
    package = Path(__file__).resolve().parents[2]
    files = sorted(file for folder in ("launcher", "model", "data_prep") for file in (package / folder).rglob("*.py"))
    source = xxhash.xxh3_64("".join(hash_of(file) for file in files).encode()).hexdigest()
    return {"python": platform.python_version(), **package_versions(), "remask's files": source}


def _different_machines(hosts: list[str], codes: list[dict[str, str]]) -> list[str]:
    first = codes[0]
    return [
        f"{host}: {name} {code[name]}, {hosts[0]} has {first[name]}; install the same on all machines, or leave it out (sbatch --exclude)"
        for host, code in zip(hosts, codes, strict=True)
        for name in first
        if code[name] != first[name]
    ]


def _measure_all_reduce(peers: Peers, device: "torch.device") -> float:
    import torch

    payload = torch.zeros(_PAYLOAD_BYTES[device.type] // 4, device=device)
    best = float("inf")
    with peers.uncounted():
        for _ in range(_ROUNDS + 1):  # the first one connects
            peers.tell(None)
            begin = time.perf_counter()
            torch.distributed.all_reduce(payload)
            payload[0].item()
            best = min(best, time.perf_counter() - begin)
    world = peers.place.world_size
    return 2 * (world - 1) / world * payload.numel() * 4 / best / 1e9


def _tell(findings: Findings, keep_last: int, clocks: list[float], hosts: list[str]) -> None:
    speed = findings.all_reduce_gb_per_s
    log.info(
        "preflight: %d shards have their sizes, %d sampled blocks their hashes; %.1f GB free, a checkpoint has %.2f; %s%s",
        findings.shards, findings.sampled_blocks, findings.free_gb, findings.checkpoint_gb, f"{len(findings.hosts)} machines alike",
        f", all-reduce {speed:.2f} GB/s" if speed is not None else "",
    )  # fmt: skip
    if findings.seconds_apart > _MOST_SECONDS_APART:
        apart = sorted({host: clock - clocks[0] for host, clock in zip(hosts, clocks, strict=True)}.items(), key=lambda one: -abs(one[1]))
        log.warning("clocks differ by %.0f s (%s: %+.0f s); the run does not mind, its logs will", findings.seconds_apart, *apart[0])
    if findings.free_gb < (needed := (keep_last + 1) * findings.checkpoint_gb):
        log.warning("%.1f GB are free, the %d checkpoints that are kept need %.1f", findings.free_gb, keep_last, needed)
