"""The learning benchmark: real runs of its contests, and tables that claim no more than the seeds show."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_corpus import DOCUMENTS, trained

from remask.benchmarks import learning, learning_contests
from remask.benchmarks.learning_answers import answers_of, longer_first, right_answers
from remask.benchmarks.learning_contests import CONTESTS, tables_of, verdict
from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Source
from remask.data_prep.pack import PackConfig
from remask.data_prep.prep import PrepConfig, prepare
from remask.data_prep.workers import local_workers
from remask.launcher.config import load
from remask.launcher.errors import UserError
from remask.model.heads import PretrainingModel


def a_run(question: str, setting: str, seed: int, loss: float) -> dict[str, Any]:
    curve = [(0, 8.0), (100, loss)]
    right = {"nsp": {"share": 0.7 + seed / 100, "asked": 900}, "sop": {"share": 0.5, "asked": 800}} if question == "sentence task" else {}
    run = {"question": question, "setting": setting, "seed": seed, "parameters": 1234567, "epochs": 2.5}
    return run | {"loss": loss, "curve": curve, "right": right}


def test_tables_hold_every_setting_with_its_spread_and_the_papers_figure() -> None:
    losses = {"dynamic": (4.0, 4.2), "static": (4.2, 4.41)}
    runs = [
        a_run(contest.question, name, seed, losses.get(name, (5.0, 5.0))[seed])
        for seed in (0, 1)
        for contest in CONTESTS
        for name in contest.settings
    ]
    settings, differences, answers = tables_of(runs, {"nsp": 0.5, "sop": 0.58}, "100 steps.")
    assert ["masks", "dynamic", "1,234,567", "2.5", "8.000", "4.100", "4.000 to 4.200", "78.7, 84.0, 92.9"] in settings.rows
    assert len(settings.rows) == 8 and settings.note.startswith("100 steps.")
    masks, *sharing = differences.rows
    assert masks[:5] == ["masks", "dynamic - static", "-0.205", "-0.210 to -0.200", "lower"]
    assert [(row[1], row[4]) for row in sharing] == [(f"{name} - none", "no clear difference") for name in ("attention", "ffn", "all")]
    assert answers.rows[0] == ["nsp", "70.5% (70.0 to 71.0)", "90.5%", "50.0% (50.0 to 50.0)", "52.0%"]
    assert answers.rows[2] == ["nothing: the longer part first", "50.0%", "", "58.0%", ""]
    assert "900 of nsp, 800 of sop" in answers.note


@pytest.mark.parametrize(
    ("gaps", "said"),
    [
        ([0.1, 0.2], "no clear difference"),
        ([0.19, 0.2], "higher"),
        ([-0.1, -0.12, -0.11], "lower"),
        ([-0.1, 0.1, 0.2], "no clear difference"),
        ([0.5], "one seed says nothing"),
    ],
)
def test_a_difference_is_told_only_where_the_seeds_allow_it(gaps: list[float], said: str) -> None:
    assert verdict(gaps) == said


def test_answers_are_counted_label_by_label(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    (tmp_path / "tokenizer.json").write_text(trained("bpe").text)
    pack = PackConfig(mode="segment-pair", sequence_length=64)
    sources = (Source(name="text", paths=(str(tmp_path / "text.jsonl"),)),)
    config = PrepConfig(sources=sources, tokenizer=tmp_path / "tokenizer.json", pack=pack, clean=CleanConfig(validation_share=0.3))
    with local_workers(1) as workers:
        assert prepare(config, tmp_path / "shards", workers, lambda *_: None).manifest is not None

    def never(given: Any) -> torch.Tensor:
        return torch.zeros(len(given["labels"]), dtype=torch.bool)

    def mostly(given: Any) -> torch.Tensor:
        """Right about all 1s, and about a 0 where the row has an even number of tokens."""
        return (given["labels"] == 1) | (given["offsets"].diff() % 2 == 1)

    for task in ("nsp", "sop"):
        counted = right_answers(never, tmp_path / "shards", pack, task)
        assert counted["share"] == 0.5 and 300 < counted["asked"] <= 1024
        assert 0.7 < right_answers(mostly, tmp_path / "shards", pack, task)["share"] < 0.8
    model = PretrainingModel(load("bert-tiny", {"model": {"vocab_size": 600}}).model, sentence_task=True).eval()
    assert 0.4 < right_answers(answers_of(model), tmp_path / "shards", pack, "sop")["share"] < 0.6


def test_the_longer_part_stands_first_by_the_rule() -> None:
    segments = torch.tensor([0, 0, 0, 1, 1, 0, 1, 1, 1])
    assert longer_first({"offsets": torch.tensor([0, 5, 9]), "segments": segments}).tolist() == [False, True]


def test_text_is_taken_from_all_over_the_corpus(tmp_path: Path) -> None:
    lines = [f"{number:04d} {'x' * (number % 90)}\n" for number in range(1000)]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    taken = learning._spread(tmp_path / "corpus.jsonl", 10_000, tmp_path / "some.jsonl").read_text().splitlines(keepends=True)
    numbers = [int(line[:4]) for line in taken]
    assert abs(sum(map(len, taken)) - 10_000) < 100 and set(taken) <= set(lines) and numbers == sorted(set(numbers))
    assert max(b - a for a, b in pairwise(numbers)) < 20
    whole = learning._spread(tmp_path / "corpus.jsonl", 10**6, tmp_path / "all.jsonl")
    assert whole.read_text() == "".join(lines)


def test_a_corpus_that_is_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "_VOCABULARY", 300)
    with gzip.open(tmp_path / "en.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps({"text": " ".join(DOCUMENTS[:100])}) + "\n")
    with pytest.raises(UserError, match="no document to hold out; give more with --text-mb"):
        learning.main(["--data", str(tmp_path), "--steps", "10"])


@pytest.mark.parametrize("wrong", [["--steps", "9"], ["--seeds", "0"], ["--jobs", "0"], ["--text-mb", "0"]])
def test_too_little_is_refused(wrong: list[str]) -> None:
    with pytest.raises(UserError, match=f"{wrong[0]} {wrong[1]}: at least"):
        learning.main(wrong)


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--html: the folder of"):
        learning.main(["--html", str(tmp_path / "nowhere" / "page.html")])


@pytest.mark.slow
def test_the_sentence_contest_is_trained_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contest = next(contest for contest in CONTESTS if contest.tasks)
    for module in (learning, learning_contests):
        monkeypatch.setattr(module, "CONTESTS", (contest,))
    monkeypatch.setattr(learning, "_VOCABULARY", 200)
    with gzip.open(tmp_path / "en.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in DOCUMENTS)
    record, page = tmp_path / "learning.json", tmp_path / "learning.html"
    args = ["--data", str(tmp_path), "--steps", "60", "--seeds", "1", "--json", str(record), "--html", str(page)]
    assert learning.main(args) == 0
    told = capsys.readouterr()
    assert "2 of 2" in told.err and "What a sentence task teaches" in told.out and "sop" in page.read_text()
    runs = json.loads(record.read_text())["runs"]
    assert [(run["setting"], run["seed"]) for run in runs] == [("nsp", 1), ("sop", 1)]
    for run in runs:
        assert [step for step, _ in run["curve"]] == [0, 50, 60] and run["loss"] < run["curve"][0][1] - 0.5
        assert set(run["right"]) == {"nsp", "sop"} and all(0.2 < answers["share"] < 1 for answers in run["right"].values())
