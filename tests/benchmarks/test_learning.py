"""The learning benchmark: real runs of its contests, and tables that claim no more than the seeds show."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_corpus import DOCUMENTS, trained

from remask.benchmarks import learning, learning_contests
from remask.benchmarks.learning_contests import CONTESTS, tables_of, verdict
from remask.data_prep.clean import CleanConfig
from remask.data_prep.corpus import Source
from remask.data_prep.pack import PackConfig
from remask.data_prep.prep import PrepConfig, prepare
from remask.data_prep.workers import local_workers
from remask.launcher.errors import UserError


def a_run(question: str, setting: str, seed: int, loss: float) -> dict[str, Any]:
    curve = [(0, 8.0), (100, loss)]
    right = {"nsp": 0.7 + seed / 100, "sop": 0.5}
    return {"question": question, "setting": setting, "seed": seed, "parameters": 1234567, "loss": loss, "curve": curve, "right": right}


def test_tables_hold_every_setting_with_its_spread_and_the_papers_figure() -> None:
    losses = {"dynamic": (4.0, 4.2), "static": (4.1, 4.4)}
    runs = [
        a_run(contest.question, name, seed, losses.get(name, (5.0, 5.0))[seed])
        for seed in (0, 1)
        for contest in CONTESTS
        for name in contest.settings
    ]
    settings, differences, answers = tables_of(runs, "100 steps.")
    assert ["masks", "dynamic", "1,234,567", "8.000", "4.100", "4.000 to 4.200", "78.7, 84.0, 92.9"] in settings.rows
    assert len(settings.rows) == 8 and settings.note.startswith("100 steps.")
    masks, *sharing = differences.rows
    assert masks[:5] == ["masks", "dynamic - static", "-0.150", "-0.200 to -0.100", "lower"]
    assert [(row[1], row[4]) for row in sharing] == [(f"{name} - none", "no clear difference") for name in ("attention", "ffn", "all")]
    assert answers.rows[0] == ["nsp", "70.5% (70.0 to 71.0)", "90.5%", "50.0% (50.0 to 50.0)", "52.0%"]


@pytest.mark.parametrize(
    ("gaps", "said"),
    [([0.1, 0.2], "higher"), ([-0.1, -0.2], "lower"), ([-0.1, 0.2], "no clear difference"), ([0.5], "one seed says nothing")],
)
def test_a_difference_is_told_only_where_all_seeds_agree(gaps: list[float], said: str) -> None:
    assert verdict(gaps) == said


class Answers:
    """A model that gives every row the same answer."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.rows = 0

    def score(self, ids: Any, offsets: Any, positions: Any, segments: Any) -> Any:
        assert len(ids) == len(segments) and len(positions) == 0
        self.rows += len(offsets) - 1
        return None, torch.eye(2)[[self.answer] * (len(offsets) - 1)]


def test_the_same_answer_to_all_is_right_in_half_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    (tmp_path / "tokenizer.json").write_text(trained("bpe").text)
    pack = PackConfig(mode="segment-pair", sequence_length=64)
    sources = (Source(name="text", paths=(str(tmp_path / "text.jsonl"),)),)
    config = PrepConfig(sources=sources, tokenizer=tmp_path / "tokenizer.json", pack=pack, clean=CleanConfig(validation_share=0.3))
    with local_workers(1) as workers:
        assert prepare(config, tmp_path / "shards", workers, lambda *_: None).manifest is not None
    for task in ("nsp", "sop"):
        models = [Answers(0), Answers(1)]
        shares = [learning.right_answers(model, tmp_path / "shards", pack, task) for model in models]  # type: ignore[arg-type]
        assert min(model.rows for model in models) > 500
        assert sum(shares) == pytest.approx(1) and abs(shares[0] - 0.5) < 0.08


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
        assert set(run["right"]) == {"nsp", "sop"} and all(0.2 < share < 1 for share in run["right"].values())
