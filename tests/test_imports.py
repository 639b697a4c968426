"""The direction of imports, and what stays out of the fast commands."""

import ast
from pathlib import Path

from conftest import REPOSITORY

# Folder -> the folders of ours whose code it may import.
ALLOWED = {
    "data_prep": {"data_prep"},
    "model": {"model"},
    "ds_configs": set(),
    "slurm": set(),
    "launcher": {"launcher", "data_prep", "model"},
    "benchmarks": {"benchmarks", "launcher", "data_prep", "model"},
}


def violations(root: Path) -> list[str]:
    found = []
    for folder, allowed in ALLOWED.items():
        for file in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_bytes())):
                for imported in imported_folders(node):
                    if imported not in allowed:
                        found.append(f"{file.relative_to(root)}:{node.lineno}: {folder} must not import remask.{imported}")
    return found


def imported_folders(node: ast.AST) -> list[str]:
    """Folder names behind `import remask.x`, `from remask.x import y` and `from remask import x`; relative imports are not used here."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == "remask":
        names = [f"remask.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or "remask.a-relative-import"]
    else:
        names = []
    return [name.split(".")[1] for name in names if name.startswith("remask.")]


def test_imports_follow_the_direction() -> None:
    assert sum(1 for folder in ALLOWED for _ in (REPOSITORY / folder).rglob("*.py")) > 20
    assert violations(REPOSITORY) == []


def test_a_planted_import_is_named_with_file_and_line(tmp_path: Path) -> None:
    for folder in ALLOWED:
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "config.py").write_text("import os\n\ndef f():\n    from remask.launcher import cli\n")
    (tmp_path / "launcher" / "cli.py").write_text("from remask import benchmarks\nimport remask.model.config\n")
    assert violations(tmp_path) == [
        "model/config.py:4: model must not import remask.launcher",
        "launcher/cli.py:1: launcher must not import remask.benchmarks",
    ]


def test_link_tree_has_a_link_for_each_folder() -> None:
    links = {link.name: link.readlink().as_posix() for link in (REPOSITORY / ".typing" / "remask").iterdir()}
    assert links == {folder: f"../../{folder}" for folder in ALLOWED}
