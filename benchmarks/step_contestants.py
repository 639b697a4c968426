"""Who takes part in the benchmark of the training step; each runs in a process of its own and makes a step whenever it is told to.

    python -m remask.benchmarks.step_contestants ours|theirs JOB.json

Reads `step` or `gemm` by the line and answers each with one line of JSON; ends with its input.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from remask.launcher.build import build_model
from remask.launcher.device import keep_freed_memory
from remask.launcher.engine import EngineConfig
from remask.model.config import EncoderConfig
from remask.model.flops import count_flops
from remask.model.huggingface import choose_form

SPECIALS = {"pad": 1, "cls": 0, "sep": 2}
_MASKED = 0.15


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The same rows and targets for both."""

    ids: Tensor
    lengths: Tensor
    positions: Tensor

    @property
    def offsets(self) -> Tensor:
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])


def make_rows(config: EncoderConfig, lengths: list[int]) -> Rows:
    torch.manual_seed(1)
    tokens = sum(lengths)
    positions = torch.randperm(tokens)[: round(_MASKED * tokens)].sort().values
    return Rows(ids=torch.randint(5, config.vocab_size, (tokens,)), lengths=torch.tensor(lengths), positions=positions)


class Ours:
    """Unpadded, scores at the targets only."""

    def __init__(self, config: EncoderConfig, rows: Rows) -> None:
        self.rows, self.offsets, self.targets = rows, rows.offsets, rows.ids[rows.positions]
        engine = EngineConfig(zero_stage=0, precision="fp32")
        self.model: torch.nn.Module = build_model(config, engine, sentence_task=False, seed=1).train()

    def loss(self) -> Tensor:
        part = self.model(self.rows.ids, self.offsets, self.rows.positions, self.targets)["masked_tokens"]
        loss: Tensor = part.sum / part.counted
        return loss


class Theirs:
    """Hugging Face's model with SDPA, as its own collator feeds it: padded to the longest row, labels -100 where nothing is asked."""

    def __init__(self, config: EncoderConfig, rows: Rows) -> None:
        form = choose_form(config, False, SPECIALS)
        settings = {name: value for name, value in form.settings.items() if name not in ("model_type", "architectures")}
        made = transformers.AutoConfig.for_model(form.settings["model_type"], **settings, attn_implementation="sdpa")
        self.model: torch.nn.Module = getattr(transformers, form.architecture)(made).train()
        is_token = torch.arange(int(rows.lengths.max())) < rows.lengths[:, None]
        ids, labels = torch.full(is_token.shape, SPECIALS["pad"]), torch.full(is_token.shape, -100)
        ids[is_token] = rows.ids
        flat = torch.full_like(rows.ids, -100)
        flat[rows.positions] = rows.ids[rows.positions]
        labels[is_token] = flat
        self.inputs = {"input_ids": ids, "attention_mask": is_token.long(), "labels": labels}

    def loss(self) -> Tensor:
        loss: Tensor = self.model(**self.inputs).loss
        return loss


def gemm_flops_per_s(config: EncoderConfig, tokens: int) -> float:
    """What torch.mm reaches on the four products of a layer, each forward and its two of the backward pass."""
    seconds = flops = 0.0
    for inputs, outputs in (
        (config.hidden, 3 * config.hidden),
        (config.hidden, config.hidden),
        (config.hidden, config.ffn),
        (config.ffn, config.hidden),
    ):
        x, weight, upstream = torch.randn(tokens, inputs), torch.randn(outputs, inputs), torch.randn(tokens, outputs)
        for left, right in ((x, weight.t()), (upstream, weight), (upstream.t(), x)):
            torch.mm(left, right)
            start = time.perf_counter()
            torch.mm(left, right)
            seconds += time.perf_counter() - start
            flops += 2 * tokens * inputs * outputs
    return flops / seconds


def peak_memory() -> int:
    """Bytes that this process held at most; the kernel's own count, which unlike getrusage's does not begin with the parent's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    name, job = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    torch.set_num_threads(job["threads"])
    keep_freed_memory()
    config = EncoderConfig(**job["config"])
    rows = make_rows(config, job["lengths"])
    contestant = Ours(config, rows) if name == "ours" else Theirs(config, rows)
    optimizer = torch.optim.AdamW(contestant.model.parameters(), lr=1e-4, fused=True)
    flops = count_flops(config, job["lengths"], len(rows.positions)).total
    for line in sys.stdin:
        answer: dict[str, Any]
        if line.strip() == "gemm":
            answer = {"flops_per_s": gemm_flops_per_s(config, len(rows.ids))}
        else:
            start = time.perf_counter()
            loss = contestant.loss()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            answer = {"seconds": time.perf_counter() - start, "loss": loss.item(), "flops": flops, "peak_bytes": peak_memory()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
