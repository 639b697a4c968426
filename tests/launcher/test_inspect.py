"""Seeing masks: rows in colours, a page, the linter's verdicts, and tables of similar words."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_corpus import DOCUMENTS, trained

Remask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shards(remask: Remask, tmp_path: Path) -> Path:
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS[:500]))
    (tmp_path / "t.json").write_text(trained("wordpiece").text)
    made = remask("prep", "corpus.jsonl", "--tokenizer", "t.json", "--out", "shards", "--pack.sequence-length", "64")
    assert made.returncode == 0, made.stderr
    return tmp_path / "shards"


def test_rows_are_shown_over_epochs_and_judged(remask: Remask, shards: Path, tmp_path: Path) -> None:
    result = remask("inspect", "shards", "--strategy", "span", "--rows", "2", "--epochs", "3", "--html", "masks.html")
    assert result.returncode == 0, result.stdout + result.stderr
    shown = re.findall(r"^row (\d+), epoch (\d): (.*)$", result.stdout, re.MULTILINE)
    assert [(row == "0", epoch) for row, epoch, _ in shown] == [(first, str(e)) for first in (True, False) for e in range(3)]
    assert len({text for _, _, text in shown}) == 6 and all("[" in text for _, _, text in shown), "other masks in other epochs"
    verdicts = re.findall(r"^(ok|FAIL)  (.+?)  ", result.stdout, re.MULTILINE)
    assert {"rate", "mask/random/kept", "words in a run", "words masked in part"} <= {name for _, name in verdicts}
    assert any(name.startswith("overlap of epochs") for _, name in verdicts)
    assert {verdict for verdict, _ in verdicts} == {"ok"}
    page = (tmp_path / "masks.html").read_text()
    assert page.count('class="masked"') > 10 and "overlap of epochs" in page and "<script" not in page


def test_a_failing_verdict_is_exit_code_1(remask: Remask, shards: Path, tmp_path: Path) -> None:
    """A loader that loses the epoch on the way, put in its place before the command runs."""
    code = (
        "import sys; from remask.data_prep.loader import Loader; real = Loader.rows_in_epoch\n"
        "Loader.rows_in_epoch = lambda self, rows, epoch: real(self, rows, 0)\n"
        "from remask.launcher import inspect_masks; sys.exit(inspect_masks.main(['shards']))"
    )
    import sys

    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1 and re.search(r"^FAIL  overlap of epochs", result.stdout, re.MULTILINE), result.stderr


def test_similar_words_are_learned_and_used(remask: Remask, shards: Path, tmp_path: Path) -> None:
    options = ["--least-count", "5", "--threshold", "0", "--top-k", "3"]
    made = remask("prep", "similar", "shards", "--out", "similar.tsv", *options)
    assert made.returncode == 0 and "words with similar ones in similar.tsv" in made.stdout, made.stderr
    lines = [line.split("\t") for line in (tmp_path / "similar.tsv").read_text().splitlines()]
    table = {word: others.split() for word, others in lines}
    assert {"model", "tokens", "words"} <= table.keys()
    assert all(1 <= len(others) <= 3 and word not in others for word, others in table.items())
    assert remask("prep", "similar", "shards", "--out", "again.tsv", *options).returncode == 0
    assert (tmp_path / "again.tsv").read_text() == (tmp_path / "similar.tsv").read_text()
    shown = remask("inspect", "shards", "--strategy", "similar", "--similar-words", "similar.tsv", "--rows", "5", "--epochs", "4")
    assert shown.returncode == 0, shown.stdout
    replaced = re.findall(r"\[(\w+)→(\w+)\]", shown.stdout)
    assert sum(now in table.get(then, []) for then, now in replaced) > 0.5 * len([then for then, _ in replaced if then in table]) > 5
    for more, said in ((["--least-count", "100000"], "no two words are that similar"), (["--seed", "-5"], "--seed: -5 was given")):
        nothing = remask("prep", "similar", "shards", "--out", "none.tsv", *more)
        assert nothing.returncode == 2 and said in nothing.stderr and not (tmp_path / "none.tsv").exists()
    refused = remask("prep", "similar", "shards", "--out", "similar.tsv")
    assert refused.returncode == 2 and "is there already" in refused.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere"], "no manifest.json here"),
        (["shards", "--rate", "1.5"], "--rate: 1.5 was given"),
        (["shards", "--rows", "0"], "--rows: 0 was given"),
        (["shards", "--strategy", "phrase"], "no phrases are marked in it"),
        (["shards", "--strategy", "similar", "--similar-words", "none.tsv"], "none.tsv: cannot be read"),
        (["shards", "--strategy", "similar", "--similar-words", "bad.tsv"], "bad.tsv: line 1 is 'no tab here'"),
        (["shards", "--html", "no/where.html"], "no/where.html is a folder, or its own does not exist"),
    ],
)
def test_mistakes_are_one_sentence(remask: Remask, shards: Path, tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "bad.tsv").write_text("no tab here\n")
    result = remask("inspect", *options)
    assert result.returncode == 2 and said in result.stderr.splitlines()[-1], result.stderr
