"""docs/evidence/invariants.md is what the markers of the tests say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import invariants_page
from tools.made import Stale

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"`tests/[^`]+`")
#: What may be a name: it has a bar below, or a capital inside.
NAME = re.compile(r"\b(?:\w+_\w+|_\w+|[A-Za-z]*[a-z][A-Z]\w*)\b")


def test_the_page_is_made() -> None:
    """A renamed or deleted test leaves no claim behind."""
    assert invariants_page.main(["--check"]) == 0, "run python -m tools.invariants_page"


#: Only processes over minutes show these.
ALL_LONG = {"Dagster alone is enough", "F22", "L2, L8", "L9", "the images"}


def test_each_promise_has_a_test_of_every_day() -> None:
    """Its long forms are beside that."""
    found = invariants_page.proofs()
    every_day = {each.promise for each in found if not each.is_long}
    assert {each.promise for each in found} - every_day == ALL_LONG


def test_every_guard_that_is_named_is_there() -> None:
    """A function that was renamed leaves no old name behind."""
    folders = ("penstock", "sql", "ops", "consumers", "resources", "dagster_project", "tests")
    files = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    texts = (path.read_text("utf-8") for path in files if path.suffix in {".py", ".sql"})
    words = {word for text in texts for word in re.findall(r"\w+", _unmarked(text))}
    page = invariants_page.PAGE.read_text("utf-8")
    rows = [TEST.sub("", line) for line in page.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in NAME.findall(row)}
    assert len(named) > 100
    assert named - words == set()


def _unmarked(text: str) -> str:
    """What a marker says is no name of the code."""
    return re.sub(r"^@proves\(.*?\)$", "", text, flags=re.MULTILINE | re.DOTALL)


SUITE = """
from tests.kit.proof import proves

@proves("S1 to S3 of a kept cursor", guard="keeps")
def test_one(): pass

@proves("S13")
def test_other(): pass

def test_nothing(): pass
"""


def test_a_promise_chooses_its_tests(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    command = ["-m", "pytest", "-v", "-p", "tests.kit.proof", "--proves", "S2", str(tmp_path)]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert re.findall(r"::(\w+) PASSED", done.stdout) == ["test_one"]


@pytest.mark.parametrize("asked", ["S1", "S3", "Cursor", "S13", "S1 to"])
def test_a_promise_is_asked_for_by_number_or_word(asked: str) -> None:
    names = ["S1 to S3 of a kept cursor", "S13"]
    found = [name for name in names if invariants_page.is_about(name, asked)]
    assert found == names[asked == "S13" :][:1]


def _proof(promise: str, test: str, guard: str = "") -> invariants_page.Proof:
    return invariants_page.Proof(promise, test, guard, "", False, 3)


def test_a_row_names_what_proves_it() -> None:
    promise = invariants_page.Promise("invariants", "S1", "it holds", "")
    found = [_proof("S1", "t::a"), _proof("S1", "t::b", "it"), _proof("S1", "t::c", "it")]
    assert invariants_page.table([promise], found).endswith(
        "| S1 | it holds | `t::a` | it: `t::b`, `t::c` |"
    )
    assert invariants_page.table([promise], found[:1]).endswith("| `t::a` | no mutant |")
    with pytest.raises(Stale, match="S1"):
        invariants_page.table([promise], found[1:])


def test_a_promise_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a marker nor a row that was written by hand goes without a promise."""
    page = invariants_page.PAGE.read_text("utf-8")
    with pytest.raises(Stale, match="'by hand'"):
        invariants_page.made(page + "\n| by hand | holds | `tests/test_a.py::test_a` | none |\n")
    monkeypatch.setattr(invariants_page, "proofs", lambda: [_proof("strange", "t::a")])
    with pytest.raises(Stale, match="'strange'"):
        invariants_page.made(page)
