"""Every command in the README is run, or at least known to make."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CLUSTER_PAGE = (REPOSITORY / "slurm" / "README.md").read_text(encoding="utf-8")


def commands(page: str, prompt: str) -> list[str]:
    """Lines after the prompt in console blocks; `login$ ` stands before what needs a cluster."""
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [line.removeprefix(prompt) for block in blocks for line in block.splitlines() if line.startswith(prompt)]


COMMANDS = commands(README, "$ ")
SUBMISSIONS = [line for page in (README, CLUSTER_PAGE) for line in commands(page, "login$ ") if line.startswith("remask submit")]
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
    assert run_in(user_folder, command)


def run_in(folder: Path, command: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.dist
@pytest.mark.parametrize("command", SUBMISSIONS)
def test_a_submission_can_be_made(command: str, user_folder: Path) -> None:
    """As far as it goes without a cluster; tests/launcher/cluster submits for real."""
    (user_folder / "corpus").mkdir(exist_ok=True)
    told = run_in(user_folder, f"{command} --dry-run --data.pack.sequence-length 128")
    assert "#SBATCH --gres=gpu:8" in told and '"stage": 1' in told


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
