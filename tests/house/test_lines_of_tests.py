"""How many lines the tests have, and may have."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.lines_of_tests import KINDS, Lines, lines, told


def test_new_code_may_have_more_tests(tmp_path: Path) -> None:
    for folder, text in (("tests/a", "1\n2\n"), ("penstock", "1\n"), ("sql/mysql", "1\n2\n3\n")):
        (tmp_path / folder).mkdir(parents=True)
        name = "a.sql" if folder.startswith("sql") else "a.py"
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "tests" / "data.parquet").write_bytes(b"\0\n")
    (tmp_path / ".gitignore").write_text("made.json\n")
    (tmp_path / "tests" / "made.json").write_text("1\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    found = lines(tmp_path)
    assert (found.tests, [*found.code.values()]) == (2, [1, 3, 0])
    before = {kind: count for kind, (_, _, count) in KINDS.items()}
    grown = Lines(72_130, before | {"SQL": before["SQL"] + 100})
    assert grown.most("SQL") == 72_130
    assert sum(": met" in each for each in told(grown)) == 2
    assert ": missed by 1" in told(Lines(72_131, grown.code))[-1]


def test_the_tests_are_within_their_aim() -> None:
    """New code brings at most 1.3 lines of tests for each of its own."""
    found = lines()
    assert found.tests <= found.most(*KINDS)
