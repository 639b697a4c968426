"""The offline stage as a whole: what is in the shards, and that faults lose nothing."""

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import webdataset
from conftest import REMASK
from pyarrow import parquet
from sample_corpus import DOCUMENTS
from tokenizers import Tokenizer

from remask.data_prep import manifest, prep
from remask.data_prep.corpus import Source
from remask.data_prep.errors import InputError
from remask.data_prep.files import locked
from remask.data_prep.pack import PackConfig, Packing
from remask.data_prep.prep import PrepConfig, prepare
from remask.data_prep.sentences import sentence_ends
from remask.data_prep.workers import local_workers

Remask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prep, "item_bytes", lambda corpus_bytes, shard_mb: 50_000)


def run(
    corpus: Path, tokenizer: Path, out: Path, mode: Packing = "full-sentences", workers: int = 1, strict: bool = False
) -> manifest.Manifest:
    config = PrepConfig(
        sources=(Source(name="test", paths=(str(corpus),)),),
        tokenizer=tokenizer,
        pack=PackConfig(mode=mode, sequence_length=64),
        block_rows=32,
    )
    with local_workers(workers) as pool:
        outcome = prepare(config, out, pool, lambda stage, done, total, tokens: None, strict)
    assert outcome.manifest is not None, outcome.failures
    return outcome.manifest


def contents(folder: Path) -> dict[str, bytes]:
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix == ".tar" or file.name == "manifest.json"}
    assert len(files) > 2
    return files


def blocks(folder: Path, shards: tuple[manifest.Shard, ...]) -> list[dict[str, np.ndarray]]:
    """Every sample as plain webdataset decodes it."""
    urls = [str(folder / shard.name) for shard in shards]
    return list(webdataset.WebDataset(urls, shardshuffle=False).decode())


@pytest.mark.parametrize("mode", ["full-sentences", "doc-sentences", "segment-pair", "sentence-pair"])
def test_plain_webdataset_reads_back_every_document(corpus: Path, bpe_file: Path, tmp_path: Path, mode: Packing) -> None:
    made = run(corpus, bpe_file, tmp_path, mode)
    tokenizer = Tokenizer.from_file(str(bpe_file))
    separator = made.specials["sep"]
    texts, sentences, inside = [], 0, 0
    samples = blocks(tmp_path, made.train) + blocks(tmp_path, made.validation)
    for sample in samples:
        ids, rows = sample["ids.npy"], sample["rows.npy"]
        assert ids.dtype == np.uint16 and rows[0] == 0 and rows[-1] == len(ids)
        assert np.diff(rows).max() <= 64 - (3 if "pair" in mode else 2)
        words = np.unpackbits(sample["words.npy"])[: len(ids)].astype(bool)
        begins = sample["documents.npy"][sample["documents.npy"] < len(ids)]
        assert len(words) == len(ids) and words[begins].all() and words.mean() > 0.2
        inside += int((~words).sum())
        sentences += len(sample["sentences.npy"])
        assert set(sample["documents.npy"].tolist()) <= set(sample["sentences.npy"].tolist())
        assert (sample["splits.npy"] > 0).any() == ("pair" in mode)
        texts.append(ids)
    stream = np.concatenate(texts).tolist()
    if mode == "full-sentences":
        assert stream.count(separator) == 2001
        stream = [i for i in stream if i != separator]
    else:
        assert separator not in stream
    found = tokenizer.decode(stream, skip_special_tokens=False)
    assert len(found) > 100_000
    assert all(text.strip() in found for text in DOCUMENTS)
    assert made.documents["test"] == {
        "broken-json": 1, "duplicate": 2, "empty": 1, "kept": 2001, "text-not-a-string": 1,
        "text_bytes": made.documents["test"]["text_bytes"], "tokens": len(stream),
    }  # fmt: skip
    assert inside > 0
    assert sentences == sum(len(sentence_ends(text.strip().encode())) for text in DOCUMENTS) + 2
    assert 0 < sum(shard.rows for shard in made.validation) < 0.05 * sum(shard.rows for shard in made.train)


