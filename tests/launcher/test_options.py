"""Options that are given more than once: nothing of a list is lost."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from remask.launcher.errors import UserError
from remask.launcher.options import load_config, parse, parse_with_config
from remask.launcher.submit import SubmitOptions
from remask.launcher.train import TrainOptions


@dataclass(frozen=True, kw_only=True)
class Listed:
    """With a default that a given list replaces."""

    some_sizes: tuple[int, ...] = (1, 2)
    name: str = ""
    preset: str = "bert-tiny"


@pytest.mark.parametrize(
    ("args", "sizes"),
    [
        ([], (1, 2)),
        (["--some-sizes"], ()),
        (["--some-sizes", "3", "4"], (3, 4)),
        (["--some-sizes", "3", "--some-sizes", "4", "5"], (3, 4, 5)),
        (["--some-sizes=3", "--name", "x", "--some_sizes=4"], (3, 4)),
        (["--some-sizes", "3", "--name", "x", "--some-sizes", "4", "--name=y"], (3, 4)),
    ],
)
def test_a_list_that_is_given_several_times_holds_all_values(args: list[str], sizes: tuple[int, ...]) -> None:
    assert parse(Listed, args, "some").some_sizes == sizes
    assert parse_with_config(Listed, args, "some", preset="bert-tiny")[0].some_sizes == sizes


@pytest.mark.parametrize(("args", "named"), [(["--name", ""], "--name"), (["--name="], "--name="), (["--some-sizes", "1", "", "2"], "1")])
def test_an_empty_value_is_refused_for_it_is_a_variable_that_is_not_set(args: list[str], named: str) -> None:
    with pytest.raises(UserError, match=f"remask listed: {named}: an empty value was given; is a variable not set"):
        parse(Listed, args, "listed")


def test_lists_of_train_and_submit_hold_all_values() -> None:
    options = parse(TrainOptions, ["--out", "run", "--data", "a", "--data", "b"], "train")
    assert options.data == (Path("a"), Path("b"))
    given = ["--corpus", "c", "--corpus", "d", "--mounts", "/e", "--mounts", "/f", "--sweep", "seed=1", "--sweep", "optimizer.lr=1"]
    submitted = parse(SubmitOptions, ["--out", "run", *given, "--sbatch=--hold", "--sbatch=--exclude=node7"], "submit")
    assert submitted.corpus == ("c", "d") and submitted.mounts == ("/e", "/f") and submitted.sweep == ("seed=1", "optimizer.lr=1")
    assert submitted.sbatch == ("--hold", "--exclude=node7")


def test_a_list_of_the_config_is_given_once() -> None:
    with pytest.raises(UserError, match=r"command line: data\.sets: was given more than once; write --data\.sets A B"):
        load_config(Listed, ["--data.sets", "a", "--data.sets=b"], "bert-tiny")
    assert load_config(Listed, ["--data.sets", "a", "b"], "bert-tiny").data.sets == ("a", "b")
    assert load_config(Listed, ["--seed", "1", "--seed", "2"], "bert-tiny").seed == 2
