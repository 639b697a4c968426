"""Batch scripts: what is in them, and that nothing in them is executed that was only named."""

import subprocess
from importlib import resources as packaged
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.launcher.cluster.resources import Resources
from remask.launcher.cluster.script import BY_HAND, Job, quoted, render

NASTY = [
    "plain",
    "two words",
    "it's",
    'a "b"',
    "$(touch gone)",
    "`touch gone`",
    "a\nb",
    "a\r\nb",
    "\\n",
    "-rf",
    "*",
    "~",
    "é 漢 🙂",
    "a\tb",
    "!x",
]
TEMPLATES = sorted(entry.name for entry in packaged.files("remask.slurm").iterdir() if entry.name.endswith(".j2"))


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def printed_by(script: str) -> bytes:
    return subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout


@pytest.mark.parametrize("text", NASTY)
def test_a_quoted_text_reaches_a_program_as_it_is(text: str) -> None:
    assert printed_by(f"printf %s {quoted(text)}") == text.encode()


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=1, max_size=3))
def test_any_texts_stay_words_of_their_own(texts: list[str]) -> None:
    words = quoted(tuple(texts))
    assert printed_by(f"printf '%s\\0' {words}") == "".join(f"{text}\0" for text in texts).encode()
    assert not {"\n", "\r"} & set(words), "sbatch reads scripts line by line"


@pytest.mark.parametrize("name", BY_HAND)
def test_the_scripts_for_editing_are_what_the_templates_give(name: str) -> None:
    kept = packaged.files("remask.slurm") / f"{name}.sbatch"
    assert kept.read_text(encoding="utf-8") == render(BY_HAND[name]), f"write render(BY_HAND[{name!r}]) to slurm/{name}.sbatch"


@pytest.mark.parametrize("text", NASTY)
def test_every_template_gives_a_script_that_bash_reads_and_that_acts_on_no_name(text: str, tmp_path: Path) -> None:
    asked = Resources(container=text, mounts=(text,), setup=text)
    for template in TEMPLATES:
        if template == "job.sbatch.j2":
            continue
        script = render(Job(template=template, remask=text, run=text, mpirun=text, args=((text, text),), resources=asked))
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert checked.returncode == 0 and not checked.stderr, checked.stderr
        begin, end = script.index("REMASK="), script.index("set -o pipefail")
        values = subprocess.run(
            ["bash", "-c", script[begin:end] + 'printf %s "${REMASK[0]}"'], cwd=tmp_path, capture_output=True, check=True
        )
        assert values.stdout == text.encode() and not list(tmp_path.iterdir())
        assert "\r" not in script


def test_the_job_asks_for_what_was_given() -> None:
    asked = Resources(
        nodes=8, gpus_per_node=8, cpus_per_rank=16, time="1-12", partition="gpu", account="a1", qos="high", memory="0", constraint="a100"
    )
    lines = directives(render(Job(template="pretrain.sbatch.j2", resources=asked, tasks=4)))
    assert lines == [
        "--nodes=8", "--ntasks-per-node=8", "--cpus-per-task=16", "--gres=gpu:8", "--time=1-12", "--mem=0", "--partition=gpu",
        "--account=a1", "--qos=high", "--constraint=a100", "--open-mode=append", "--requeue", "--signal=USR1@120", "--array=1-4",
    ]  # fmt: skip
    assert asked.ranks == 64 and asked.seconds == 36 * 3600


@pytest.mark.parametrize(
    ("time", "seconds"), [("10", 600), ("10:30", 630), ("1:00:30", 3630), ("2-3", 183600), ("1-0:30", 88200), ("1-0:00:30", 86430)]
)
def test_times_are_read_as_slurm_reads_them(time: str, seconds: int) -> None:
    assert Resources(time=time).seconds == seconds


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nodes": 0}, "nodes: 0 was given, it must be at least 1"),
        ({"partition": "a b"}, "partition: 'a b' was given"),
        ({"account": "x\n#SBATCH --uid=0"}, "account: "),
        ({"time": "soon"}, "time: 'soon' was given"),
        ({"time": "1"}, "time: 1 was given, it must be longer than warn_seconds"),
        ({"mounts": ("a,b",)}, "mounts: 'a,b' was given"),
    ],
)
def test_what_sbatch_would_not_take_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match="was given") as error:
        Resources(**wrong)  # type: ignore[arg-type]
    assert str(error.value).startswith(said)


def test_containers_wrap_the_command() -> None:
    apptainer = render(
        Job(template="pretrain.sbatch.j2", resources=Resources(gpus_per_node=1, container="a b.sif", mounts=("/data", "/x:/y")))
    )
    assert "REMASK=(apptainer exec --nv --bind /data --bind /x:/y 'a b.sif' \"${REMASK[@]}\")" in apptainer
    pyxis = render(
        Job(
            template="export.sbatch.j2",
            args=(("o",),),
            resources=Resources(container="i:1", container_program="pyxis", mounts=("/a", "/b c")),
        )
    )
    assert "SRUN+=(--container-image=i:1 --container-mounts='/a,/b c')" in pyxis and "apptainer" not in pyxis


def test_a_users_template_may_extend_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.j2").write_text(
        '{% extends "pretrain.sbatch.j2" %}\n{% block options %}\n{{ super() }}#SBATCH --mail-type=END\n{% endblock %}\n'
    )
    script = render(Job(template=str(tmp_path / "mine.j2")))
    assert directives(script)[-1] == "--mail-type=END" and "--requeue" in directives(script) and "scontrol requeue" in script


def test_a_users_template_may_bear_the_name_of_ours(tmp_path: Path) -> None:
    mine = tmp_path / "pretrain.sbatch.j2"
    mine.write_text('{% extends "pretrain.sbatch.j2" %}\n{% block variables %}\n{{ super() }}MINE=1\n{% endblock %}\n')
    assert "MINE=1" in render(Job(template=str(mine)))


def test_prep_in_a_pyxis_container_is_started_by_srun() -> None:
    """mpirun knows nothing of such containers: prep would run outside."""
    asked = Resources(container="i:1", container_program="pyxis", mounts=("/a",), nodes=2, ranks_per_node=4)
    script = render(Job(template="prep.sbatch.j2", resources=asked, args=(("c.jsonl", "--out", "full"), ("c.jsonl", "--out", "short"))))
    stand_in = "srun() { printf '<%s>' \"$@\"; }\nmpirun() { echo outside; }\nSLURM_CPUS_PER_TASK=4\n"
    options = "<--cpus-per-task=4><--container-image=i:1><--container-mounts=/a><--mpi=pmix><--kill-on-bad-exit=1>"
    runs = [f"{options}<remask><prep><c.jsonl><--out><{out}>" for out in ("full", "short")]
    assert printed_by(stand_in + script).decode() == "".join(runs)


@pytest.mark.parametrize("setup", ["false", "no-such-file"])
def test_a_setup_that_fails_ends_the_job(setup: str, tmp_path: Path) -> None:
    file = tmp_path / "env.sh"
    if setup == "false":
        file.write_text("false\n")
    script = render(Job(template="export.sbatch.j2", resources=Resources(setup=str(file)), args=(("exported",),)))
    ended = subprocess.run(["bash", "-c", f"srun() {{ echo ran; }}\n{script}"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and f"{file}: its last command failed" in ended.stderr and not ended.stdout
