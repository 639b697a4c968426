"""`remask submit`: a run as a SLURM job, or as a chain of jobs from raw text to the exported model."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from remask.data_prep.mpi import find_mpirun
from remask.launcher.cluster import commands
from remask.launcher.cluster.folder import Submitted, job_folder, read, record, write
from remask.launcher.cluster.resources import Resources
from remask.launcher.cluster.script import Job, render
from remask.launcher.config import RunConfig, dump, load
from remask.launcher.engine import fill_ds_config
from remask.launcher.errors import UserError, wrong_option
from remask.launcher.options import load_config, parse_with_config
from remask.launcher.ranks import Place
from remask.launcher.train import check_sets

_MOST_RUNS = 999  # folders have three digits


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(Resources):
    """Submit a run to SLURM.

    Writes the resolved config and the batch script into OUT/job, lets sbatch check the script, submits it and prints the job's number.
    Before its time limit, after a failure and after preemption the job is queued again and the run goes on exactly. With --corpus the
    shards are made first, with --export the model is written afterwards, each as a job that waits for the one before.

    Examples:
      remask submit --preset albert-xlarge --data shards --out run --nodes 8 --gpus-per-node 8 --time 24:00:00 --partition gpu
      remask submit --corpus wiki.jsonl --tokenizer tokenizer.json --data shards --out run --export my-encoder
      remask submit --data shards --out sweep --sweep optimizer.lr=1e-3,2e-3 --sweep seed=1,2
      remask status run; remask logs -f run; remask cancel run
    """

    out: Path
    """The run's folder, where all machines see it; of a sweep, the folder of its runs 001, 002, …"""
    data: tuple[Path, ...] = ()
    """Folders that remask prep has made; short for data.sets."""
    preset: str = "albert-base"
    """Preset or YAML file, see remask presets."""
    name: str | None = None
    """The job's name in squeue; if not given, that of the run's folder."""
    corpus: tuple[str, ...] = ()
    """Raw text, as remask prep takes it: a job before the run makes the shards, by MPI over the same machines, with the config's pack."""
    tokenizer: Path | None = None
    """For --corpus: a tokenizer.json or a folder with one."""
    export: Path | None = None
    """A job behind the run writes the model there as a Hugging Face folder."""
    sweep: tuple[str, ...] = ()
    """KEY=VALUE,VALUE,…: a run for each value, as one job array; of several sweeps, for each combination."""
    template: str = "pretrain.sbatch.j2"
    """Another jinja2 template for the run's script; it may extend those in slurm/."""
    remask: str | None = None
    """The remask command as the machines see it; if not given, this one, in a container just remask."""
    dry_run: bool = False
    """Only print the scripts, the sbatch commands, the resolved config and the DeepSpeed JSON."""


def main(args: Sequence[str]) -> int:
    """submit a run, a sweep or a whole chain of jobs to SLURM"""
    try:
        options, config = parse_with_config(SubmitOptions, args, "submit", preset=SubmitOptions.preset)
    except ValueError as error:
        raise wrong_option("submit", error) from error
    options = replace(options, out=options.out.absolute(), setup=_setup_file(options))
    if "\\" in str(options.out):
        raise UserError(f"remask submit: --out: {str(options.out)!r} was given; SLURM writes no output below a name with a backslash")
    configs = dict(_sweep(options, args)) if options.sweep else {options.out: config}
    configs = {run: _completed(options, one) for run, one in configs.items()}
    scripts = _scripts(options, list(configs.values()))
    if options.dry_run:
        _show(options, configs, scripts)
        return 0
    for run, one in configs.items():
        _refuse_second_run(run, one)
    for file, text in {**{job_folder(run) / "config.yaml": dump(one) for run, one in configs.items()}, **scripts}.items():
        write(file, text)
    for script in scripts:
        told = commands.call([*_sbatch(options, script, None), "--test-only", str(script)])
        print(f"{script.stem}: {' '.join(told.split()).removeprefix('sbatch: ')}")
    _submit(options, list(configs), list(scripts))
    print(f"remask status {shlex.quote(str(options.out))} shows how it goes")
    return 0


