"""The statements of a log in memory are those of the databases.  Others are refused by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import penstock
from penstock import database
from penstock.database import catalog, migrate
from penstock.errors import DatabaseUnavailable, PenstockError
from penstock.testing import MemoryConnection, MemoryDatabase, NotInMemory, statements

BLOCKED = """
import sys
for name in ("psycopg", "pymysql", "typer", "rich", "sqlalchemy"):
    sys.modules[name] = None
import penstock
from penstock.testing import MemoryDatabase, assert_published
connection = MemoryDatabase().connect()
penstock.create_topic(connection, "a/b", create_namespaces=True)
penstock.publish(connection, "a/b", b"x")
assert_published(connection, "a/b", payload=b"x")
"""


def test_every_statement_takes_the_binds_of_the_databases() -> None:
    """Guard: described() reads them of the function; another name would pass unseen."""
    for name in statements.answered():
        assert statements.described(name).binds == catalog.statement("postgres", name).binds, name


def test_what_is_not_there_is_refused_by_name(connection: MemoryConnection) -> None:
    """Rights, archive, relay, restore, retention, settings, and SQL."""
    missing = catalog.statements("postgres").keys() - statements.answered().keys()
    assert {"grant_namespace", "seal", "open_block", "reconcile", "clean", "setting"} <= missing
    for name in sorted(missing):
        with pytest.raises(NotInMemory, match=f"has no {name} "):
            database.call(connection, name)
    with pytest.raises(NotInMemory, match="runs no SQL"):
        connection.execute("SELECT count(*) FROM customers")
    with pytest.raises(PenstockError):
        penstock.publish_bulk(connection, [])


def test_a_wrong_call_is_refused(connection: MemoryConnection) -> None:
    with pytest.raises(PenstockError, match="differ in: more"):
        database.call(connection, "position", subscription="billing", topic="shop/orders", more=1)
    with pytest.raises(PenstockError, match="no SQL statement named"):
        database.call(connection, "nothing")


def test_no_driver_is_needed() -> None:
    """Guard: the package imports the standard library only."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_two_databases_share_nothing(connection: MemoryConnection) -> None:
    """Nor what publishers remember of topics."""
    penstock.publish(connection, "shop/orders", b"x")
    other = MemoryDatabase().connect()
    with pytest.raises(penstock.TopicNotFound):
        penstock.publish(other, "shop/orders", b"x")


def test_an_address_lives_as_long_as_its_database() -> None:
    url = MemoryDatabase().url
    with pytest.raises(DatabaseUnavailable):
        penstock.connect(url)


def test_there_is_nothing_to_migrate(db: MemoryDatabase) -> None:
    """Typed, whatever is asked of the installer."""
    calls: list[Any] = [lambda: migrate.migrate(db.url), lambda: migrate.status(db.url)]
    for call in calls:
        with pytest.raises(PenstockError):
            call()
