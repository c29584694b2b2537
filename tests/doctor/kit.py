"""What the tests of the doctor share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from penstock.database import migrate
from penstock.doctor import Finding, Limits, doctor
from resources.embedded import EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "shop/orders"

Connection = psycopg.Connection[tuple[Any, ...]]
Run = Callable[[str, str], str]

#: Every open transaction is a finding.
NOW = Limits(snapshot_seconds=0.0)


def only(found: list[Finding]) -> Finding:
    """The one finding that there is."""
    assert len(found) == 1, found
    return found[0]


def settled(url: str, as_wanted: Callable[[list[Finding]], bool]) -> list[Finding]:
    """What the doctor finds when the server's processes have read the changed file."""
    deadline = time.monotonic() + 30
    while not as_wanted(found := doctor(url)):
        assert time.monotonic() < deadline, found
    return found


def begin(stack: ExitStack, url: str, *statements: str, **options: Any) -> Connection:
    """A session that stays in its transaction."""
    connection = psycopg.connect(url, **options)
    stack.callback(connection.close)
    for each in statements:
        connection.execute(each.encode())
    return connection


@contextmanager
def owned_by(server: EmbeddedPostgres, login: str, *before: str) -> Iterator[str]:
    """A migrated database whose owner, and so its functions, is no superuser.

    A superuser runs the statements ``before`` in it.
    """
    admin_url, name = server.url("postgres"), sql.Identifier(login)

    def as_admin(*statements: str, url: str = admin_url) -> None:
        with psycopg.connect(url, autocommit=True) as admin:
            for each in statements:
                admin.execute(sql.SQL(each).format(name, name))

    as_admin("CREATE ROLE {} LOGIN PASSWORD 'pw'", "CREATE DATABASE {} OWNER {}")
    parts = urlsplit(admin_url)
    place = f"{login}:pw@{parts.hostname}:{parts.port}"
    url = urlunsplit(parts._replace(netloc=place, path=f"/{login}"))
    try:
        as_admin(*before, url=server.url(login))
        migrate.migrate(url)
        yield url
    finally:
        as_admin("DROP DATABASE {} WITH (FORCE)", "DROP ROLE {}")
