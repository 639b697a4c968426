"""A job's batch script: one pure function from a dataclass and a template in slurm/."""

import shlex
from dataclasses import dataclass, field
from importlib import resources as packaged
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound, TemplateSyntaxError

from remask.launcher.cluster.resources import Resources
from remask.launcher.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a template may use. Texts come as they were given: templates pass them through `quoted`."""

    template: str
    """A template of slurm/, or the path of another one; it may extend those."""
    resources: Resources = field(default_factory=Resources)
    remask: str = "remask"
    """The command as the machines see it."""
    mpirun: str = "mpirun"
    run: str = "run"
    """The run's folder; of a sweep, the folder of its runs."""
    args: tuple[tuple[str, ...], ...] = ()
    """Of the verb; prep may have several sets to make."""
    tasks: int = 0
    """Runs of a sweep, each a task of a job array."""


def render(job: Job) -> str:
    """The script. Nothing that was given is ever executed: texts stand in the script quoted, as values of variables and arguments."""
    ours = FileSystemLoader(str(packaged.files("remask.slurm")))
    theirs = FileSystemLoader(str(Path(job.template).parent))
    environment = Environment(
        loader=ChoiceLoader([ours, theirs]), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (a shell script; `quoted` is its escaping)
    )  # fmt: skip
    environment.filters["quoted"] = quoted
    try:
        if job.template in ours.list_templates():
            template = environment.get_template(job.template)
        else:  # it may bear the name of one of ours that it extends
            template = environment.from_string(Path(job.template).read_text(encoding="utf-8"))
        return template.render(job=job, ask=job.resources)
    except (TemplateError, OSError, ValueError, TypeError, ArithmeticError) as error:
        line = f", line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
        raise UserError(f"--template: {job.template}{line}: {_reason(error)}; begin with one of slurm/ and change a block") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    if isinstance(error, TemplateNotFound):
        return f"names a template that is not there ({error})"
    return f"cannot be used ({error})"


def quoted(value: str | tuple[str, ...]) -> str:
    """One word of bash that means the text, or one for each text."""
    if isinstance(value, tuple):
        return " ".join(map(quoted, value))
    if value.isprintable():
        return shlex.quote(value)
    # sbatch refuses scripts with some control characters, so that none is written as it is.
    escaped = (f"\\x{ord(char):02x}" if ord(char) < 128 and (not char.isprintable() or char in "'\\") else char for char in value)
    return "$'" + "".join(escaped) + "'"


# The scripts in slurm/ for people who edit by hand; tests hold them equal to what the templates give.
_EIGHT_GPUS = Resources(nodes=2, gpus_per_node=8, cpus_per_rank=8)
BY_HAND = {
    "pretrain": Job(template="pretrain.sbatch.j2", resources=_EIGHT_GPUS, args=(("--preset", "albert-base", "--data", "shards"),)),
    "prep": Job(
        template="prep.sbatch.j2",
        resources=Resources(nodes=2, ranks_per_node=16, cpus_per_rank=1),
        args=(("corpus.jsonl", "--tokenizer", "tokenizer.json", "--out", "shards"),),
    ),
    "throughput": Job(  # 2 stages x 2 micro-batches x 3 numbers of ranks
        template="throughput.sbatch.j2",
        resources=Resources(nodes=2, gpus_per_node=8, cpus_per_rank=8, time="1:00:00"),
        run="throughput",
        args=(
            (
                *("--preset", "bert-large", "--shards", "shards", "--zero", "1", "2", "--micro-batch-tokens", "16384", "32768"),
                *("--world", "1", "8", "16"),
            ),
        ),
        tasks=12,
    ),
    "benchmark": Job(template="benchmark.sbatch.j2", resources=Resources(time="1:00:00"), args=(("step", "--json", "step.json"),)),
}
