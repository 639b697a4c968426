"""Which MPI is used: the machine's own where there is one, else the one that came with pip."""

import ctypes
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

# Open MPI's and MPICH's library by bare name: the loader then finds what the running mpirun, a module or the system put first.
# mpi4py alone would take the pip one even below a cluster's mpirun, and leave its network unused.
_LIBRARIES = ("libmpi.so.40", "libmpi.so.12")


def load_mpi() -> ModuleType:
    """`mpi4py.MPI` on the machine's MPI library; starts MPI in this process."""
    for name in _LIBRARIES:
        if "MPI4PY_LIBMPI" not in os.environ and _loads(name):
            os.environ["MPI4PY_LIBMPI"] = name
    from mpi4py import MPI

    return MPI


def find_mpirun() -> Path | None:
    """The machine's mpirun, else the one that came with pip, else None."""
    ours = Path(sys.prefix) / "bin"
    elsewhere = os.pathsep.join(folder for folder in os.environ.get("PATH", "").split(os.pathsep) if Path(folder) != ours)
    found = shutil.which("mpirun", path=elsewhere) or shutil.which("mpirun", path=str(ours))
    return Path(found) if found else None


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