def _setup_file(options: SubmitOptions) -> str | None:
    if options.setup is None:
        return None
    if not Path(options.setup).is_file():
        raise UserError(f"remask submit: --setup: {options.setup} is no file; give a shell file that the machines see, too")
    return str(Path(options.setup).absolute())


def _sweep(options: SubmitOptions, args: Sequence[str]) -> Iterator[tuple[Path, RunConfig]]:
    """A run for each combination of the sweeps' values."""
    keys, values = [], []
    for given in options.sweep:
        key, equals, listed = given.partition("=")
        if not equals or not key or not all(listed.split(",")):
            raise UserError(f"remask submit: --sweep: {given!r} was given, it must be KEY=VALUE,VALUE,…, such as optimizer.lr=1e-3,2e-3")
        if key in keys or (options.data and key.startswith("data.sets")):
            raise UserError(f"remask submit: --sweep: {key} was given before; give all its values in one place")
        keys.append(key)
        values.append(listed.split(","))
    combinations = list(product(*values))
    if len(combinations) > _MOST_RUNS:
        raise UserError(f"remask submit: --sweep: {len(combinations)} runs were asked for, at most {_MOST_RUNS} are allowed")
    for number, chosen in enumerate(combinations, start=1):
        overrides = [f"--{key}={value}" for key, value in zip(keys, chosen, strict=True)]
        yield options.out / f"{number:03d}", load_config(SubmitOptions, [*args, *overrides], SubmitOptions.preset)


def _completed(options: SubmitOptions, config: RunConfig) -> RunConfig:
    """With absolute folders, and checked against the shards, or against what they will be made from."""
    data, schedule = config.data, config.schedule
    sets = tuple(str(Path(one).absolute()) for one in options.data or data.sets)
    short_sets = tuple(str(Path(one).absolute()) for one in data.short_sets)
    if options.corpus and schedule.short_fraction and len(sets) == 1 and not short_sets:
        short_sets = (f"{sets[0]}-{schedule.short_length}",)
    config = replace(config, data=replace(data, sets=sets, short_sets=short_sets))
    check_sets(config, "submit")
    _check_for_ranks(config, options)
    if not options.corpus:
        from remask.launcher.training.start import open_loaders

        open_loaders(config, Place(world_size=options.ranks))
        return config
    if options.tokenizer is None or len(sets) != 1:
        raise UserError("remask submit: --corpus needs --tokenizer, and one folder as --data, where the shards will be")
    from remask.data_prep.tokenizer import load as load_tokenizer

    entries = len(load_tokenizer(options.tokenizer).pieces)
    if entries > config.model.vocab_size:
        raise UserError(
            f"model.vocab_size: {config.model.vocab_size} was given, {options.tokenizer} has {entries} entries; "
            f"give --model.vocab-size {entries}"
        )
    return config


def _check_for_ranks(config: RunConfig, options: SubmitOptions) -> None:
    """What every rank would refuse at its start, after the job has waited for its machines."""
    from remask.launcher.training.memory import check_precision

    shares = {"data.batch_rows": config.data.batch_rows, "data.lanes": config.data.lanes}
    if config.schedule.short_fraction and config.schedule.short_batch_rows:
        shares["schedule.short_batch_rows"] = config.schedule.short_batch_rows
    for name, value in shares.items():
        if value % options.ranks:
            raise UserError(f"{name}: {value} was given, it must be a multiple of the {options.ranks} ranks")
    check_precision(config, "cuda" if options.gpus_per_node else "cpu")
    _ds_config(config, options)


def _ds_config(config: RunConfig, options: SubmitOptions) -> dict[str, Any]:
    return fill_ds_config(config.engine, batch_rows=config.data.batch_rows, clip_norm=config.optimizer.clip_norm, world=options.ranks)


