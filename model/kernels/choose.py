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
_OLDEST = 80

# Operation -> rung -> the function or class; the highest rung first. The last one, torch's, can always be had.
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
        "transformer-engine": "remask.model.kernels.vendors:adamw_by_transformer_engine",
        "apex": "remask.model.kernels.vendors:adamw_by_apex",
        "torch-fused": "remask.model.optimizers:adamw",
    },
    "lamb": {
        "triton": "remask.model.kernels.optimizers:Lamb",
        "apex": "remask.model.kernels.vendors:lamb_by_apex",
        "torch-foreach": "remask.model.optimizers:Lamb",
    },
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the choice depends on."""

    device: str
    """cuda or cpu."""
    architecture: int
    """80 for sm_80; 0 for what is not NVIDIA's."""
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
        "apex": foreign_apex() is None and all(find_spec(name) is not None for name in ("apex", "amp_C", "fused_layer_norm_cuda")),
    }
    packages = tuple(name for name, found in there.items() if found)
    if not torch.cuda.is_available():
        return Machine(device="cpu", architecture=0, packages=packages)
    major, minor = torch.cuda.get_device_capability()
    return Machine(device="cuda", architecture=10 * major + minor if torch.version.cuda else 0, packages=packages)


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
    if rung.startswith("torch"):
        return ""
    if pin != "auto" and pin != ("vendor" if rung in _VENDORS else rung):
        return f"{pin} is pinned"
    if rung == "cpu":
        return "" if machine.device == "cpu" else "for CPUs"
    if rung == "triton" and interpreted:
        return ""
    if machine.device != "cuda":
        return "no GPU"
    if machine.architecture < _OLDEST:
        return f"made for sm_{_OLDEST} and newer"
    return "" if rung in machine.packages else "not installed"


def build_operations(choices: Mapping[str, Choice]) -> Operations:
    """The set that a model is built with."""
    return Operations(**{name: choices[name].load() for name in Operations.__dataclass_fields__})


def foreign_apex() -> Path | None:
    """Where a package called apex lies that is not NVIDIA's: PyPI's is a web toolkit. NVIDIA's has optimizers/fused_lamb.py."""
    spec = find_spec("apex")
    if spec is None:
        return None
    found = Path(next(iter(spec.submodule_search_locations or []), spec.origin or "apex"))
    return None if (found / "optimizers" / "fused_lamb.py").exists() else found
