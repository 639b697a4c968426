"""The loader next to its peers: masked tokens per CPU-second at 512, from shards on disk to batches of token ids and targets.

Every contestant reads the same rows, packed to 512 tokens, and masks 15% of their tokens. It first makes some batches untimed; then it is
timed by CPU-seconds of its process, in rounds that take turns; figures are medians with the lowest and highest.

    remask bench loader --json loader.json

Peers: Hugging Face's DataCollatorForLanguageModeling over datasets (Arrow on disk), webdataset with one sequence a member and the same
collator's arithmetic in torch, and MosaicML's streaming without any masking where it is installed. Limit: a bare gather of the same rows
in the same order, special tokens around them, without words and masks. Seek: a random position of a set of 160 GB, 80 million rows.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np

from remask.benchmarks.record import Table, check_target, write_record
from remask.data_prep.masking import Strategy
from remask.data_prep.order import Order
from remask.launcher.cli import guard
from remask.launcher.errors import UserError
from remask.launcher.options import parse

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
PEERS = {"hf_collator": "datasets", "webdataset": "webdataset"}
"""With the package that each needs."""


@dataclass(frozen=True, kw_only=True)
class LoaderBenchOptions:
    """Measure batches of masked rows against what others make."""

    data: Path = Path("../shared/data")
    """Folder with en.jsonl.gz; without it the documentation of the installed packages is harvested."""
    repeats: int = 5
    """Rounds; at least 3 for a spread."""
    mds_python: Path | None = None
    """A Python with mosaicml-streaming, in an environment of its own; without it that peer is left out."""
    quick: bool = False
    """At most 2 rounds."""
    json: Path | None = None
    """Write the figures here."""


def measure(folder: Path, options: LoaderBenchOptions) -> dict[str, Any]:
    peers = [*(peer for peer, package in PEERS.items() if find_spec(package)), *(["mds"] if options.mds_python else [])]
    contestants = ["limit", *STRATEGIES, *peers]
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    cold: list[float] = []
    for _ in range(options.repeats):
        for name in contestants:
            found = _contest(name, folder, options.mds_python)
            rates[name].append(found["mtok_per_cpu_s"])
            if name == "token":
                cold.append(found["cold_s"])
    rows = {name: {"mtok_per_cpu_s": statistics.median(r), "lowest": min(r), "highest": max(r)} for name, r in rates.items()}

    def ratios(other: str) -> dict[str, float]:
        return {strategy: rows[strategy]["mtok_per_cpu_s"] / rows[other]["mtok_per_cpu_s"] for strategy in STRATEGIES}

    return {
        "ours": {strategy: rows[strategy] for strategy in STRATEGIES},
        "peers": {name: rows[name] for name in peers},
        "not_installed": [peer for peer in PEERS if peer not in peers],
        "limit": rows["limit"],
        "ratio_hf_collator": ratios("hf_collator") if "hf_collator" in peers else {},
        "ratio_limit": ratios("limit"),
        "cold_start_s": {"median": statistics.median(cold), "highest": max(cold)},
        "seek_ms": seek_times(),
    }


def _contest(name: str, folder: Path, mds_python: Path | None) -> dict[str, float]:
    script = [sys.executable, "-m", "remask.benchmarks.loader_contestants", name]
    if name == "mds":
        script = [str(mds_python), str(Path(__file__).with_name("mds_reader.py"))]
    ended = subprocess.run([*script, str(folder)], capture_output=True, text=True, timeout=900, check=False)
    if ended.returncode:
        raise RuntimeError(f"{name}: {ended.stderr[-2000:]}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def seek_times() -> dict[str, float]:
    """Milliseconds to find the first batch after a jump, by the share of the run that is behind it."""
    block_rows = np.full(156_250, 512)
    found = {}
    for share in (0.0, 0.1, 0.5, 0.99, 40.0):
        order = Order(block_rows=block_rows, lanes=3072, window_blocks=8, seed=1)  # a new one knows no epoch
        position = int(share * order.rows)
        start = time.perf_counter()
        order.locate(np.arange(position, position + 256))
        found[f"{share:g} epochs"] = 1000 * (time.perf_counter() - start)
    return found


def _tables(found: dict[str, Any], repeats: int) -> list[Table]:
    rows = []
    for name, row in {**found["ours"], **found["peers"], "bare gather": found["limit"]}.items():
        times = f"{found['ratio_hf_collator'][name]:.0f}x" if name in found["ratio_hf_collator"] else ""
        of_limit = f"{found['ratio_limit'][name]:.2f}" if name in found["ours"] else ""
        rows.append([name, f"{row['mtok_per_cpu_s']:.2f}", f"{row['lowest']:.2f} to {row['highest']:.2f}", times, of_limit])
    rows += [[name, "not installed", "", "", ""] for name in found["not_installed"]]
    rates = Table(
        title="Masked batches at 512",
        columns=("contestant", "million tokens per CPU-second", "lowest to highest", "times HF's collator", "of the bare gather"),
        rows=rows,
        note=f"Ours by masking strategy, then the peers, then the limit; median of {repeats} rounds. First batch of a new process after "
        f"{found['cold_start_s']['median']:.2f} s (imports, and compiled code from the cache).",
    )
    seeks = Table(
        title="Seek in 80 million rows",
        columns=("jump to", "milliseconds"),
        rows=[[share, f"{milliseconds:.1f}"] for share, milliseconds in found["seek_ms"].items()],
        note="To find the rows of the first batch after a resume there.",
    )
    return [rates, seeks]


def main(args: Sequence[str]) -> int:
    options = parse(LoaderBenchOptions, args, "bench loader")
    if options.repeats < 1:
        raise UserError(f"remask bench loader: --repeats: {options.repeats} was given, it must be at least 1")
    check_target("loader", options.json)
    if options.quick:
        options = replace(options, repeats=min(options.repeats, 2))
    from remask.benchmarks.loader_contestants import prepare_sets

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tokens = prepare_sets(Path(folder), options.data)
        if options.mds_python:
            script = Path(__file__).with_name("mds_reader.py")
            subprocess.run([str(options.mds_python), str(script), folder, "--write"], check=True, capture_output=True, timeout=900)
        found = measure(Path(folder), options)
    tables = _tables(found, options.repeats)
    for table in tables:
        print(f"{table}\n")
    if options.json:
        write_record(options.json, "loader", args, began, tables, {"tokens": tokens, **found})
    return 0


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:], all_ranks=False))
