"""docs/evidence/invariants.md names only tests and guards that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.check_coverage import has_test

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"`(tests/[^`]+\.py::\w+)`")


def test_every_test_that_is_named_is_there() -> None:
    """A renamed or deleted test leaves no claim behind."""
    named = TEST.findall((ROOT / "docs" / "evidence" / "invariants.md").read_text(encoding="utf-8"))
    assert len(named) > 60
    assert [node for node in named if not has_test(node, ROOT)] == []


def _tables() -> list[list[list[str]]]:
    """The cells of each row of each table: no cell has a bar."""
    page = (ROOT / "docs" / "evidence" / "invariants.md").read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
    return [
        [
            [cell.strip() for cell in line[1:].rstrip().removesuffix("|").split(" |")]
            for line in block
        ]
        for block in blocks
    ]


def test_every_row_has_all_cells_of_its_table() -> None:
    rows = [(len(head), row) for head, _, *rows in _tables() for row in rows]
    assert [row for width, row in rows if len(row) != width] == []
    assert [row for _, row in rows if not row[-1]] == []


#: What may be a name: it has a bar below, or a capital inside.
NAME = re.compile(r"\b(?:\w+_\w+|_\w+|[A-Za-z]*[a-z][A-Z]\w*)\b")


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Every word of the code."""
    folders = (
        "penstock",
        "sql",
        "ops",
        "consumers",
        "resources",
        "dagster_project",
        "tests",
        "tools",
    )
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".sql"} and path.name != Path(__file__).name
    ]
    return {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def test_every_guard_that_is_named_is_there(words: set[str]) -> None:
    """A function that was renamed leaves no old name behind."""
    cells = [cell for table in _tables() for row in table for cell in row]
    named = {name for cell in cells for name in NAME.findall(TEST.sub("", cell))}
    assert len(named) > 100
    assert named - words == set()