def test_the_manifest_says_where_every_member_lies(corpus: Path, bpe_file: Path, tmp_path: Path) -> None:
    made = run(corpus, bpe_file, tmp_path)
    assert manifest.read(tmp_path) == made
    for shard in made.shards:
        data = (tmp_path / shard.name).read_bytes()
        with tarfile.open(tmp_path / shard.name) as tar:
            members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        assert shard.bytes == len(data) and shard.rows == sum(block.rows for block in shard.blocks)
        assert len(members) == sum(len(block.members) for block in shard.blocks)
        for number, block in enumerate(shard.blocks):
            for channel, (offset, size) in block.members.items():
                assert data[offset : offset + size] == members[f"{number:06d}.{channel}.npy"]
            ids = np.load(io.BytesIO(members[f"{number:06d}.ids.npy"]))
            assert len(ids) == block.tokens


def test_any_number_of_workers_gives_the_same_bytes(corpus: Path, bpe_file: Path, tmp_path: Path) -> None:
    run(corpus, bpe_file, tmp_path / "one", workers=1)
    run(corpus, bpe_file, tmp_path / "three", workers=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


def test_a_second_start_makes_only_what_is_missing(corpus: Path, bpe_file: Path, tmp_path: Path) -> None:
    run(corpus, bpe_file, tmp_path)
    before = contents(tmp_path)
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in before}
    (tmp_path / "train-00003.tar").unlink()
    run(corpus, bpe_file, tmp_path)
    assert contents(tmp_path) == before
    redone = [name for name in before if (tmp_path / name).stat().st_mtime_ns != times[name]]
    assert sorted(name for name in redone if name.startswith("train")) == ["train-00003.tar"]


def test_strict_stops_at_the_first_line_that_cannot_be_read(corpus: Path, bpe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"corpus.jsonl, line 502: broken-json, and --strict stops at it"):
        run(corpus, bpe_file, tmp_path, strict=True)


def test_a_changed_config_or_corpus_is_refused_and_nothing_is_lost(corpus: Path, bpe_file: Path, tmp_path: Path) -> None:
    copy = shutil.copy(corpus, tmp_path / "corpus.jsonl")
    run(Path(copy), bpe_file, tmp_path / "set")
    before = contents(tmp_path / "set")
    with pytest.raises(Exception, match=r"made with pack\.mode 'full-sentences', now it is 'doc-sentences'"):
        run(Path(copy), bpe_file, tmp_path / "set", mode="doc-sentences")
    with Path(copy).open("a") as more:
        more.write('{"text": "one more"}\n')
    with pytest.raises(Exception, match="other files in the corpus, or files of other sizes"):
        run(Path(copy), bpe_file, tmp_path / "set")
    assert contents(tmp_path / "set") == before


