"""Files to documents: each once, whatever the cuts, and what cannot be read is counted."""

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from remask.data_prep import readers
from remask.data_prep.corpus import Source, find_files, plan
from remask.data_prep.errors import InputError
from remask.data_prep.readers import place_of, read

TEXTS = [f"document {i} " + "wörd 字 " * (i % 40) for i in range(300)]


def documents(source: Source, item_bytes: int) -> list[str]:
    return [document.text for item in plan((source,), item_bytes) for piece in item for document in read(piece)]


def problems(file: Path, item_bytes: int = 1 << 30, **options: str) -> list[tuple[str, int]]:
    source = Source(name="s", paths=(str(file),), **options)
    found = [(piece, document) for item in plan((source,), item_bytes) for piece in item for document in read(piece)]
    return [(document.problem, int(place_of(piece, document.position).rpartition(" ")[2])) for piece, document in found if document.problem]


def write(file: Path) -> Path:
    """The texts in the form that the file's name asks for."""
    lines = "".join(json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) + "\n" for i, text in enumerate(TEXTS)).encode()
    plain = "\n \n\n".join(text.replace("wörd", "wörd\n") for text in TEXTS).encode()
    data = plain if ".txt" in file.name else lines
    if file.suffix == ".gz":
        half = len(data) // 2
        data = gzip.compress(data[:half]) + gzip.compress(data[half:])  # two members, as pigz and cat make
    elif file.suffix == ".zst":
        data = zstandard.compress(data[:1000]) + zstandard.compress(data[1000:])
    elif file.suffix == ".parquet":
        parquet.write_table(pyarrow.table({"n": range(len(TEXTS)), "text": TEXTS}), file, row_group_size=17)
        return file
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.txt", "a.txt.gz", "a.txt.zst", "a.parquet"])
def test_every_document_comes_once_and_in_order_for_any_cut(name: str, tmp_path: Path) -> None:
    source = Source(name="s", paths=(str(write(tmp_path / name)),))
    expected = [text.replace("wörd", "wörd\n").strip() for text in TEXTS] if ".txt" in name else TEXTS
    size = (tmp_path / name).stat().st_size
    for item_bytes in [5, 7, 100, 1001, size // 2, size - 1, size, 10 * size, 17, 333]:
        assert [text.strip() for text in documents(source, item_bytes)] == [text.strip() for text in expected]


def test_a_file_a_document(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.txt").write_text(f"one\n\n{i}")
    source = Source(name="s", paths=(str(tmp_path),), format="file")
    assert documents(source, 3) == [f"one\n\n{i}" for i in range(5)]


def test_large_files_are_cut_and_small_ones_gathered(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    for i in range(10):
        (tmp_path / f"b{i}.txt").write_text("small")
    items = plan((Source(name="s", paths=(str(tmp_path),)),), 4000)
    assert len(items) > 3
    assert len({piece.file for piece in items[-1]}) == 10 or len({piece.file for item in items[-2:] for piece in item}) >= 10
    assert all(sum(piece.stored_bytes for piece in item) <= 8000 for item in items)


def test_folders_globs_and_formats_are_found(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "deep").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "texts" / "deep" / "up").symlink_to(tmp_path / "texts")  # a link that leads back
    tmp_path /= "texts"
    for name in ("b.txt", "deep/a.jsonl.gz", "c.md", "d.parquet"):
        (tmp_path / name).touch()
    found = find_files(Source(name="s", paths=(str(tmp_path),)))
    assert [(Path(file).name, kind) for file, _, kind in found] == [("b.txt", "text"), ("d.parquet", "parquet"), ("a.jsonl.gz", "jsonl")]
    assert len(find_files(Source(name="s", paths=(str(tmp_path / "*" / "*.gz"),)))) == 1
    for paths, said in [
        (("nothing*",), "matches nothing"),
        ((str(tmp_path / "c.md"),), "has no known ending"),
        (("nosuch://x",), "Protocol not known"),
    ]:
        with pytest.raises(InputError, match=said):
            find_files(Source(name="s", paths=paths))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.txt.gz", "a.parquet"])
def test_urls_are_read_as_files_are(name: str, tmp_path: Path) -> None:
    """fsspec's file system in memory stands for s3."""
    import fsspec

    memory = fsspec.filesystem("memory")
    write(tmp_path / name)
    memory.pipe(f"/bucket/deep/{name}", (tmp_path / name).read_bytes())
    expected = documents(Source(name="s", paths=(str(tmp_path / name),)), 1000)
    assert len(expected) > 200
    for path in ("memory://bucket", f"memory://bucket/deep/{name}", "memory://bucket/deep/*"):
        assert documents(Source(name="s", paths=(path,)), 1000) == expected
    memory.rm("/bucket", recursive=True)
    with pytest.raises(InputError, match="matches nothing"):
        find_files(Source(name="s", paths=("memory://bucket/x.jsonl",)))


def test_a_limit_takes_the_first_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl.gz")
    for name in ("a.jsonl", "b.jsonl.gz"):
        source = Source(name="s", paths=(str(tmp_path / name),), limit_mb=0.001)
        taken = documents(source, 400)
        assert 3 < len(taken) < len(TEXTS) and taken == TEXTS[: len(taken)]
        assert "truncated" not in [document.problem for item in plan((source,), 400) for piece in item for document in read(piece)]


def test_parquet_problems_are_counted_with_their_row(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    texts = [None if i % 100 == 7 else TEXTS[i % len(TEXTS)] for i in range(1000)]
    parquet.write_table(pyarrow.table({"text": texts}), file, row_group_size=300, compression="none", use_dictionary=False)
    expected = [("no-text", row + 1) for row in range(7, 1000, 100)]
    assert problems(file, 5000) == problems(file) == expected
    data = bytearray(file.read_bytes())
    middle = parquet.ParquetFile(file).metadata.row_group(2).column(0).data_page_offset
    data[middle : middle + 64] = b"\xff" * 64
    file.write_bytes(data)
    found = problems(file)
    assert ("broken-parquet", 601) in found, "one damaged page costs its row group"
    assert [problem for problem in expected if not 600 < problem[1] <= 900] == [problem for problem in found if problem[0] == "no-text"]


def test_bad_lines_are_counted_with_their_line(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good"}',
        b'{"text": ',
        b'{"text": 3}',
        b'{"no": "text"}',
        b"[1]",
        b'{"text": "\xff"}',
        b"",
        b'{"text": null}',
        b'{"text": "end"}',
    ]
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join(lines))
    expected = [("broken-json", 2), ("text-not-a-string", 3), ("no-text", 4), ("not-an-object", 5), ("invalid-utf8", 6), ("no-text", 8)]
    for item_bytes in (1, 20, 1000):
        assert problems(file, item_bytes) == expected


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.txt.gz"])
def test_a_truncated_file_gives_what_it_holds_and_a_problem(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / name)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 3 // 4])
    source = Source(name="s", paths=(str(file),))
    assert len([text for text in documents(source, 1 << 30) if text]) > 5
    assert "truncated" in [problem for problem, _ in problems(file)]


def test_files_that_are_not_what_their_name_says(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    (tmp_path / "b.jsonl.gz").write_bytes(b"not gzip")
    (tmp_path / "c.jsonl.zst").write_bytes(b"not zstandard")
    (tmp_path / "d.txt").write_bytes(b"good\n\n\xff\xfe bad")
    assert [problems(tmp_path / name)[0][0] for name in ("a.parquet", "b.jsonl.gz", "c.jsonl.zst", "d.txt")] == [
        "broken-parquet", "broken-compression", "broken-compression", "invalid-utf8",
    ]  # fmt: skip


def test_over_long_lines_and_documents_are_dropped_and_the_next_ones_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", 100)
    monkeypatch.setattr(readers, "_READ_BYTES", 16)
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "x" * 500}) + "\n" + json.dumps({"text": "next"}) + "\n")
    assert problems(file) == [("too-long", 1)]
    assert documents(Source(name="s", paths=(str(file),)), 1 << 30) == ["", "next"]
    (tmp_path / "b.txt").write_text("line of some words\n" * 20 + "\nnext")
    assert problems(tmp_path / "b.txt") == [("too-long", 1)]
    assert documents(Source(name="s", paths=(str(tmp_path / "b.txt"),)), 1 << 30)[-1] == "next"


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    for name, data in {"a.jsonl": b'{"text": "first"}\n{"text": "second"}', "a.txt": b"first\n\nsecond"}.items():
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + data)
        assert [text.strip() for text in documents(Source(name="s", paths=(str(tmp_path / name),)), 1000)] == ["first", "second"]


def test_an_over_long_line_is_counted_once_for_any_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", 100)
    monkeypatch.setattr(readers, "_READ_BYTES", 16)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one"}) + "\n" + "x" * 3000 + "\n" + json.dumps({"text": "two"}))
    (tmp_path / "a.txt").write_text("one\n\n" + "x" * 3000 + "\n\ntwo")
    for name in ("a.jsonl", "a.txt"):
        for item_bytes in (50, 333, 10_000):
            assert [problem for problem, _ in problems(tmp_path / name, item_bytes)] == ["too-long"]
            found = [text.strip() for text in documents(Source(name="s", paths=(str(tmp_path / name),)), item_bytes)]
            assert [text for text in found if text] == ["one", "two"]


def test_a_parquet_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no column 'body'; it has n, text"):
        documents(Source(name="s", paths=(str(tmp_path / "a.parquet"),), field="body"), 1 << 30)
