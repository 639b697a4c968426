"""What a run's folder holds beside checkpoints and metrics: how it was started, and how it ended.

config.yaml        the resolved config
ds_config.json     what DeepSpeed got
environment.json   versions, machines, the command; one entry a start
data.json          hashes of the shard sets' manifests
preflight.json     what was checked and measured before the first step
train.log          what rank 0 said
job/               of remask submit: scripts, numbers and output of the run's SLURM jobs
beats/             each rank's last sign of life
end.json           how the last start ended: finished or stopped, why and where
"""

import json
import os
import platform
import socket
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from remask.data_prep.data import DataConfig
from remask.data_prep.errors import InputError
from remask.data_prep.files import hash_of, written_whole
from remask.data_prep.manifest import NAME as MANIFEST
from remask.launcher.config import RunConfig, dump
from remask.launcher.decode import encode

_PACKAGES = ("remask", "torch", "deepspeed", "numpy", "triton", "transformers")
_END, _DATA, _STARTS = "end.json", "data.json", "environment.json"
# Environment variables that decide how the ranks talk and compute.
_VARIABLES = ("CUDA_", "DS_", "FI_", "GLOO_", "NCCL_", "OMP_", "TORCH_", "UCX_")
# What may differ between two starts of one run: how it is computed, saved and told, and what is done about incidents.
_FREE = ("engine", "guard", "checkpoint", "metrics")


def hash_data(data: DataConfig) -> dict[str, str]:
    """Hashes of the sets' manifests, which hold the hashes of all shards; by their use, for folders may be moved."""
    found = {}
    for use, folders in (("sets", data.sets), ("short_sets", data.short_sets)):
        for number, folder in enumerate(folders):
            try:
                found[f"{use}/{number}"] = hash_of(Path(folder) / MANIFEST)
            except OSError as error:
                raise InputError(f"{folder}: no shard set that remask prep has finished ({error.strerror}); give its folder") from error
    return found


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Keys whose values make another run of it; the sets' folders do not count, their content does."""
    return [
        f"{path}: {mine!r} here, {other!r} there"
        for path, mine, other in _unequal("", ours, theirs)
        if path.split(".")[0] not in _FREE and path not in ("data.sets", "data.short_sets")
    ]


def _unequal(path: str, ours: Any, theirs: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = {**ours, **theirs}
        return [found for key in keys for found in _unequal(f"{path}.{key}" if path else key, ours.get(key), theirs.get(key))]
    return [] if ours == theirs else [(path, ours, theirs)]


def plain(config: RunConfig) -> dict[str, Any]:
    """The config as it is after a round trip through JSON, for comparing."""
    made: dict[str, Any] = json.loads(json.dumps(encode(config)))
    return made


def package_versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def describe_environment(hosts: list[str]) -> dict[str, Any]:
    import torch

    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "python": platform.python_version(),
        "versions": package_versions(),
        "machine": platform.platform(),
        "ranks": len(hosts),
        "hosts": sorted(set(hosts)),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or [f"CPU, {torch.get_num_threads()} threads"],
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)},
    }


def write_start(run: Path, config: RunConfig, ds_config: dict[str, Any], hosts: list[str]) -> None:
    """On rank 0, before the first step."""
    _write(run / "config.yaml", dump(config))
    _write(run / "ds_config.json", json.dumps(ds_config, indent=2) + "\n")
    _write(run / _STARTS, json.dumps([*read_starts(run), describe_environment(hosts)], indent=1) + "\n")
    _write(run / _DATA, json.dumps(hash_data(config.data), indent=1) + "\n")
    (run / _END).unlink(missing_ok=True)


def read_data(run: Path) -> dict[str, str]:
    """As `hash_data` told it when the run was started last."""
    found: dict[str, str] = _read_json(run / _DATA, {})
    return found


def read_starts(run: Path) -> list[dict[str, Any]]:
    """As `describe_environment` told them, one a start."""
    found: list[dict[str, Any]] = _read_json(run / _STARTS, [])
    return found


def read_end(run: Path) -> dict[str, Any] | None:
    """How the last start ended; None while it runs, or if it was killed."""
    found: dict[str, Any] | None = _read_json(run / _END, None)
    return found


def write_end(run: Path, end: dict[str, Any]) -> None:
    _write(run / _END, json.dumps(end, indent=1) + "\n")


def host_name() -> str:
    return socket.gethostname()


def _read_json(file: Path, otherwise: Any) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return otherwise


def _write(file: Path, text: str) -> None:
    with written_whole(file) as stream:
        stream.write(text.encode())
