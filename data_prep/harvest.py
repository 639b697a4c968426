"""A corpus that every installation already has: the documentation strings and text files of installed Python packages.

Real English prose with some code in it, enough to show and test the whole path without a download; not a pretraining corpus.
"""

import ast
import importlib.util
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import xxhash

from remask.data_prep.files import written_whole
from remask.data_prep.processes import process_pool

_TEXT_SUFFIXES = (".txt", ".rst", ".md")
_SKIPPED_FOLDERS = {"site-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"}
_MIN_LETTERS = 0.6


@dataclass(frozen=True, kw_only=True)
class Harvest:
    """What a harvest found; `hash` is the corpus file's xxh3."""

    documents: int
    text_bytes: int
    files: int
    """Files looked at, also those without a document."""
    hash: str


def harvest(out: Path, packages: tuple[str, ...], workers: int, progress: Callable[[int, int], None]) -> Harvest:
    """Write one JSON object a line (`text`, `source`) to `out`, in an order that depends on the packages alone.

    `progress` gets (files done, files in all).
    """
    files = [found for package in packages for found in _files_of(package)]
    documents = text_bytes = 0
    digest = xxhash.xxh3_128()
    with process_pool(workers) as pool, written_whole(out) as stream:
        try:
            for done, text in enumerate(pool.map(read_document, [file for _, file in files], chunksize=32), start=1):
                if text:
                    line = orjson.dumps({"text": text, "source": files[done - 1][0]}, option=orjson.OPT_APPEND_NEWLINE)
                    stream.write(line)
                    digest.update(line)
                    documents += 1
                    text_bytes += len(text.encode())
                progress(done, len(files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return Harvest(documents=documents, text_bytes=text_bytes, files=len(files), hash=digest.hexdigest())


def read_document(file: Path) -> str:
    """The prose of one file: its documentation strings, or the paragraphs of a text file; empty when there is none."""
    try:
        data = file.read_bytes()
        parts = list(_docstrings(data)) if file.suffix == ".py" else [data.decode()]
    except (OSError, SyntaxError, ValueError, RecursionError):  # not readable, or not text: the next file has more
        return ""
    return "\n\n".join(paragraph for part in parts for paragraph in _prose(part))


def _docstrings(source: bytes) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in others' code
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _prose(text: str) -> Iterator[str]:
    """Paragraphs of at least five words that are mostly letters: no tables, rulers or interpreter sessions."""
    for paragraph in text.split("\n\n"):
        words = paragraph.split()
        letters = sum(map(str.isalpha, paragraph))
        if len(words) >= 5 and not words[0].startswith(">>>") and letters >= _MIN_LETTERS * len(paragraph):
            yield " ".join(words)


def _files_of(package: str) -> list[tuple[str, Path]]:
    """(source, file) of a package's Python and text files; the name `python` stands for the standard library."""
    root = Path(sysconfig.get_path("stdlib")) if package == "python" else _folder_of(package)
    found = (file for file in root.rglob("*") if file.suffix == ".py" or file.suffix in _TEXT_SUFFIXES)
    wanted = (file for file in found if not _SKIPPED_FOLDERS & set(file.relative_to(root).parts))
    return [(f"{package}/{file.relative_to(root).as_posix()}", file) for file in sorted(wanted)]


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"the package {package} is not installed", name=package)
    return Path(next(iter(spec.submodule_search_locations)))