def test_a_file_that_fails_is_named_the_others_are_done_and_a_mended_one_completes_the_set(bpe_file: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a", "b", "c"):
        parquet.write_table(pyarrow.table({"text": [*DOCUMENTS[:300], f"only in {name}"]}), texts / f"{name}.parquet", compression="none")
    whole = texts / "a.parquet"
    good = whole.read_bytes()
    run(texts, bpe_file, tmp_path / "calm")
    parquet.write_table(pyarrow.table({"body": [*DOCUMENTS[:300], "only in a"]}), whole, compression="none")
    assert whole.stat().st_size == len(good), "the plan goes by sizes"
    with pytest.raises(AssertionError, match=r"a\.parquet: no column 'text'; it has body"):
        run(texts, bpe_file, tmp_path / "set", workers=2)
    assert list((tmp_path / "set").glob("train-*.tar")) and not (tmp_path / "set" / "manifest.json").exists()
    whole.write_bytes(good)
    run(texts, bpe_file, tmp_path / "set")
    assert contents(tmp_path / "set") == contents(tmp_path / "calm")


def prep_command(corpus: Path, tokenizer: Path, out: Path, *more: str) -> list[str]:
    options = ["--pack.sequence-length", "64", "--block-rows", "16", "--shard-mb", "2"]
    return [str(REMASK), "prep", str(corpus), "--tokenizer", str(tokenizer), "--out", str(out), *options, *more]


@pytest.fixture(scope="module")
def large_corpus(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 60 MB, so that a run takes seconds and has thirty items."""
    file = tmp_path_factory.mktemp("large") / "corpus.jsonl"
    with file.open("w") as out:
        for copy in range(60):
            for text in DOCUMENTS:
                out.write(json.dumps({"text": f"Copy {copy}. {text}"}) + "\n")
    return file


@pytest.mark.dist
def test_local_processes_mpi_ranks_and_ten_kills_give_the_same_bytes(large_corpus: Path, bpe_file: Path, tmp_path: Path) -> None:
    subprocess.run(prep_command(large_corpus, bpe_file, tmp_path / "calm"), check=True, capture_output=True, timeout=240)
    expected = contents(tmp_path / "calm")
    assert len(expected) > 40

    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = ["mpirun", *as_root, "--oversubscribe", "-n", "3"]
    subprocess.run([*mpirun, *prep_command(large_corpus, bpe_file, tmp_path / "mpi")], check=True, capture_output=True, timeout=240)
    assert contents(tmp_path / "mpi") == expected

    moments = random.Random(1)  # noqa: S311
    killed = 0
    while killed < 10:
        process = subprocess.Popen(
            prep_command(large_corpus, bpe_file, tmp_path / "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(moments.uniform(0.8, 3.5))
        if process.poll() is not None:
            shutil.rmtree(tmp_path / "killed")  # it had ended: begin anew, so that ten kills are kills
            continue
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
    subprocess.run(prep_command(large_corpus, bpe_file, tmp_path / "killed"), check=True, capture_output=True, timeout=240)
    assert contents(tmp_path / "killed") == expected


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_room(
    corpus: Path, bpe_file: Path, small_disk: Path, remask: Remask, tmp_path: Path
) -> None:
    command = prep_command(corpus, bpe_file, small_disk / "set")[1:]
    full = remask(*command)
    assert full.returncode == 2
    assert f"{small_disk / 'set'}: No space left on device; what is done is kept" in full.stderr.splitlines()[-1]
    assert "ERROR" not in full.stderr
    assert not (small_disk / "set" / "manifest.json").exists()
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert remask(*command).returncode == 0
    assert remask(*prep_command(corpus, bpe_file, tmp_path / "calm")[1:]).returncode == 0
    assert contents(small_disk / "set") == contents(tmp_path / "calm")


def test_a_read_only_target_is_one_sentence(corpus: Path, bpe_file: Path, small_disk: Path, remask: Remask) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    result = remask(*prep_command(corpus, bpe_file, small_disk / "set")[1:])
    assert result.returncode == 2 and "cannot be written (Read-only file system)" in result.stderr


def test_verify_names_what_is_wrong_and_prep_mends_it(corpus: Path, bpe_file: Path, remask: Remask, tmp_path: Path) -> None:
    command = prep_command(corpus, bpe_file, tmp_path / "set")[1:]
    made = remask(*command)
    assert made.returncode == 0 and "dropped duplicate: 2" in made.stdout and "corpus.jsonl, line 502" in made.stdout
    report = json.loads((tmp_path / "set" / "report.json").read_text())
    assert report["dropped"]["broken-json"] == 1
    bars = re.findall(r"^rows of +(\d+) to +(\d+) tokens: +([\d,]+) *(#*)$", made.stdout, re.MULTILINE)
    assert sum(int(count.replace(",", "")) for _, _, count, _ in bars) == report["rows"]["train"] > 0
    assert int(bars[-1][1]) >= 62 and 36 <= sum(len(bar) for *_, bar in bars) <= 44
    verify = ["prep", "--verify", "--out", "set"]
    assert remask(*verify).stdout.endswith("rows are as they were written\n")
    shard = tmp_path / "set" / "train-00000.tar"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    altered = remask(*verify)
    assert altered.returncode == 2 and "train-00000.tar: altered since it was written" in altered.stderr
    shard.write_bytes(data[:-512])
    assert "bytes were written" in remask(*verify).stderr.replace(str(len(data)), "bytes")
    shard.unlink()
    assert "train-00000.tar: missing" in remask(*verify).stderr
    assert remask(*command).returncode == 0 and remask(*verify).returncode == 0
    other = json.loads((tmp_path / "set" / "tokenizer.json").read_text())
    (tmp_path / "set" / "tokenizer.json").write_text(json.dumps(other))
    (tmp_path / "set" / "train-00099.tar").touch()
    result = remask(*verify)
    assert "tokenizer.json: not the one" in result.stderr and "train-00099.tar: the manifest does not know it" in result.stderr


@pytest.mark.parametrize("fault", ["altered", "cut", "missing"])
def test_a_shard_that_changed_between_runs_is_named_and_made_again(
    corpus: Path, bpe_file: Path, remask: Remask, tmp_path: Path, fault: str
) -> None:
    command = prep_command(corpus, bpe_file, tmp_path / "set")[1:]
    assert remask(*command).returncode == 0
    before = contents(tmp_path / "set")
    shard = tmp_path / "set" / "train-00000.tar"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    if fault == "missing":
        shard.unlink()
    else:
        shard.write_bytes(data if fault == "altered" else data[:-512])
    again = remask(*command)
    told = {"altered": "altered since it was written", "cut": "bytes", "missing": "missing"}[fault]
    assert again.returncode == 0 and re.search(rf"train-00000\.tar: .*{told}.*; it is made again", again.stderr)
    assert contents(tmp_path / "set") == before


def test_partial_files_of_a_killed_run_go_and_a_touched_corpus_is_told(
    corpus: Path, bpe_file: Path, remask: Remask, tmp_path: Path
) -> None:
    text = tmp_path / "c.jsonl"
    text.write_bytes(corpus.read_bytes())
    command = prep_command(text, bpe_file, tmp_path / "set")[1:]
    assert "written to since" not in remask(*command).stderr
    for name in (".train-00000.tar.1.partial", ".prep/.tokens-00000.spool.1.partial"):
        (tmp_path / "set" / name).touch()
    os.utime(text)
    assert "c.jsonl: written to since this folder was begun" in remask(*command).stderr
    assert not list((tmp_path / "set").rglob("*.partial"))
    (tmp_path / "set" / ".prep" / "plan.json").unlink()
    refused = remask(*command, "--pack.mode", "doc-sentences")
    assert refused.returncode == 2 and "nobody knows what the folder was made for" in refused.stderr


def test_an_estimate_is_close_and_keeps_nothing(large_corpus: Path, bpe_file: Path, remask: Remask, tmp_path: Path) -> None:
    told = remask(*prep_command(large_corpus, bpe_file, tmp_path / "set")[1:], "--estimate").stdout
    megabytes = large_corpus.stat().st_size / 1e6
    tokens = int(re.search(r"([\d,]+) tokens", told).group(1).replace(",", ""))  # type: ignore[union-attr]
    assert f"{megabytes:,.0f} MB of corpus" in told and "core-hours" in told
    ids = sum(len(encoding.ids) for encoding in Tokenizer.from_file(str(bpe_file)).encode_batch([f"Copy 1. {text}" for text in DOCUMENTS]))
    assert tokens == pytest.approx(60 * (ids + len(DOCUMENTS)), rel=0.05)
    assert not (tmp_path / "set").exists()


def test_chinese_words_reach_the_shards(remask: Remask, tmp_path: Path) -> None:
    text = "我来到北京清华大学。今天天气很好。"
    (tmp_path / "zh.jsonl").write_text(json.dumps({"text": text}) + "\n")
    (tmp_path / "train.jsonl").write_text((json.dumps({"text": text}) + "\n") * 3)
    (tmp_path / "words.txt").write_text("来到北京\n")
    assert remask("tokenizer", "train", "train.jsonl", "--kind", "wordpiece", "--vocab-size", "40", "--out", "t.json").returncode == 0
    found = {}
    for name, options in {"off": [], "on": ["--chinese-words"], "mine": ["--word-list", "words.txt"]}.items():
        result = remask("prep", "zh.jsonl", "--tokenizer", "t.json", "--out", name, "--clean.validation-share", "0", *options)
        assert result.returncode == 0, result.stderr
        (sample,) = blocks(tmp_path / name, manifest.read(tmp_path / name).train)
        found[name] = np.unpackbits(sample["words.npy"])[: len(sample["ids.npy"])].tolist()
    # rjieba: 我 来到 北京 清华大学 。 今天天气 很 好 。 and then the separator
    assert found["off"] == [1] * 18
    assert found["on"] == [1, 1, 0, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1]
    assert found["mine"] == [1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("damage", ["item-00000.json", "keys-00000.npy", "manifest.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"garbage"])
def test_a_damaged_file_of_ours_is_made_again(
    corpus: Path, bpe_file: Path, remask: Remask, tmp_path: Path, damage: str, content: bytes | None
) -> None:
    command = prep_command(corpus, bpe_file, tmp_path / "set")[1:]
    assert remask(*command).returncode == 0
    before = contents(tmp_path / "set")
    file = next((tmp_path / "set").rglob(damage))
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    if damage == "keys-00000.npy":
        (tmp_path / "set" / "manifest.json").unlink()  # without it nobody needs the keys
    again = remask(*command)
    assert again.returncode == 0, again.stderr
    assert contents(tmp_path / "set") == before
    assert remask("prep", "--verify", "--out", "set").returncode == 0


@pytest.mark.parametrize("fault", ["cut", "gone", "altered", "header", "counts"])
def test_tokens_that_are_not_whole_are_made_again(
    corpus: Path, bpe_file: Path, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash of the machine between encoding and packing."""
    run(corpus, bpe_file, tmp_path / "calm")
    real = prep._duplicates

    def crash(jobs: list[Any], config: Any) -> Any:
        for job in jobs[::2]:
            size = job.tokens_file.stat().st_size
            if fault == "gone":
                job.tokens_file.unlink()
            elif fault == "counts":
                job.counts_file.write_text("{}")
            elif fault == "cut":
                os.truncate(job.tokens_file, size // 2)
            else:
                with job.tokens_file.open("r+b") as file:
                    file.seek(60 if fault == "header" else size // 2)
                    file.write(b"\x07")
        return real(jobs, config)

    monkeypatch.setattr(prep, "_duplicates", crash)
    run(corpus, bpe_file, tmp_path / "set")
    assert contents(tmp_path / "set") == contents(tmp_path / "calm")
    assert not list((tmp_path / "set").rglob("*.spool"))


def test_a_run_goes_on_when_only_items_without_a_good_document_are_left(bpe_file: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    good.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS[:300]))
    bad.write_text("not json\n" * 20_000)
    run(tmp_path, bpe_file, tmp_path / "set")
    before = contents(tmp_path / "set")
    last = max((tmp_path / "set" / ".prep").glob("item-*.json"))
    last.unlink()
    (tmp_path / "set" / "manifest.json").unlink()
    run(tmp_path, bpe_file, tmp_path / "set")
    assert contents(tmp_path / "set") == before


def test_strict_is_not_satisfied_by_what_an_earlier_run_let_pass(corpus: Path, bpe_file: Path, tmp_path: Path) -> None:
    run(corpus, bpe_file, tmp_path)
    with pytest.raises(InputError, match="1 x broken-json, 1 x empty, 1 x text-not-a-string"):
        run(corpus, bpe_file, tmp_path, strict=True)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", [], "the corpus is empty"),
        ("", ["--estimate"], "the corpus is empty"),
        ("nothing\n", [], "no document of the corpus can be used: broken-json, first at"),
        ('{"text": "good"}', ["--field", "body"], "no document of the corpus can be used: no-text, first at"),
        ('{"text": "good"}', ["--shard-mb", "99999999999999999999"], "--shard-mb: 99999999999999999999 was given"),
        ('{"text": "good"}', ["--pack.seed", "-1"], "seed: -1 was given"),
        ('{"text": "good"}', ["--word-list", "missing.txt"], "--word-list: missing.txt cannot be read"),
    ],
)
def test_a_corpus_that_gives_nothing_is_one_sentence(
    bpe_file: Path, remask: Remask, tmp_path: Path, text: str, options: list[str], said: str
) -> None:
    (tmp_path / "c.jsonl").write_text(text)
    result = remask("prep", "c.jsonl", "--tokenizer", str(bpe_file), "--out", "set", *options)
    assert result.returncode == 2 and said in result.stderr.splitlines()[-1]
    assert not (tmp_path / "set" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", [], "no document of the sample can be used: the files have no bytes"),
        ('{"no": 1}', [], "no document of the sample can be used: no-text"),
        (
            '{"text": "the quick brown fox jumps over a lazy dog"}',
            ["--kind", "unigram", "--vocab-size", "10"],
            "cannot be trained on this text",
        ),
        (
            '{"text": "the quick brown fox jumps over a lazy dog"}',
            ["--kind", "wordpiece", "--vocab-size", "10"],
            "the characters of this text alone take 5",
        ),
        ('{"text": "few words"}', ["--vocab-size", "99999999999999999999"], "--vocab-size: 99999999999999999999 was given"),
        ('{"text": "few words"}', ["--lowercase"], "--lowercase goes with wordpiece and unigram"),
    ],
)
def test_a_tokenizer_that_cannot_be_trained_is_one_sentence(
    remask: Remask, tmp_path: Path, text: str, options: list[str], said: str
) -> None:
    (tmp_path / "c.jsonl").write_text(text)
    result = remask("tokenizer", "train", "c.jsonl", "--out", "t.json", *options)
    assert result.returncode == 2 and said in result.stderr.splitlines()[-1]
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [("{}", "is not a tokenizer.json"), ('{"model": {"vocab": {}}}', "tokenizer"), ("[1]", "is not a tokenizer.json")],
)
def test_a_file_that_is_no_tokenizer_is_one_sentence(remask: Remask, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "t.json").write_text(content)
    (tmp_path / "c.jsonl").write_text('{"text": "good"}')
    result = remask("prep", "c.jsonl", "--tokenizer", "t.json", "--out", "set")
    assert result.returncode == 2 and said in result.stderr


def test_near_duplicates_are_dropped_when_asked_for(bpe_file: Path, remask: Remask, tmp_path: Path) -> None:
    long = " ".join(f"word{i}" for i in range(500))
    texts = [long, long.replace("word250", "other"), "Something else, that nobody wrote before.", long]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = prep_command(tmp_path / "corpus.jsonl", bpe_file, tmp_path / "set")[1:]
    result = remask(*command, "--clean.near-duplicates", "0.7", "--clean.validation-share", "0")
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "set" / "report.json").read_text())["dropped"] == {"duplicate": 1, "near-duplicate": 1}


def test_two_runs_in_one_folder_do_not_meet(corpus: Path, bpe_file: Path, remask: Remask, tmp_path: Path) -> None:
    with locked(tmp_path / "set"):
        result = remask(*prep_command(corpus, bpe_file, tmp_path / "set")[1:])
    assert result.returncode == 2 and "another remask is at work in this folder" in result.stderr
