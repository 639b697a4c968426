"""What a job asks SLURM for."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

# Words that go into a script's #SBATCH lines, where nothing is quoted.
_WORD = re.compile(r"[A-Za-z0-9_.,:+=|&@*\[\]()-]+")
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d(:\d\d)?)?")
_WORDS = ("partition", "account", "qos", "constraint", "memory")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Machines and time."""

    nodes: int = 1
    """Machines that train together; more make a step faster as long as the network keeps up."""
    gpus_per_node: int = 0
    """GPUs a machine; 0 trains on CPUs."""
    ranks_per_node: int | None = None
    """Processes a machine; if not given one a GPU, or one on CPUs."""
    cpus_per_rank: int = 4
    """Cores of each process: its loader threads and, without GPUs, its arithmetic."""
    memory: str | None = None
    """Of a machine, as sbatch --mem takes it: 64G; 0 is all of it."""
    time: str = "24:00:00"
    """Limit of one start; the run saves and is queued again before it, as often as it takes."""
    partition: str | None = None
    """Where to run, if not in the cluster's default."""
    account: str | None = None
    """The account that the hours are charged to."""
    qos: str | None = None
    """Quality of service: its limits and priority, where the cluster has several."""
    constraint: str | None = None
    """Features that the machines must have."""
    warn_seconds: int = 120
    """So long before the limit the ranks are told to save and stop; more than a step and a checkpoint take."""
    attempts: int = 5
    """Starts that end without a new checkpoint, before the job is not queued again."""
    setup: str | None = None
    """A shell file that the job sources first, such as one with `module load` lines and NCCL_SOCKET_IFNAME; if it fails, the job does."""
    container: str | None = None
    """Image to run in: a path or name that the container's program knows."""
    container_program: Literal["apptainer", "pyxis"] = "apptainer"
    """Apptainer (or Singularity), or Enroot by SLURM's Pyxis plugin."""
    mounts: tuple[str, ...] = ()
    """Folders that the container sees, as path or outside:inside."""
    sbatch: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Further options of sbatch, each as one word: --sbatch=--exclude=node7."""

    def __post_init__(self) -> None:
        for name, least in (
            ("nodes", 1),
            ("gpus_per_node", 0),
            ("ranks_per_node", 1),
            ("cpus_per_rank", 1),
            ("warn_seconds", 1),
            ("attempts", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: {value} was given, it must be at least {least}")
        if self.gpus_per_node and self.ranks_on_each > self.gpus_per_node:
            raise ValueError(
                f"ranks_per_node: {self.ranks_per_node} was given with {self.gpus_per_node} GPUs a machine; each rank needs one of its own"
            )
        for name in _WORDS:
            value = getattr(self, name)
            if value is not None and not _WORD.fullmatch(value):
                raise ValueError(f"{name}: {value!r} was given, it must be one word as sbatch takes it")
        if not _TIME.fullmatch(self.time):
            raise ValueError(f"time: {self.time!r} was given, it must be minutes, hours:minutes:seconds or days-hours")
        if self.seconds <= self.warn_seconds:
            raise ValueError(f"time: {self.time} was given, it must be longer than warn_seconds ({self.warn_seconds})")
        for mount in self.mounts:
            if "," in mount or mount.count(":") > 1:
                raise ValueError(f"mounts: {mount!r} was given, it must be a path or outside:inside, without commas")

    @property
    def ranks_on_each(self) -> int:
        return self.ranks_per_node or self.gpus_per_node or 1

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_on_each

    @property
    def seconds(self) -> int:
        """SLURM reads M, M:S, H:M:S, D-H, D-H:M and D-H:M:S."""
        days, dash, clock = self.time.rpartition("-")
        parts = [int(part) for part in clock.split(":")]
        units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
        return 86400 * int(days or 0) + sum(part * unit for part, unit in zip(parts, units, strict=False))
