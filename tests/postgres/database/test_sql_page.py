"""`docs/reference/sql.md`: its tables are the catalog's; its example works in psycopg and psql."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from resources.embedded import find_bin_dir
from tools import sql_page

Connection = psycopg.Connection[tuple[Any, ...]]


def example() -> str:
    """The psql example of the page."""
    found = re.search(r"```sql\n(.*?)```", sql_page.PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def statements(text: str) -> Iterator[tuple[str, bool]]:
    """Each statement, and whether its result goes into variables."""
    code = re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)
    for statement in re.findall(r"\S.*?(?:;| \\gset)(?=\n|$)", code, re.DOTALL):
        yield statement.removesuffix(";").removesuffix("\\gset"), statement.endswith("\\gset")


def substitute(statement: str, variables: dict[str, str]) -> str:
    """psql's :name and :'name'."""
    quoted = re.sub(r":'(\w+)'", lambda found: f"'{variables[found[1]]}'", statement)
    return re.sub(r"(?<!:):(\w+)", lambda found: variables[found[1]], quoted)


def run(connection: Connection, text: str) -> list[list[tuple[Any, ...]]]:
    """Run statement after statement as psql does.  Returns every result with rows."""
    variables: dict[str, str] = {}
    answers = []
    for statement, into_variables in statements(text):
        cursor = connection.execute(substitute(statement, variables).encode())
        if cursor.description is None:
            continue
        rows = cursor.fetchall()
        answers.append(rows)
        if into_variables:
            (row,) = rows
            names = [column.name for column in cursor.description]
            variables |= dict(zip(names, map(str, row), strict=True))
    return answers


def test_the_example_works_statement_by_statement(connection: Connection) -> None:
    answers = run(connection, example())
    assert (1, "ann", "order-placed", '{"order": 1}') in answers[4]
    assert answers[-2:] == [[(0, 1, 1, 0)], [("",)]]
    assert connection.execute("SELECT order_id FROM bills").fetchall() == [(1,)]
    lease = connection.execute("SELECT state, holder FROM penstock.leases").fetchall()
    assert lease == [("AVAILABLE", None)]


def test_the_example_works_in_psql(connection: Connection, database_url: str) -> None:
    done = subprocess.run(
        [find_bin_dir() / "psql", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", database_url],
        input=example(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert connection.execute("SELECT order_id FROM bills").fetchall() == [(1,)]


def test_the_example_calls_what_a_consumer_needs() -> None:
    called = re.findall(r"penstock\.(\w+)\(", example())
    verbs = [
        "create_topic",
        "publish_json",
        "sequence",
        "subscribe",
        "join",
        "check_in",
        "poll",
        "commit",
    ]
    assert [name for name in called if name in verbs] == verbs


def test_the_page_is_not_stale(database_url: str) -> None:
    assert sql_page.main(["--check", "--url", database_url]) == 0


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the page that a test may spoil."""
    copy = tmp_path / "sql.md"
    copy.write_text(sql_page.PAGE.read_text())
    monkeypatch.setattr(sql_page, "PAGE", copy)
    return copy


def test_a_changed_function_makes_the_page_stale(
    page: Path, connection: Connection, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    connection.execute("ALTER FUNCTION penstock.take_overs(text) RENAME TO tmp")
    connection.execute(
        "CREATE FUNCTION penstock.take_overs(subscription text, since timestamptz DEFAULT now())"
        " RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'"
    )
    connection.execute("DROP FUNCTION penstock.tmp")
    before = page.read_text()
    assert sql_page.main(["--check", "--url", database_url]) == 1
    assert "is stale" in capsys.readouterr().err
    assert page.read_text() == before
    assert sql_page.main(["--url", database_url]) == 0
    assert "`subscription text, since timestamptz = now()`" in page.read_text()
    assert sql_page.main(["--check", "--url", database_url]) == 0


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("CREATE FUNCTION penstock.odd() RETURNS int LANGUAGE sql AS 'SELECT 1'", "`-- name: odd`"),
        ("DROP FUNCTION penstock.take_overs", "take_overs"),
    ],
)
def test_a_function_that_the_page_cannot_place(
    connection: Connection,
    database_url: str,
    capsys: pytest.CaptureFixture[str],
    statement: str,
    problem: str,
) -> None:
    connection.execute(statement.encode())
    assert sql_page.main(["--check", "--url", database_url]) == 1
    assert problem in capsys.readouterr().err


def test_the_error_codes_are_those_of_the_bodies(connection: Connection) -> None:
    """Also through the functions that a function calls, but not through a hint's words."""
    found = sql_page.functions(connection)
    assert {"PS013", "PS014"} == found["heartbeat"].codes
    assert {"PS002", "PS004", "PS005", "PS006", "PS022", "PS052"} == found["publish"].codes
    assert found["list_topics"].codes == frozenset()
