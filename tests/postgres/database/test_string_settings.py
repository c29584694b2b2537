"""PostgreSQL: no setting of a session changes what a pattern means.

A function's text is read under the settings of whoever calls it. With standard_conforming_strings
off, a backslash in '...' is an escape; in $p$...$p$ it never is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

import penstock
from penstock.database import migrate
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, put, topic, value
from tests.kit.proof import proves
from tests.support import PostgresServer

SQL = Path(__file__).resolve().parents[3] / "sql" / "postgres"
OFF = "-c standard_conforming_strings=off -c escape_string_warning=off"

#: More than 400 characters, digits on both sides of an escaped quote: a string, and no number.
IN_QUOTES = r'"([^"\\]|\\.)*"'
STRING_OF_DIGITS = {"h": "1" * 300 + '"' + "2" * 600}


@pytest.fixture
def session(database_url: str) -> Iterator[Connection]:
    """Of somebody whose strings are of the old kind."""
    with psycopg.connect(database_url, autocommit=True, options=OFF) as connection:
        topic(connection)
        yield connection


def test_no_literal_of_a_function_holds_a_backslash() -> None:
    """Whatever is added later, too."""
    found = []
    for path in sorted(SQL.rglob("*.sql")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("--")[0] if line.lstrip().startswith("--") else line
            if re.search(r"'[^']*\\[^']*'", code):
                found.append(f"{path.name}:{number}")
    assert found == []


@proves("F32", how="strings of the old kind")
def test_a_long_header_is_no_long_number(session: Connection) -> None:
    penstock.publish(session, TOPIC, b"x", headers=STRING_OF_DIGITS)
    drain(session)
    number = Jsonb({"n": 10**401})
    with pytest.raises(psycopg.Error, match="400"):
        session.execute("SELECT penstock.publish(%s, 'x', headers => %s)", (TOPIC, number))


@proves("F32", guard="dollar quotes")
def test_in_quotes_the_pattern_means_something_else(session: Connection) -> None:
    """Mutant: the pattern as it was."""
    without_guard(session, "headers_problem", f"$p${IN_QUOTES}$p$", f"'{IN_QUOTES}'")
    with pytest.raises(psycopg.errors.InvalidRegularExpression):
        session.execute(
            "SELECT penstock.publish(%s, 'x', headers => %s)", (TOPIC, Jsonb(STRING_OF_DIGITS))
        )


def test_a_reason_is_not_made_of_blanks_and_may_be_made_of_s(session: Connection) -> None:
    with pytest.raises(psycopg.Error, match="reason"):
        session.execute("SELECT penstock.reconcile('   ')")
    assert value(session, "SELECT penstock.reconcile('sss')") == 2


def test_names_and_times_are_checked_as_always(session: Connection) -> None:
    for name, problem in (("a\x07b", "control character"), ("\u00a0", "is empty")):
        with pytest.raises(psycopg.Error, match=problem):
            session.execute("SELECT penstock.create_namespace(%s)", (name,))
    put(session, "1")
    drain(session)
    subscribe = "SELECT penstock.subscribe('s', ARRAY[%s], start => %s)"
    with pytest.raises(psycopg.Error, match="cannot start at"):
        session.execute(subscribe, (TOPIC, "2026-01-31T09:30:00x5Z"))
    session.execute(subscribe, (TOPIC, "2026-01-31T09:30:00.5Z"))


def test_a_migration_under_it_gives_the_same_rights(postgres_server: PostgresServer) -> None:
    """The lists of functions of each role are cut at blanks, and not at each s."""
    url = postgres_server.create("old_strings")
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER DATABASE old_strings SET standard_conforming_strings = off")
        migrate.migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            assert value(connection, "SHOW standard_conforming_strings") == "off"
            assert (
                value(
                    connection,
                    "SELECT count(*) FROM penstock.function_roles()"
                    " WHERE function IN ('subscribe', 'publish', 'sequence')",
                )
                == 3
            )
    finally:
        postgres_server.drop("old_strings")