def _scripts(options: SubmitOptions, configs: list[RunConfig]) -> dict[Path, str]:
    """The jobs' scripts by where they are written, in the order of the chain."""
    if options.sweep and (options.export or options.corpus):
        raise UserError("remask submit: --sweep goes with shards that are there and without --export; export the run you like afterwards")
    inside = options.container is not None
    command = options.remask or ("remask" if inside else str(Path(sys.executable).with_name("remask")))
    resources = Resources(**{field.name: getattr(options, field.name) for field in fields(Resources)})
    tasks = len(configs) if options.sweep else 0
    job = Job(resources=resources, remask=command, run=str(options.out), tasks=tasks, template=options.template)
    jobs = {"train": job}
    if options.corpus:
        mpirun = "mpirun" if inside else str(find_mpirun() or "mpirun")
        jobs = {"prep": replace(job, template="prep.sbatch.j2", mpirun=mpirun, args=tuple(_prep_args(options, configs[0]))), **jobs}
    if options.export:
        jobs["export"] = replace(job, template="export.sbatch.j2", args=((str(options.export.absolute()),),))
    return {job_folder(options.out) / f"{name}.sbatch": render(one) for name, one in jobs.items()}


def _prep_args(options: SubmitOptions, config: RunConfig) -> Iterator[tuple[str, ...]]:
    """Of the full rows' shards, and of the short ones' if there are any."""
    corpus = tuple(text if "://" in text else str(Path(text).absolute()) for text in options.corpus)
    pack = config.data.pack
    lengths = {config.data.sets[0]: pack.sequence_length}
    if config.schedule.short_fraction:
        lengths[config.data.short_sets[0]] = config.schedule.short_length
    for shards, length in lengths.items():
        how = {"mode": pack.mode, "sequence-length": length, "short-probability": pack.short_probability, "seed": pack.seed}
        packing = tuple(word for name, value in how.items() for word in (f"--pack.{name}", str(value)))
        yield *corpus, "--tokenizer", str(options.tokenizer.absolute()), "--out", shards, *packing  # type: ignore[union-attr]


def _refuse_second_run(run: Path, config: RunConfig) -> None:
    live = [one for one in commands.states([job.job for job in read(run)]).values() if one.state in commands.LIVE]
    if live:
        raise UserError(f"{run}: its job {live[0].job} is {live[0].state.lower()}; remask cancel {shlex.quote(str(run))} ends it")
    if (run / "checkpoints").is_dir() and (run / "config.yaml").is_file():
        from remask.launcher.training.run_folder import differences, plain

        if changed := differences(plain(config), plain(load(str(run / "config.yaml")))):
            raise UserError(f"{run}: holds a run with another config ({changed[0]}); give the same options, or another --out")


def _sbatch(options: SubmitOptions, script: Path, after: str | None) -> list[str]:
    """The command without the script. Names and folders may hold anything, so they stand here and not in the script's comments."""
    output = "%3a/job/%A_%a.out" if options.sweep else "job/%j.out"
    command = ["sbatch", "--parsable", f"--job-name={options.name or options.out.name}-{script.stem}"]
    command.append(f"--output={str(options.out).replace('%', '%%')}/{output}")
    if after is not None:
        command += [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
    return [*command, *options.sbatch]


def _submit(options: SubmitOptions, runs: list[Path], scripts: list[Path]) -> None:
    """One job after the other, each waiting for the one before; if one is refused, those before it are taken back."""
    numbers: list[str] = []
    try:
        for script in scripts:
            numbers.append(commands.submit([*_sbatch(options, script, numbers[-1] if numbers else None), str(script)]))
    except UserError:
        if numbers:
            commands.call(["scancel", *numbers])
        raise
    for script, number in zip(scripts, numbers, strict=True):
        print(f"{script.stem}: job {number}")
        for task, run in enumerate(runs, start=1):
            job = f"{number}_{task}" if options.sweep else number
            record(run, [Submitted(name=script.stem, job=job, output=str(job_folder(run) / f"{job}.out"))])


def _show(options: SubmitOptions, configs: dict[Path, RunConfig], scripts: dict[Path, str]) -> None:
    for script, text in scripts.items():
        print(f"# {script}\n# {shlex.join([*_sbatch(options, script, None), str(script)])}\n{text}")
    for run, config in configs.items():
        print(f"# {job_folder(run) / 'config.yaml'}\n{dump(config)}")
        print(f"# ds_config.json, {options.ranks} ranks\n{json.dumps(_ds_config(config, options), indent=2)}")
