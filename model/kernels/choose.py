"""Which implementation computes each operation: the highest rung of its ladder that can be had, chosen once, when a model is built.

Packages are looked at, never imported to find out: a foreign package called apex breaks whoever imports it by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from remask.model.operations import Operations

Pin = Literal["auto", "triton", "vendor", "torch"]
_VENDORS = ("transformer-engine", "apex")

# Operation -> rung -> the function or class; the highest rung first. `torch` can always be had.
LADDERS: dict[str, dict[str, str]] = {
    "linear_gelu": {
        "triton": "remask.model.kernels.gelu:linear_gelu",
        "torch": "remask.model.operations:linear_gelu",
    },
    "add_norm": {
        "triton": "remask.model.kernels.norm:add_norm",
        "apex": "remask.model.kernels.vendors:add_norm_by_apex",
        "torch": "remask.model.operations:add_norm",
    },
    "embed": {
        "triton": "remask.model.kernels.embedding:embed",
        "torch": "remask.model.operations:embed",
    },
    "target_loss": {
        "triton": "remask.model.kernels.head:target_loss",
        "cpu": "remask.model.chunked_head:chunked_target_loss",
        "torch": "remask.model.operations:target_loss",
    },
    "adamw": {
        "triton": "remask.model.kernels.optimizers:AdamW",
        "transformer-engine": "transformer_engine.pytorch.optimizers:FusedAdam",
        "apex": "apex.optimizers:FusedAdam",
        "torch": "torch.optim:AdamW",
    },
    "lamb": {
        "triton": "remask.model.kernels.optimizers:Lamb",
        "apex": "apex.optimizers:FusedLAMB",
        "torch": "remask.model.optimizers:Lamb",
    },
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the choice depends on."""

    device: str
    """cuda or cpu."""
    packages: tuple[str, ...]
    """Of triton, transformer-engine and apex: those that are there and really NVIDIA's."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The rung that an operation got, and why no higher one."""

    operation: str
    rung: str
    reason: str

    def load(self) -> Any:
        """The function or class itself."""
        module, _, name = LADDERS[self.operation][self.rung].partition(":")
        return getattr(import_module(module), name)


def look_around() -> Machine:
    """This machine, without importing any of the packages."""
    import torch

    there = {
        "triton": find_spec("triton") is not None,
        "transformer-engine": find_spec("transformer_engine") is not None and find_spec("transformer_engine_torch") is not None,
        "apex": find_spec("apex") is not None and foreign_apex() is None and find_spec("amp_C") is not None,
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Machine(device=device, packages=tuple(name for name, found in there.items() if found))


def choose_kernels(machine: Machine, pin: Pin = "auto", interpreted: bool = False) -> dict[str, Choice]:
    """For each operation. `interpreted` lets Triton's interpreter stand for a GPU. ValueError if what is pinned cannot be had."""
    choices = {name: _choose(name, machine, pin, interpreted) for name in LADDERS}
    rungs = {choice.rung for choice in choices.values()}
    if (pin == "triton" and "triton" not in rungs) or (pin == "vendor" and not rungs & set(_VENDORS)):
        raise ValueError(f"kernels: {pin} was given, but {choices['lamb'].reason}; use auto or torch")
    return choices


def _choose(operation: str, machine: Machine, pin: Pin, interpreted: bool) -> Choice:
    missing: list[str] = []
    for rung in LADDERS[operation]:
        why_not = _why_not(rung, machine, pin, interpreted)
        if not why_not:
            return Choice(operation=operation, rung=rung, reason="; ".join(missing) or "the highest rung")
        missing.append(f"{rung}: {why_not}")
    raise AssertionError("torch can always be had")


def _why_not(rung: str, machine: Machine, pin: Pin, interpreted: bool) -> str:
    if rung == "torch":
        return ""
    if rung == "cpu":
        return "" if machine.device == "cpu" else "for CPUs"
    if pin not in ("auto", "vendor" if rung in _VENDORS else rung):
        return f"{pin} is pinned"
    if machine.device != "cuda" and not (rung == "triton" and interpreted):
        return "no GPU"
    return "" if rung in machine.packages else "not installed"


def build_operations(choices: Mapping[str, Choice]) -> Operations:
    """The set that a model is built with."""
    return Operations(**{name: choices[name].load() for name in Operations.__dataclass_fields__})


def foreign_apex() -> Path | None:
    """Where a package called apex lies that is not NVIDIA's: PyPI's is a web toolkit. NVIDIA's has optimizers/fused_lamb.py."""
    spec = find_spec("apex")
    folder = Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    return folder if folder and not (folder / "optimizers" / "fused_lamb.py").exists() else None
