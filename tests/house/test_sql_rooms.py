"""The rooms of the SQL: the same files on both dialects, and what is public stands apart."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from penstock.database import catalog
from penstock.database.denied import _roles

SQL = Path(__file__).resolve().parents[2] / "sql"
DIALECTS = ("postgres", "mysql")
_MADE = re.compile(
    r"^ *CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE|SQL SECURITY INVOKER VIEW) [`\"]?(\w+)", re.M
)

#: Public functions that no role may call: they compute something, and read nothing.
OF_NO_ROLE = {"event_digest", "partition_of"}
#: Files of statements of one dialect, and why.
ONLY_ONE: dict[str, str] = {}
#: Names that one dialect has and the other has not, outside of the files that say how they differ.
MOST_UNPAIRED = 150
_DIFFERS = "-- By design: "


def _places(dialect: str) -> dict[str, str]:
    """The file of each function, which has the name of its block."""
    blocks = [
        (name, body, file)
        for file, text in catalog.functions(dialect).files
        for name, body in catalog.blocks(text)
    ]
    twice = [name for name, times in Counter(name for name, *_ in blocks).items() if times > 1]
    assert not twice, f"{dialect}: {twice} stand in two files"
    return {name: file for name, body, file in blocks if _is_made(name, body)}


def _is_made(name: str, body: str) -> bool:
    made = _MADE.search(body)
    assert made is None or made[1] == name, f"the block {name} makes {made[1]}"
    return made is not None


def test_every_file_stands_in_a_room() -> None:
    for dialect in DIALECTS:
        rooms = {each.name for each in (SQL / dialect).iterdir()}
        assert rooms - {"calls", "migrations"} == set(catalog.ROOMS)
        read = {file for file, _ in catalog.functions(dialect).files}
        there = {str(each.relative_to(SQL / dialect)) for each in (SQL / dialect).rglob("*.sql")}
        assert {
            each
            for each in there - read
            if not each.startswith(("calls/", "migrations/")) and not each.endswith("/tables.sql")
        } == set()


def test_a_function_of_both_dialects_stands_in_the_same_file() -> None:
    ours, theirs = _places("postgres"), _places("mysql")
    both = ours.keys() & theirs.keys()
    assert {name: ours[name] for name in both} == {name: theirs[name] for name in both}


def test_what_a_role_may_call_stands_in_the_room_and_the_rest_in_its_inner_folder() -> None:
    for dialect in DIALECTS:
        called = set(_roles(dialect)) | OF_NO_ROLE
        places = _places(dialect)
        public = {name for name, file in places.items() if f"/{catalog.INNER}/" not in file}
        assert public == called & places.keys()


def test_few_names_have_no_partner_on_the_other_dialect() -> None:
    """A file in which the dialects differ by design says so in its first line, on both."""
    ours, theirs = (_places(dialect) for dialect in DIALECTS)
    says = [
        {file for file, text in catalog.functions(dialect).files if text.startswith(_DIFFERS)}
        for dialect in DIALECTS
    ]
    both = set(ours.values()) & set(theirs.values())
    assert says[0] & both == says[1] & both
    unpaired = [(ours | theirs)[name] for name in ours.keys() ^ theirs.keys()]
    assert says[0] | says[1] <= set(unpaired), "a file says that it differs, and does not"
    assert len([file for file in unpaired if file not in says[0] | says[1]]) <= MOST_UNPAIRED


def test_both_dialects_have_the_same_files_of_statements() -> None:
    ours, theirs = (
        {each.name for each in (SQL / dialect / "calls").glob("*.sql")} for dialect in DIALECTS
    )
    assert ours - theirs == ONLY_ONE.keys()
    assert theirs <= ours
