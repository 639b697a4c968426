"""The command: what it says, what it exits with, and what it does not import."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import REMASK, REPOSITORY

from remask.launcher import cli
from remask.launcher.config import load

Remask = Callable[..., subprocess.CompletedProcess[str]]

HEAVY = ("torch", "deepspeed", "transformers", "numba", "mpi4py")
IMPORTED = """
import sys
from remask.launcher import cli
assert cli.main(sys.argv[1:]) == 0
print("imported:", *sorted(set(sys.modules) & {*%r}), file=sys.stderr)
"""


@pytest.mark.parametrize("verb", [None, *cli.VERBS])
def test_help_teaches_and_imports_nothing_heavy(verb: str | None, tmp_path: Path) -> None:
    command = [sys.executable, "-c", IMPORTED % (HEAVY,), *([verb] if verb else []), "--help"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == "imported:\n"
    assert "usage: remask" in result.stdout
    assert "example" in result.stdout.lower()
    assert f"remask {verb or 'doctor'}" in result.stdout


def test_help_gives_every_option_a_consequence(remask: Remask) -> None:
    for verb in cli.VERBS:
        page = re.sub(r"[│╭╰─╮╯]", "", remask(verb, "--help", COLUMNS="90").stdout)  # one column of options
        options = re.split(r"\n +(?=--|[A-Z]+  )", page)[1:]
        assert options
        for option in options:
            name, *told = re.sub(r"\((default|required).*", "", option, flags=re.DOTALL).split("  ")
            assert len(" ".join(told).split()) >= 3, f"{verb}: {name} does not say what it changes"


def test_only_verbs_that_exist_are_listed(remask: Remask) -> None:
    page = remask("--help").stdout
    listed = page.split("verbs:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(cli.VERBS)


def test_no_arguments_show_the_help(remask: Remask) -> None:
    assert remask().stdout == remask("--help").stdout


def test_version(remask: Remask) -> None:
    assert remask("--version").stdout == "remask 0.1.0\n"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["dmo"], "remask: 'dmo' is no verb; did you mean demo?"),
        (["bench", "preb"], "remask bench: 'preb' is no benchmark; did you mean prep?"),
        (["bench", "startup", "--bogus"], "remask bench startup: --bogus: unknown option"),
        (["bench", "startup", "--repeats", "0"], "--repeats: 0 was given, it must be at least 1"),
        (["bench", "startup", "--json", "no/where.json"], "--json: the folder of no/where.json does not exist"),
        (["bench", "throughput", "--zero", "4"], "--zero"),
        (["bench", "throughput", "--steps", "0"], "remask bench throughput: --steps: 0 was given, it must be at least 1"),
        (["bench", "throughput", "--cell", "99"], "remask bench throughput: --cell: 99 was given, the sweep has cells 1 to 8"),
        (["bench", "throughput", "--merge", "no.json"], "--merge: no.json: is no record that remask bench throughput has written"),
        (["bench", "throughput", "--json", "no/where.json"], "--json: the folder of no/where.json does not exist"),
        (["bench", "all", "--only", "lader"], "remask bench all: --only: 'lader' is no benchmark; did you mean loader?"),
        (["bench", "all", "--page", "no/where.md"], "remask bench all: --page: the folder of no/where.md does not exist"),
        (["demo", "--ou", "x"], "remask demo: --ou: unknown option; did you mean --out?"),
        (["demo", "--workers", "two"], "--workers: invalid literal for int() with base 10: 'two'"),
        (["demo", "--workers", "0"], "--workers: 0 was given, it must be from 1 to 1024"),
        (["demo", "--out"], "--out: the value is missing"),
        (["prep", "corpus.jsonl", "--out", "x"], "the corpus and --tokenizer are needed"),
        (["demo", "--dry-run", "--model.layerz", "3"], "command line: model.layerz: unknown key; did you mean layers?"),
        (["demo", "--dry-run", "--model.layers", "x"], "command line: model.layers: 'x' was given, it must be a whole number"),
        (["demo", "--dry-run", "--model.layers"], "command line: model.layers: the value is missing; write --model.layers VALUE"),
        (["demo", "--dry-run", "--model.heads=7"], "command line: model.heads: 7 was given, it must divide hidden"),
        (["demo", "--dry-run", "--preset", "bert-tini"], "preset: 'bert-tini' is no preset; did you mean bert-tiny?"),
        (["demo", "--out", "/proc/none"], "/proc/none: cannot be written (No such file or directory); choose another folder with --out"),
        (["demo", "--workers", "99999999999999999999"], "it must be from 1 to 1024"),
        (["demo", "--dry-run", "--model.layers", "3", "--model.layers.x", "3"], "model.layers.x: model.layers was given a value before"),
        (["demo", "--dry-run", "--model.layers.x", "3", "--model.layers", "3"], "model.layers: was given a value and keys below it"),
        (["demo", "--dry-run", "--model.layers="], "command line: model.layers: the value is missing"),
        (["demo", "--dry-run", "--model.layers", "9999999999"], "model.layers: 9999999999 was given, it must be from 1 to 10000"),
        (["demo", "--preset", "--dry-run"], "--preset: the value is missing; write --preset VALUE"),
        (["presets", "--preset", "bert-base", "--save", "run.txt"], "--save: 'run.txt' was given, the name must end in .yaml"),
        (["presets", "--model.layers", "3"], "--save and overrides need --preset NAME"),
        (["presets", "--preset", "no.yaml"], "no.yaml: cannot be read (No such file or directory)"),
        (["doctor", "now"], "remask doctor: now: unknown option; allowed are --json"),
        (["presets", "--preset", "bert-base", "--model.layers", "3\n\x1b[31m4"], r"'3\n\x1b[31m4' was given"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(remask: Remask, args: list[str], sentence: str) -> None:
    result = remask(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and sentence in line


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setitem(cli.VERBS, "demo", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["demo"])


def test_presets_table_has_a_row_for_each_preset(remask: Remask) -> None:
    header, *rows = remask("presets").stdout.splitlines()
    assert header.split() == ["name", "family", "layers", "hidden", "embedding", "sharing", "unique", "total", "batch", "optimizer"]
    table = {row.split()[0]: row.split()[1:] for row in rows}
    assert len(table) == 12
    assert table["albert-xlarge"] == ["albert", "24", "2048", "128", "all", "58.7M", "1,217.0M", "4096", "lamb"]


def test_resolved_config_is_printed_saved_and_loads_back(remask: Remask, tmp_path: Path) -> None:
    args = ["--preset", "albert-base", "--model.layers", "24", "--optimizer.betas", "0.9", "0.98", "--optimizer.clip-norm", "None"]
    result = remask("presets", *args, "--save", "run.yaml")
    assert result.returncode == 0
    assert (tmp_path / "run.yaml").read_text() == result.stdout
    run = load(str(tmp_path / "run.yaml"))
    assert (run.model.layers, run.optimizer.betas, run.optimizer.clip_norm) == (24, (0.9, 0.98), None)
    again = remask("presets", *args, "--save", "run.yaml")
    assert again.returncode == 2 and "exists and is not overwritten" in again.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [["presets"], ["--help"], ["demo", "--help"]])
def test_a_reader_that_has_left_is_no_error(args: list[str], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    result = subprocess.run([REMASK, *args], env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")


def test_of_a_repeated_option_the_last_counts(remask: Remask) -> None:
    for args in (["--preset", "bert-tiny", "--preset", "roberta-tiny"], ["--preset=bert-tiny", "--preset=roberta-tiny"]):
        shown = remask("presets", *args, "--model.layers", "3", "--model.layers=2").stdout
        assert "family: roberta" in shown and "layers: 2" in shown


def test_help_is_shown_whatever_else_is_wrong(remask: Remask) -> None:
    assert remask("demo", "--help", "--preset", "nope", "--model.layers", "x").returncode == 0


def test_a_list_can_be_given_both_ways(remask: Remask) -> None:
    spaced = remask("presets", "--preset", "bert-base", "--optimizer.betas", "0.8", "0.9").stdout
    assert spaced == remask("presets", "--preset", "bert-base", "--optimizer.betas", "[0.8, 0.9]").stdout
    assert "- 0.8\n  - 0.9" in spaced


def test_a_full_disk_behind_the_output_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([REMASK, "presets"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (2, "error: the output: cannot be used (No space left on device)\n")


@pytest.mark.parametrize(("sent", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")])
def test_a_signal_ends_the_demo_and_its_workers(tmp_path: Path, sent: signal.Signals, code: int, said: str) -> None:
    process = subprocess.Popen(
        [REMASK, "demo", "--out", "run"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs inherit it as ignored
    )  # fmt: skip
    parent = psutil.Process(process.pid)
    wait_until(lambda: len(parent.children(recursive=True)) >= 3)
    workers = parent.children(recursive=True)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors.splitlines()[-1] == f"error: {said}" and "Traceback" not in errors
    assert not psutil.wait_procs(workers, timeout=20)[1]
    assert not (tmp_path / "run" / "corpus.jsonl").exists() and not list((tmp_path / "run").glob("*.partial"))


def test_workers_are_killed_with_a_killed_demo(tmp_path: Path) -> None:
    process = subprocess.Popen([REMASK, "demo", "--out", "run"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    parent = psutil.Process(process.pid)
    wait_until(lambda: sum("spawn_main" in " ".join(child.cmdline()) for child in parent.children(recursive=True)) >= 2)
    time.sleep(1)  # a worker that is still starting has not asked to be killed with its parent
    workers = [child for child in parent.children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]
    process.kill()
    process.wait()
    assert not psutil.wait_procs(workers, timeout=20)[1]


def wait_until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_remask_is_installed_from_this_tree() -> None:
    assert Path(cli.__file__).resolve() == REPOSITORY / "launcher" / "cli.py"
