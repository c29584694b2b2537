"""Write the tables of `docs/evidence/invariants.md` from the markers of the tests.

`tests/promises.toml` says what holds. A test names what it proves: `@proves("S21")`. A test that
takes a guard out, and shows that the promise breaks, names the guard too:
`@proves("S21", guard="loaded_by")`.

Run it as `python -m tools.invariants_page`; with `--check` it writes nothing and exits with 1 when
the page is stale.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.made import Stale, fill

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "evidence" / "invariants.md"
PROMISES = ROOT / "tests" / "promises.toml"
_HEAD = [
    "| promise | what holds | test | the guard, and what happens without it |",
    "|---|---|---|---|",
]
#: A fault is no guard: what keeps the promises over it has rows of its own.
_NO_GUARD = {"invariants": "no mutant", "faults": "-"}


@dataclass(frozen=True, slots=True)
class Promise:
    """One table of the file: its name, what holds, and guards that are shown in other ways."""

    table: str
    name: str
    holds: str
    guards: str


@dataclass(frozen=True, slots=True)
class Proof:
    """One marker on a test."""

    promise: str
    test: str
    guard: str
    how: str
    is_long: bool
    lines: int


def promises() -> list[Promise]:
    """Every promise, in the order of the file."""
    tables = tomllib.loads(PROMISES.read_text("utf-8"))
    return [
        Promise(table, name, row["holds"], row.get("guards", ""))
        for table, rows in tables.items()
        for name, row in rows.items()
    ]


@functools.cache
def proofs(root: Path = ROOT) -> list[Proof]:
    """Every marker of every test, by file and line.  No test is imported."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return [
        proof
        for file in files
        if "proves(" in (text := file.read_text("utf-8"))
        for proof in _in(text, file.relative_to(root).as_posix())
    ]


def _in(text: str, file: str) -> Iterator[Proof]:
    tree = ast.parse(text)
    is_long_file = any(_marks_the_file_long(node) for node in tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = {ast.unparse(each) for each in node.decorator_list}
            is_long = is_long_file or "pytest.mark.long" in marks
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 + len(node.decorator_list)
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "proves":
                    (promise,) = (ast.literal_eval(each) for each in call.args)
                    said = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
                    guard, how = said.get("guard", ""), said.get("how", "")
                    yield Proof(promise, f"{file}::{node.name}", guard, how, is_long, lines)


def _marks_the_file_long(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and any(ast.unparse(each) == "pytest.mark.long" for each in ast.walk(node.value))
    )


def is_about(promise: str, asked: str) -> bool:
    """Whether a promise is meant: its name, one of its numbers (`S1 to S3` has S2), or a word."""
    if not re.fullmatch(r"[A-Z]\d+", asked):
        return asked.lower() in promise.lower()
    spans = re.findall(r"\b([A-Z])(\d+)(?: to \1(\d+))?\b", promise)
    return any(
        letter == asked[0] and int(first) <= int(asked[1:]) <= int(last or first)
        for letter, first, last in spans
    )


def table(rows: Iterable[Promise], found: list[Proof]) -> str:
    """The rows of some promises."""
    lines = [*_HEAD]
    for row in rows:
        own = [each for each in found if each.promise == row.name]
        shown = _grouped((each.how, each) for each in own if not each.guard)
        broken = _grouped((each.guard, each) for each in own if each.guard)
        if not shown:
            raise Stale(f'no test has the marker @proves("{row.name}")')
        guards = "; ".join(filter(None, [broken, row.guards])) or _NO_GUARD[row.table]
        lines.append(f"| {row.name} | {row.holds} | {shown} | {guards} |")
    return "\n".join(lines)


def _grouped(named: Iterable[tuple[str, Proof]]) -> str:
    """Tests by what is said of them, and first those of which nothing is said."""
    groups: dict[str, list[str]] = {"": []}
    for said, proof in named:
        tests = groups.setdefault(said, [])
        text = f"`{proof.test}`" + " (long)" * proof.is_long
        if text not in tests:
            tests.append(text)
    return "; ".join(
        (f"{said}: " if said else "") + ", ".join(tests) for said, tests in groups.items() if tests
    )


def made(page: str) -> str:
    """The page with the tables of today."""
    known, found = promises(), proofs()
    strange = sorted({each.promise for each in found} - {each.name for each in known})
    strange += sorted(set(_rows(page)) - {each.name for each in known})
    if strange:
        raise Stale(f"tests/promises.toml has no promise {', '.join(map(repr, strange))}: add it")
    by_table: dict[str, list[Promise]] = {}
    for each in known:
        by_table.setdefault(each.table, []).append(each)
    return fill(page, {name: table(rows, found) for name, rows in by_table.items()})


def _rows(page: str) -> list[str]:
    """The promises that the tables of a page name."""
    return re.findall(r"^\| (.+?) \|.*tests/", page, re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(prog="python -m tools.invariants_page")
    parser.add_argument("--check", action="store_true", help="only say whether the page is stale")
    given = parser.parse_args(arguments)
    before = PAGE.read_text("utf-8")
    try:
        after = made(before)
    except Stale as error:
        print(f"docs/evidence/invariants.md: {error}", file=sys.stderr)
        return 1
    if before != after and not given.check:
        PAGE.write_text(after, "utf-8")
    return int(given.check and before != after)


if __name__ == "__main__":
    sys.exit(main())
