"""The wheel and the sdist: what a user gets who does not work in a clone."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import REPOSITORY

FOLDERS = ("benchmarks", "data_prep", "ds_configs", "launcher", "model", "slurm")
READ_THROUGH_WHEEL = """
from importlib import resources
import remask.launcher.engine as engine
from remask.launcher.config import load, preset_names
print(engine.__file__)
print(engine.read_ds_config(engine.EngineConfig(zero_stage=3))["zero_optimization"]["stage"])
print(resources.files("remask.slurm").joinpath("doctor.sbatch").read_text(encoding="utf-8").splitlines()[0])
print(len(preset_names()), load("albert-xlarge").model.hidden)
"""


def build(kind: str, source: Path, out: Path) -> Path:
    script = f"from setuptools.build_meta import build_{kind}; print(build_{kind}({str(out)!r}))"
    result = subprocess.run([sys.executable, "-c", script], cwd=source, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return out / result.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is versioned, so that building leaves nothing behind in the repository."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    for name in FOLDERS:
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


def contents(wheel: Path) -> list[str]:
    return sorted(name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info" not in name)


def test_wheel_holds_each_file_of_the_folders_once(wheel: Path) -> None:
    in_tree = sorted(
        f"remask/{file.relative_to(REPOSITORY).as_posix()}"
        for folder in FOLDERS
        for file in (REPOSITORY / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix not in (".md", ".png")
    )
    assert len(in_tree) > 40
    assert contents(wheel) == in_tree


def test_wheel_in_an_empty_target_runs_and_reads_its_data(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, timeout=200)
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def run(*command: str) -> list[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()

    assert run(sys.executable, str(target / "bin" / "remask"), "--version") == ["remask 0.1.0"]
    where, stage, first_line, presets = run(sys.executable, "-c", READ_THROUGH_WHEEL)
    assert where.startswith(str(target)), "the editable install answered instead of the wheel"
    assert (stage, first_line, presets) == ("3", "#!/bin/bash", "12 2048")


def test_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", source, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path)
    assert contents(again) == contents(wheel)


def test_apex_is_never_listed_and_torch_is_pinned() -> None:
    text = (REPOSITORY / "setup.py").read_text()
    assert '"torch==2.13.0"' in text
    assert "apex" not in text.lower()
