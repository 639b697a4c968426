"""Every command in the README is run, or at least known to make."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
# Lines after `$ ` in console blocks; `login$ ` stands before what needs a cluster (tests/slurm runs that script).
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
MAKE = [command for command in COMMANDS if command.startswith("make ")]


def test_the_two_commands_come_first() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("command", [*MAKE, "make lint", "make bench", "make clean"])
def test_make_knows_the_target(command: str) -> None:
    subprocess.run([*command.split(), "--dry-run"], cwd=REPOSITORY, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands are run in the README's order in one folder, as a reader would."""
    return tmp_path_factory.mktemp("user")


@pytest.mark.dist
@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in MAKE])
def test_command_runs(command: str, user_folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", command], cwd=user_folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_the_shown_error_is_the_real_one(tmp_path: Path) -> None:
    shown = next(line for line in README.splitlines() if line.startswith("error: "))
    (tmp_path / "my-run.yaml").write_text("model: {sharing: atention}")
    result = subprocess.run(
        [Path(sys.executable).with_name("remask"), "presets", "--preset", "my-run.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.stderr.strip() == shown


def test_the_shown_config_loads(tmp_path: Path) -> None:
    from remask.launcher.config import load

    (shown,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "run.yaml").write_text(shown)
    assert load(str(tmp_path / "run.yaml")).model.sharing == "attention"


def test_every_preset_size_in_the_readme_is_right() -> None:
    from remask.launcher.config import load, preset_names

    rows = " ".join(
        line for line in README.splitlines() if (line.startswith("| ") and "tiny" in line) or "base, -large" in line or "-xxlarge" in line
    )
    for name in preset_names():
        model = load(name).model
        assert f"{model.unique_parameters / 1e6:.1f}" in rows and f"{model.total_parameters / 1e6:.1f}" in rows
