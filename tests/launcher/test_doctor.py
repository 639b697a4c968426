"""The doctor's rows, and that it notices what is broken."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from remask.launcher import doctor
from remask.launcher.checks import Check, machine, parallel, software
from remask.launcher.checks.bounded import run_bounded

Remask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.dist
def test_doctor_finds_that_training_can_run_here(remask: Remask) -> None:
    result = remask("doctor", "--json")
    report = json.loads(result.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert result.returncode == 0 and report["can_train"] is True
    assert list(checks) == list(doctor._checks())
    assert checks["mpi"]["found"].startswith("sum 3 of 2 ranks on ")
    assert checks["deepspeed"]["found"] == "sum 3 of 2 ranks on gloo"
    assert "torch 2.13.0" in checks["packages"]["found"]
    assert "BPE: gigatoken" in checks["tokenizers"]["found"] and "WordPiece: tokie" in checks["tokenizers"]["found"]
    for check in checks.values():
        assert check["remedy"] or check["status"] in ("ok", "note")


@pytest.mark.dist
def test_a_machine_where_ranks_cannot_meet_is_told_with_exit_code_1(remask: Remask) -> None:
    result = remask("doctor", GLOO_SOCKET_IFNAME="no-such-device")
    assert result.returncode == 1
    assert "training cannot run here" in result.stdout
    failing = next(line for line in result.stdout.splitlines() if line.startswith("fail"))
    assert "deepspeed" in failing and "no-such-device" in failing


@pytest.mark.dist
def test_mpi_without_its_library_is_a_warning_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPI4PY_LIBMPI", "libmissing.so")
    check = parallel.check_mpi()
    assert check.status == "warn" and "MPI4PY_LIBMPI" in check.remedy


@pytest.mark.dist
def test_mpi_from_pip_works_where_the_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "find_mpirun", lambda: Path(sys.prefix) / "bin" / "mpirun")
    check = parallel.check_mpi()
    assert check.status == "ok" and "Open MPI v5" in check.found


def test_a_lock_that_nobody_holds_is_found_and_a_held_one_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert parallel.check_extension_locks().status == "ok"
    lock = tmp_path / "py311_cpu" / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w"):
        assert parallel.check_extension_locks().status == "ok"
    stale = parallel.check_extension_locks()
    assert stale.status == "warn" and f"rm {lock}" in stale.remedy


def test_missing_and_wrong_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "requires", lambda _: ["torch==1.0", "no-such-package>=2", 'never; extra == "gpu"'])
    check = software.check_packages()
    assert check.status == "fail"
    assert "torch==1.0 is wanted, 2.13.0" in check.found and "no-such-package>=2 is missing" in check.found
    assert "never" not in check.found


def test_missing_compilers_slurm_and_small_limits_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    compilers = machine.check_compilers()
    assert compilers.status == "warn" and "missing: gcc, g++" in compilers.found
    assert parallel.check_slurm().status == "note"
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert machine.check_open_files().remedy.startswith("ulimit -n 4096")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**8))
    assert [machine.check_disk().status, machine.check_shared_memory().status] == ["warn", "warn"]


def test_a_foreign_apex_is_pointed_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    check = software.check_kernels()
    assert check.status == "warn" and f"{tmp_path}/apex is not NVIDIA's" in check.remedy


def test_a_check_that_breaks_is_a_failing_row() -> None:
    for name, status in (("deepspeed", "fail"), ("disk", "warn")):
        row = doctor._run(name, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        assert (row.name, row.status) == (name, status) and "ZeroDivisionError" in row.found


def test_a_row_that_is_not_ok_must_carry_a_remedy() -> None:
    with pytest.raises(ValueError, match="must say what to do"):
        Check(name="disk", status="fail", found="full")


def test_locks_are_looked_for_where_torch_builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert str(tmp_path) in parallel.check_extension_locks().found


@pytest.mark.dist
def test_what_lies_in_the_working_folder_does_not_disturb(remask: Remask, tmp_path: Path) -> None:
    (tmp_path / "remask").mkdir()
    (tmp_path / "remask" / "__init__.py").write_text("raise RuntimeError('hijacked')")
    (tmp_path / "json.py").write_text("raise RuntimeError('hijacked')")
    result = remask("doctor")
    assert result.returncode == 0 and "hijacked" not in result.stdout + result.stderr


def test_probes_do_not_join_the_job_that_they_run_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "7")
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("SLURM_CONF", "/here/slurm.conf")
    _, output = run_bounded(["env"], seconds=10)
    assert "SLURM_PROCID" not in output and "\nRANK=" not in output and "SLURM_CONF=/here/slurm.conf" in output


def test_an_interrupt_ends_the_bounded_processes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    def interrupted(process: "subprocess.Popen[str]", timeout: float | None = None) -> None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_bounded(["sleep", "60"], seconds=30, environments=[{}, {}])
    assert started[0].wait(timeout=10) == -9


def test_bounded_processes_end_with_their_children() -> None:
    ended_well, output = run_bounded(["sh", "-c", "echo before; sleep 60 & echo child $!; wait"], seconds=1)
    assert not ended_well and "before" in output and "no end within 1 s" in output
    child = output.split("child ")[1].split()[0]
    assert not Path(f"/proc/{child}/exe").exists() or "sleep" not in Path(f"/proc/{child}/cmdline").read_text()
