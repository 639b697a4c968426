"""BENCHMARKS.md: the tables of the benchmarks' records between markers; what stands outside of them is kept."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

_TARGETS = ("--json", "--html", "--out", "--page")
INTRODUCTION = """\
# Benchmarks

What `remask bench all` measured: ours and its peers in turn on one machine, ratios with their spread; absolute figures of a shared machine
prove nothing. What each benchmark is and how to run it: [benchmarks/README.md](benchmarks/README.md). The sections between the markers
are written by the command, each when its benchmark ran last; text outside of them is kept.
"""


def updated(page: str, records: Mapping[str, dict[str, Any]]) -> str:
    """The page with a new section for each record, in the place of its old one or behind the others."""
    page = page or INTRODUCTION
    for name, record in records.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        section = f"{begin}\n{section_of(record)}\n{end}"
        old = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", page, re.DOTALL)
        page = page[: old.start()] + section + page[old.end() :] if old else f"{page.rstrip()}\n\n{section}\n"
    return page


def section_of(record: Mapping[str, Any]) -> str:
    """Heading, what it was measured on, and the tables of one record."""
    hardware, versions = record["hardware"], record["versions"]
    gpus = ", ".join(f"{hardware['gpus'].count(name)} x {name}" for name in dict.fromkeys(hardware["gpus"])) or "no GPU"
    about = (
        f"`{command_of(record)}`, {record['time'][:10]}, commit {record['commit']}, {record['seconds']:.0f} s on {hardware['cpu']} "
        f"({hardware['cores']} cores, {hardware['memory_gb']} GB, {gpus}); "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
    )
    return "\n\n".join([f"## {record['benchmark']}", about, *(table_of(table) for table in record["tables"])])


def command_of(record: Mapping[str, Any]) -> str:
    """As somebody else would type it: where the files went is nobody's concern."""
    words, kept = shlex.split(record["command"]), []
    while words:
        word = words.pop(0)
        if word in _TARGETS:
            words = words[1:]
        elif not word.startswith(tuple(f"{target}=" for target in _TARGETS)):
            kept.append(word)
    return shlex.join(kept)


def table_of(table: Mapping[str, Any]) -> str:
    """As Markdown."""
    columns = table["columns"]
    if not columns:  # a remark
        return _plain(table["title"])
    lines = [_line(columns), _line(["---", *("---:" for _ in columns[1:])]), *(_line(row) for row in table["rows"])]
    return "\n\n".join(part for part in (f"### {_plain(table['title'])}", "\n".join(lines), _plain(table["note"])) if part)


def _line(cells: Any) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(text: str) -> str:
    """A cell stays a cell, and a marker none, whatever stands in it."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
