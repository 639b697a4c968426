"""The harvested corpus: prose, the same for any number of workers, whole or not there."""

import json
from pathlib import Path

import pytest

from remask.data_prep import harvest as module
from remask.data_prep.harvest import harvest, read_document

SOURCE = '''"""A module about masks and why they change in every epoch.

>>> not prose but a session that somebody typed into Python

+-----+-----+-----+-----+-----+ 1 2 3 4 5
"""
def f():
    """Too short."""
class C:
    async def g(self):
        """Another paragraph,
        over two lines of text."""
'''


def test_documentation_strings_are_taken_and_the_rest_is_not(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(SOURCE)
    assert read_document(file) == "A module about masks and why they change in every epoch.\n\nAnother paragraph, over two lines of text."


def test_files_that_are_no_text_or_no_python_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(:")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe five words that are not text")
    assert [read_document(tmp_path / name) for name in ("a.py", "b.txt", "missing.md")] == ["", "", ""]


def test_the_result_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = harvest(tmp_path / "one.jsonl", ("numpy",), 1, lambda done, total: seen.append((done, total)))
    harvest(tmp_path / "two.jsonl", ("numpy",), 2, lambda done, total: None)
    lines = (tmp_path / "one.jsonl").read_text().splitlines()
    assert len(lines) == found.documents > 50
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert seen == [(i, found.files) for i in range(1, found.files + 1)]
    assert found.text_bytes == sum(len(json.loads(line)["text"].encode()) for line in lines)


def test_files_are_taken_in_the_order_of_their_names_without_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "mine"
    for name in ("b.py", "a.py", "tests/t.py", "sub/c.txt", "data.bin"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text('"""Five words make a paragraph."""')
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    harvest(tmp_path / "corpus.jsonl", ("mine",), 1, lambda done, total: None)
    sources = [json.loads(line)["source"] for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    assert sources == ["mine/a.py", "mine/b.py", "mine/sub/c.txt"]


def test_an_interrupted_harvest_leaves_no_corpus(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harvest(tmp_path / "corpus.jsonl", ("numpy",), 1, stop)
    assert not (tmp_path / "corpus.jsonl").exists()


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        module.harvest(tmp_path / "corpus.jsonl", ("no_such_package",), 1, lambda done, total: None)
