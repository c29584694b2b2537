"""Count the lines of tests and of code, and say whether the tests are within their aim.

The tests of commit 8c2565f0 had 83,645 lines. Of them, 72,000 may be left, and what came since may
have 1.3 lines of tests for each of its own. Lines of Python, SQL and whatever else the tests run
count as they stand in the files that git tracks or would track. `make figures` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.check_house import tracked

ROOT = Path(__file__).resolve().parents[1]

#: The folders of each kind of code, their files, and the lines of commit 8c2565f0.
PLATFORM = ("penstock", "ops", "resources", "consumers", "dagster_project")
KINDS = {
    "the platform": (PLATFORM, "*.py", 53_413),
    "SQL": (("sql",), "*.sql", 30_216),
    "tools and benchmarks": (("tools", "benchmarks", "examples"), "*.py", 10_459),
}
_LEFT = 72_000
_FOR_EACH_NEW_LINE = 1.3


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of the tests, and of each kind of code."""

    tests: int
    code: dict[str, int]

    def most(self, *kinds: str) -> int:
        """How many lines the tests may have, where these kinds of code count."""
        new = sum(self.code[kind] - KINDS[kind][2] for kind in kinds)
        return round(_LEFT + _FOR_EACH_NEW_LINE * new)


def lines(root: Path = ROOT) -> Lines:
    """Count them."""
    paths = [path.relative_to(root) for path in tracked(root)]
    code = {
        kind: _count(root, (each for each in paths if each.parts[0] in where and each.match(files)))
        for kind, (where, files, _) in KINDS.items()
    }
    return Lines(_count(root, (path for path in paths if path.parts[0] == "tests")), code)


def _count(root: Path, paths: Iterable[Path]) -> int:
    texts = ((root / path).read_bytes() for path in paths)
    return sum(text.count(b"\n") for text in texts if b"\0" not in text)  # Parquet has no lines


def told(found: Lines) -> list[str]:
    """A line for each figure."""
    said = [f"{found.tests:9,} lines of tests"]
    for kind, (_, _, before) in KINDS.items():
        said.append(f"{found.code[kind]:9,} lines of {kind}, {before:,} of them at 8c2565f0")
    for of, kinds in (("the platform and SQL", [*KINDS][:2]), ("all code", [*KINDS])):
        most = found.most(*kinds)
        verdict = "met" if found.tests <= most else f"missed by {found.tests - most:,}"
        said.append(f"{most:9,} lines of tests are the aim by {of}: {verdict}")
    return said
