"""`remask bench NAME`: runs a benchmark in a process of its own; nothing here imports them."""

import subprocess
import sys
from collections.abc import Sequence

from remask.launcher.decode import nearest
from remask.launcher.errors import UserError

BENCHMARKS = {
    "all": "every other one, one after the other, and their tables into BENCHMARKS.md",
    "comm": "what a step sends, counted and predicted, by sharing mode, ZeRO stage and link speed",
    "kernels": "the fused kernels compiled for three GPU architectures, with registers, spills and bytes moved",
    "learning": "what tiny models learn: static and dynamic masks, SOP and NSP, the four sharing modes",
    "loader": "batches of masked rows next to HF's collator, webdataset and MDS, in tokens per CPU-second",
    "prep": "the offline stage next to HF datasets, datatrove and webdataset, in MB per CPU-second",
    "step": "a training step on CPU next to Hugging Face's model, in tokens per second",
    "startup": "how fast the command answers, next to importing what it keeps out",
    "throughput": "training over ZeRO stages, micro-batches and ranks, next to HF with DeepSpeed and HF Trainer, in tokens per second",
}

_HELP = """\
usage: remask bench NAME [OPTIONS]

Run a benchmark: ours and its peers in turn, ratios with their spread.

names:
{names}

options:
  --json FILE  write the figures there; remask bench NAME --help tells a benchmark's own options
  --quick      a small version for a first look, which ends within minutes

example:
  remask bench startup --json startup.json
"""


def main(args: Sequence[str]) -> int:
    """run a benchmark against its peers"""
    if not args or args[0] in ("-h", "--help"):
        print(_HELP.format(names="\n".join(f"  {name:<10} {told}" for name, told in BENCHMARKS.items())), end="")
        return 0
    if args[0] not in BENCHMARKS:
        raise UserError(f"remask bench: {args[0]!r} is no benchmark; {nearest(args[0], list(BENCHMARKS))}")
    return subprocess.run([sys.executable, "-m", f"remask.benchmarks.{args[0]}", *args[1:]], check=False).returncode
