"""Which implementation computes the operations around the matrix products. Packages are looked at, never imported to find out."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The implementation used, and why."""

    name: str
    reason: str
    warning: str = ""


def choose_kernels() -> Kernels:
    """Plain torch is all that is built in so far; a package that only shares Apex's name is pointed out."""
    foreign = foreign_apex()
    warning = f"the package apex in {foreign} is not NVIDIA's and is ignored; pip uninstall apex" if foreign else ""
    return Kernels(name="torch", reason="fused kernels are not built in yet", warning=warning)


def foreign_apex() -> Path | None:
    """Where a package called apex lies that is not NVIDIA's: PyPI's is a web toolkit. NVIDIA's has optimizers/fused_lamb.py."""
    spec = find_spec("apex")
    folder = Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    return folder if folder and not (folder / "optimizers" / "fused_lamb.py").exists() else None
