"""The coverage page is checked.  A bad page for each class of fault shows that it is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_coverage

ROOT = Path(__file__).resolve().parents[2]

SUITE = """
def test_function() -> None: ...


async def test_async() -> None: ...


def helper() -> None:
    def test_nested() -> None: ...


class TestGroup:
    def test_method(self) -> None: ...
"""


def page(changes: dict[str, str | None] | None = None, *extra: str) -> str:
    """A good page, all open; `changes` give single numbers another status, or no row at all."""
    statuses = dict.fromkeys(check_coverage.required_numbers(), "open") | (changes or {})
    rows = [
        f"| {number} | some words | {status} |" for number, status in statuses.items() if status
    ]
    head = ["# Coverage", "", "| number | what it is | status |", "|---|:---|---:|"]
    return "\n".join([*head, *rows, *extra])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with one small test file, and one that does not parse."""
    folder = tmp_path / "tests" / "log"
    folder.mkdir(parents=True)
    (folder / "test_one.py").write_text(SUITE, encoding="utf-8")
    (folder / "test_broken.py").write_text("def test_function(:\n", encoding="utf-8")
    return tmp_path


def test_the_ranges_are_those_of_the_five_seeds() -> None:
    numbers = check_coverage.required_numbers()
    assert len(numbers) == len(set(numbers)) == 191
    assert {"B-F1", "B-F50", "P-T4", "O-F22", "R-F31", "C-T12"} <= set(numbers)
    assert "B-F0" not in numbers


@pytest.mark.parametrize(
    "status",
    [
        "open",
        "open (issue 4)",
        "replaced by one row per event, because a second write costs throughput",
        "`tests/log/test_one.py::test_function`",
        "`tests/log/test_one.py::test_async`",
        "`tests/log/test_one.py::TestGroup::test_method`",
        "`tests/log/test_one.py::test_function`, `tests/log/test_one.py::test_async`",
    ],
)
def test_a_good_status_is_no_fault(status: str, tree: Path) -> None:
    assert check_coverage.check(page({"B-F1": status}), tree) == []


def test_a_number_without_a_row_is_named(tree: Path) -> None:
    assert check_coverage.check(page({"R-F31": None}), tree) == ["R-F31: no row"]


def test_every_missing_number_is_named_on_an_empty_page(tree: Path) -> None:
    faults = check_coverage.check("# Coverage\n", tree)
    assert faults == [f"{number}: no row" for number in check_coverage.required_numbers()]


def test_a_row_twice_is_named(tree: Path) -> None:
    faults = check_coverage.check(page(None, "| C-T1 | again | open |"), tree)
    assert faults == ["C-T1: 2 rows"]


@pytest.mark.parametrize("number", ["B-F51", "B-F0", "B-F01", "B-W1", "X-F1", "b-f1", "`B-F1`"])
def test_an_unknown_number_is_named_with_its_line(number: str, tree: Path) -> None:
    text = page(None, f"| {number} | some words | open |")
    line = len(text.splitlines())
    assert check_coverage.check(text, tree) == [f"{number}: unknown number (line {line})"]


def test_a_row_without_a_number_is_a_fault(tree: Path) -> None:
    (fault,) = check_coverage.check(page(None, "| | some words | open |"), tree)
    assert fault.startswith("(empty): unknown number")


@pytest.mark.parametrize(
    "status",
    [
        "done",
        "yes",
        "Open",
        "open (issue)",
        "open (issue 0)",
        "open, nearly there",
        "replaced by something better",
        "replaced by , because",
        "because",
        "tests/log/test_one.py::test_function",
        "`tests/log/test_one.py`",
        "`tests/log/test_one.py::helper`",
        "`log/test_one.py::test_function`",
        "`tests/../tests/log/test_one.py::test_function`",
        "`tests/log/test_one.py::test_function` and more",
    ],
)
def test_a_status_of_no_known_form_is_named(status: str, tree: Path) -> None:
    (fault,) = check_coverage.check(page({"O-F7": status}), tree)
    assert fault.startswith(f"O-F7: status {status!r} is none of: ")


def test_an_empty_status_is_named(tree: Path) -> None:
    text = page({"O-F7": None}, "| O-F7 | some words | |")
    (fault,) = check_coverage.check(text, tree)
    assert fault.startswith("O-F7: status '' is none of: ")


@pytest.mark.parametrize(
    "node",
    [
        "tests/log/test_missing.py::test_function",
        "tests/log/test_one.py::test_renamed",
        "tests/log/test_one.py::test_nested",
        "tests/log/test_one.py::test_method",
        "tests/log/test_one.py::TestGroup::test_function",
        "tests/log/test_one.py::TestOther::test_method",
        "tests/log/test_broken.py::test_function",
    ],
)
def test_a_named_test_that_does_not_exist_is_named(node: str, tree: Path) -> None:
    good = "`tests/log/test_one.py::test_function`"
    faults = check_coverage.check(page({"P-T3": f"{good}, `{node}`"}), tree)
    assert faults == [f"P-T3: no test {node}"]


@pytest.mark.parametrize("row", ["| B-F1 | some words |", "| B-F1 | some | words | open |"])
def test_a_row_of_another_shape_is_named(row: str, tree: Path) -> None:
    (fault,) = check_coverage.check(page(None, row), tree)
    assert "cells, wanted 3" in fault


def test_a_row_that_says_nothing_is_named(tree: Path) -> None:
    faults = check_coverage.check(page({"B-F2": None}, "| B-F2 | | open |"), tree)
    assert faults == ["B-F2: says nothing about what it is"]


def test_an_escaped_bar_is_no_border(tree: Path) -> None:
    text = page({"B-F2": None}, r"| B-F2 | json\|text | open |")
    assert check_coverage.check(text, tree) == []


def test_the_command_names_every_fault_and_exits_with_one(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tree / "docs" / "evidence"
    docs.mkdir(parents=True)
    (docs / "coverage.md").write_text(page({"B-F1": None, "B-F2": "done"}), encoding="utf-8")
    assert check_coverage.main(tree) == 1
    shown = capsys.readouterr().err
    assert "docs/evidence/coverage.md: B-F1: no row" in shown
    assert "docs/evidence/coverage.md: B-F2: status 'done'" in shown


def test_the_command_counts_a_good_page(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = tree / "docs" / "evidence"
    docs.mkdir(parents=True)
    proof = "`tests/log/test_one.py::test_function`"
    text = page({"B-F1": proof, "B-F2": "replaced by a, because b"})
    (docs / "coverage.md").write_text(text, encoding="utf-8")
    assert check_coverage.main(tree) == 0
    assert "191 numbers: 1 proven, 1 replaced, 189 open" in capsys.readouterr().out


def test_the_command_says_that_the_page_is_missing(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_coverage.main(tree) == 1
    assert "no such page" in capsys.readouterr().err


def test_the_page_of_this_checkout_is_good() -> None:
    text = (ROOT / check_coverage.PAGE).read_text(encoding="utf-8")
    assert check_coverage.check(text, ROOT) == []


def test_the_readme_counts_the_same() -> None:
    """The sentence of the README is the command's summary, wherever its lines break."""
    counted = check_coverage.summary((ROOT / check_coverage.PAGE).read_text(encoding="utf-8"))
    assert counted in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
