"""Check `docs/evidence/coverage.md`: every feature and test of the seeds has one valid row.

The numbers come from the inventory of the seeds. A fresh clone does not hold it, so the ranges are
written here. A row says one of three things: which tests prove it, what replaces it and why, or
that it is open. A named test must exist in the tree, so that no claim rests on a renamed or deleted
test.

Run it as `python -m tools.check_coverage`; it exits with 1 and names every fault.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGE = Path("docs/evidence/coverage.md")

# Prefix of the numbers -> the last one; each range begins at 1.
RANGES = {
    "B-F": 50,
    "B-T": 15,
    "P-F": 20,
    "P-T": 4,
    "O-F": 22,
    "O-T": 4,
    "R-F": 31,
    "R-T": 6,
    "C-F": 27,
    "C-T": 12,
}

HEADER = ("number", "what it is", "status")
FORMS = (
    "`tests/….py::test_name` (several: comma between), "
    "'replaced by …, because …', 'open' or 'open (issue N)'"
)

_TEST_ID = r"`(tests/(?:\w+/)*test_\w+\.py(?:::Test\w+)?::test_\w+)`"
_TESTS = re.compile(rf"{_TEST_ID}(?:, {_TEST_ID})*")
_REPLACED = re.compile(r"replaced by \S.*, because \S.*")
_OPEN = re.compile(r"open(?: \(issue [1-9]\d*\))?")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the page: its line, its number, what the number is, and its status."""

    line: int
    number: str
    what: str
    status: str


def required_numbers() -> tuple[str, ...]:
    """Every number that must have a row, in the order of the page."""
    return tuple(f"{prefix}{n}" for prefix, last in RANGES.items() for n in range(1, last + 1))


def read_page(text: str) -> tuple[list[Row], list[str]]:
    """Take the rows of all tables out of the page.  A row of another shape is a fault."""
    rows: list[Row] = []
    faults: list[str] = []
    for line, cells in _table_lines(text):
        if len(cells) != len(HEADER):
            faults.append(f"line {line}: {len(cells)} cells, wanted {len(HEADER)}")
        elif cells != HEADER and not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            rows.append(Row(line, *cells))
    return rows, faults


def _table_lines(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    for line, content in enumerate(text.splitlines(), start=1):
        stripped = content.strip()
        if stripped.startswith("|"):
            inner = stripped.removeprefix("|").removesuffix("|")
            yield line, tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", inner))


def number_faults(rows: list[Row]) -> list[str]:
    """Numbers without a row or with two rows, and rows with an unknown number."""
    required = required_numbers()
    known = frozenset(required)
    seen = Counter(row.number for row in rows)
    faults = [f"{number}: no row" for number in required if number not in seen]
    faults += [f"{number}: {count} rows" for number, count in seen.items() if count > 1]
    faults += [
        f"{row.number or '(empty)'}: unknown number (line {row.line})"
        for row in rows
        if row.number not in known
    ]
    return faults


def row_faults(row: Row, root: Path) -> list[str]:
    """What is wrong with one row: no text, no known form of status, or no such test."""
    faults = [] if row.what else [f"{row.number}: says nothing about what it is"]
    if _TESTS.fullmatch(row.status):
        ids: list[str] = re.findall(_TEST_ID, row.status)
        faults += [f"{row.number}: no test {node}" for node in ids if not has_test(node, root)]
    elif not (_REPLACED.fullmatch(row.status) or _OPEN.fullmatch(row.status)):
        faults.append(f"{row.number}: status {row.status!r} is none of: {FORMS}")
    return faults


def has_test(node_id: str, root: Path) -> bool:
    """Whether the file defines that function, or that class with that method."""
    path, _, name = node_id.partition("::")
    file = root / path
    return file.is_file() and name in _functions(file.read_text(encoding="utf-8"))


@cache
def _functions(source: str) -> frozenset[str]:
    """The functions of a file, and the methods of its classes behind the names of these."""
    try:
        return frozenset(_named(ast.parse(source).body))
    except SyntaxError:
        return frozenset()


def _named(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{name}" for name in _named(node.body))


def check(text: str, root: Path) -> list[str]:
    """All faults of a page.  Its tests are looked up under `root`."""
    rows, faults = read_page(text)
    faults += number_faults(rows)
    for row in rows:
        faults += row_faults(row, root)
    return faults


def summary(text: str) -> str:
    """How many numbers are proven, replaced and open.  For a page without faults."""
    rows, _ = read_page(text)
    open_ = sum(1 for row in rows if _OPEN.fullmatch(row.status))
    replaced = sum(1 for row in rows if _REPLACED.fullmatch(row.status))
    proven = len(rows) - open_ - replaced
    return f"{len(rows)} numbers: {proven} proven, {replaced} replaced, {open_} open"


def main(root: Path | None = None) -> int:
    """Check the page of the checkout.  Print the faults, or else the summary."""
    root = root or Path(__file__).resolve().parent.parent
    page = root / PAGE
    if not page.is_file():
        sys.stderr.write(f"{PAGE}: there is no such page\n")
        return 1
    text = page.read_text(encoding="utf-8")
    faults = check(text, root)
    for fault in faults:
        sys.stderr.write(f"{PAGE}: {fault}\n")
    if not faults:
        sys.stdout.write(f"{PAGE}: {summary(text)}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
