"""The files of functions: each number is one subject, the same in both dialects."""

from __future__ import annotations

import re
from pathlib import Path

SQL = Path(__file__).resolve().parents[2] / "sql"
DIALECTS = ("postgres", "mysql")
_FILE = re.compile(r"(\d\d)_([a-z_]+)\.sql")
_BLOCK = re.compile(r"^-- name: (\S+)$", re.MULTILINE)
#: What has the same name on both dialects and stands in two places, and why.
TWO_PLACES = {
    "raise_counters": "on MySQL an era begins with it, on PostgreSQL a history",
    "needed_events": "on MySQL a view of the index, on PostgreSQL what a drop asks",
}

#: Files of statements of one dialect, and why.
ONLY_ONE: dict[str, str] = {}


def _subjects(dialect: str) -> dict[str, str]:
    """The name of each subject by its number; no number twice."""
    found: dict[str, str] = {}
    for file in sorted((SQL / dialect / "functions").iterdir()):
        match = _FILE.fullmatch(file.name)
        assert match, f"{file.name} is not NN_subject.sql"
        assert match[1] not in found, f"{dialect}: {match[1]} is {found[match[1]]} and {match[2]}"
        found[match[1]] = match[2]
    assert len(found) == len(set(found.values())), f"{dialect}: a subject has two numbers"
    return found


def _homes(dialect: str) -> dict[str, str]:
    folder = SQL / dialect / "functions"
    return {
        name: file.name for file in folder.iterdir() for name in _BLOCK.findall(file.read_text())
    }


def test_a_number_is_one_subject_and_the_same_on_both_dialects() -> None:
    ours, theirs = _subjects("postgres"), _subjects("mysql")
    for number in ours.keys() & theirs.keys():
        assert ours[number] == theirs[number]
    numbers = {name: number for number, name in ours.items()}
    for number, name in theirs.items():
        assert numbers.get(name, number) == number, f"{name} has two numbers"


def test_a_function_of_both_dialects_stands_in_the_same_file() -> None:
    ours, theirs = _homes("postgres"), _homes("mysql")
    apart = {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}
    assert apart == TWO_PLACES.keys()


def test_both_dialects_have_the_same_files_of_statements() -> None:
    ours, theirs = ({each.name for each in (SQL / dialect).glob("*.sql")} for dialect in DIALECTS)
    assert ours - theirs == ONLY_ONE.keys()
    assert theirs <= ours
