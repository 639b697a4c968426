"""`remask doctor`: can this machine train, and with what?"""

import json
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from remask.launcher.checks import Check
from remask.launcher.options import parse

log = logging.getLogger(__name__)

# What training cannot do without.
_NEEDED = ("python", "packages", "accelerator", "deepspeed")


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Look at this machine and tell whether training can run here, and with what.

    Starts a real MPI job and a real DeepSpeed all-reduce of two ranks, each bounded in time. Every row that is not ok says
    what to do. Exit code 0 if training can run here, 1 if not.

    Examples:
      remask doctor
      srun --nodes 4 --ntasks-per-node 1 remask doctor --json
    """

    json: bool = False
    """Print JSON for scripts: can_train, and checks, each with name, status, found and remedy."""


def main(args: Sequence[str]) -> int:
    """tell whether training can run here, and with what"""
    options = parse(DoctorOptions, args, "doctor")
    checks = [_run(name, check) for name, check in _checks().items()]
    can_train = all(check.status != "fail" for check in checks)
    if options.json:
        print(json.dumps({"can_train": can_train, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        for check in checks:
            print(f"{check.status:<5} {check.name:<16} {check.found}")
            if check.remedy:
                print(f"{'':<22} -> {check.remedy}")
        print(f"\ntraining can{'' if can_train else 'not'} run here")
    return 0 if can_train else 1


def _run(name: str, check: Callable[[], Check]) -> Check:
    """The check's row; a check that breaks is a row too, because the others still tell something."""
    log.info("looking at %s", name)
    try:
        return check()
    except Exception as error:
        log.error("%s", traceback.format_exc())
        found = f"the check broke: {type(error).__name__}: {error}"
        return Check(
            name=name, status="fail" if name in _NEEDED else "warn", found=found, remedy="see the traceback above; reinstall, or report it"
        )


def _checks() -> dict[str, Callable[[], Check]]:
    from remask.launcher.checks import machine, parallel, software  # here, because --help must not wait for them

    return {
        "python": software.check_python,
        "packages": software.check_packages,
        "accelerator": machine.check_accelerator,
        "compilers": machine.check_compilers,
        "mpi": parallel.check_mpi,
        "deepspeed": parallel.check_deepspeed,
        "extension locks": parallel.check_extension_locks,
        "slurm": parallel.check_slurm,
        "disk": machine.check_disk,
        "shared memory": machine.check_shared_memory,
        "open files": machine.check_open_files,
        "kernels": software.check_kernels,
        "tokenizers": software.check_tokenizer_engines,
    }
