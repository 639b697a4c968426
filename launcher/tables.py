"""Plain text tables that keep every letter, in a pipe as on a terminal."""

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[str] = ()) -> str:
    """Columns as wide as their widest cell; the numeric ones stand to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    aligns = [">" if name in numeric else "<" for name in header]
    lines = ["  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(row, aligns, widths, strict=True)) for row in [header, *rows]]
    return "\n".join(line.rstrip() for line in lines)
