"""The frame of the pages that are made from code.

A page that is made whole begins with a mark that names the command by which it is made. On a page
that is written by hand, each made table stands between two marks: `<!-- table: NAME -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = "<!-- table: {} -->"
END = "<!-- end -->"
_WHOLE = "<!-- made by python -m {} -->"
_BEGINS = re.compile(r"<!-- made by python -m [\w.]+ -->\n")
#: The figures of speed have marks of their own: see benchmarks/pages.py.
_TABLES = re.compile(
    r"<!-- table: \S+ -->.*?<!-- end -->|<!-- speed -->.*?<!-- /speed -->", re.DOTALL
)


class Stale(Exception):
    """A page cannot be made now.  The text says why."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the repository, and what makes it of its present text."""

    path: str
    make: Callable[[str], str]


def whole(command: str, *parts: str) -> str:
    """A page that is made whole: its mark, then its parts."""
    return "\n\n".join([_WHOLE.format(command), *(each.strip("\n") for each in parts)]) + "\n"


def fill(page: str, made: Mapping[str, str]) -> str:
    """The page with new tables.  They replace what is between the marks."""
    for name, table in made.items():
        mark = TABLE.format(name)
        before, found, rest = page.partition(mark)
        _, end, after = rest.partition(END)
        if not found or not end:
            raise Stale(f"the page has no place for the table {name}: {mark} ... {END}")
        page = f"{before}{mark}\n\n{table}\n\n{END}{after}"
    return page


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell(each) for each in line)} |" for line in lines)


def lines(text: str) -> str:
    """A paragraph or an item in lines of 100 characters; no line ends inside a code span."""
    indent = "  " if text.startswith("- ") else ""
    words = re.sub(r"`[^`]*`", lambda span: span[0].replace(" ", "\0"), " ".join(text.split()))
    return textwrap.fill(
        words, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ).replace("\0", " ")


def cell(text: str) -> str:
    """A text that can stand in a table, on one line."""
    return " ".join(text.split()).replace("|", r"\|")


def written(page: str) -> str:
    """What of a page is written by hand."""
    return "" if _BEGINS.match(page) else _TABLES.sub("", page)


def main(command: str, pages: Iterable[Page], arguments: Sequence[str] | None = None) -> int:
    """Write the pages that are stale, or with --check name them."""
    parser = argparse.ArgumentParser(prog=f"python -m {command}")
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    given = parser.parse_args(arguments)
    stale = 0
    for page in pages:
        path = ROOT / page.path
        before = path.read_text("utf-8") if path.exists() else ""
        try:
            after = page.make(before)
        except Stale as error:
            print(f"{page.path}: {error}", file=sys.stderr)
            return 1
        if before == after:
            continue
        stale += 1
        if given.check:
            print(f"{page.path} is stale: run python -m {command}", file=sys.stderr)
        else:
            path.write_text(after, "utf-8")
            print(f"{page.path}: written")
    return int(given.check and stale > 0)
