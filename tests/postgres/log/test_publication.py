"""A publication FOR ALL TABLES, as CDC and managed upgrades make it, stops nothing."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from penstock import database
from penstock.doctor import Finding, doctor
from penstock.subscriptions import queue, stream
from tests.kit.log import TOPIC, Connection, drain, put, topic, value
from tests.kit.proof import proves
from tests.kit.storage import next_slice

QUEUE = "mails"
Work = Callable[[Connection, str], None]


@pytest.fixture
def published(connection: Connection) -> Connection:
    """A queue with one event, in a database that is published."""
    connection.execute("SET client_min_messages = error")  # the server's wal_level is too low
    connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    topic(connection)
    queue.subscribe(connection, QUEUE, [TOPIC])
    put(connection, "purged")
    drain(connection)
    return connection


def _remove(connection: Connection, _: str) -> None:
    """A purge leaves a row, which the removal deletes."""
    queue.purge(connection, QUEUE)
    stream.unsubscribe(connection, QUEUE)
    database.call(connection, "remove_leftovers", max_rows=1000)
    assert value(connection, "SELECT count(*) FROM penstock.queue_purges") == 0


def _merge(connection: Connection, url: str) -> None:
    """A full slice of the index is merged."""
    for number in range(5):
        put(connection, str(number))
        drain(connection)
    next_slice(connection, "chunks")
    put(connection, "last")
    drain(connection)
    (done,) = drop_slices(url)
    assert (done.parent, done.state) == ("chunks", SliceState.MERGED)


KEYS: dict[str, Work] = {"queue_purges": _remove, "merges": _merge}


@proves("a published log goes on")
@pytest.mark.parametrize("table", KEYS)
def test_rows_of_a_published_log_can_go(
    published: Connection, database_url: str, table: str
) -> None:
    KEYS[table](published, database_url)
    assert _findings(database_url) == []


@proves("a published log goes on", guard="the primary key")
@pytest.mark.parametrize("table", KEYS)
def test_without_a_key_they_cannot_and_the_doctor_says_so(
    published: Connection, database_url: str, table: str
) -> None:
    """Mutants: the key of the table is dropped.  What the doctor says mends it."""
    published.execute(f"ALTER TABLE penstock.{table} DROP CONSTRAINT {table}_pkey".encode())
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        KEYS[table](published, database_url)
    (found,) = _findings(database_url)
    assert f"has the table {table}, which has no replica identity" in found.what
    assert f'ALTER TABLE "penstock"."{table}" REPLICA IDENTITY FULL' in found.command
    published.execute(f"ALTER TABLE penstock.{table} REPLICA IDENTITY FULL".encode())
    assert _findings(database_url) == []


def test_the_doctor_names_tables_of_any_publication(
    connection: Connection, database_url: str
) -> None:
    """Of a partitioned table, its slices; of one that publishes only new rows, none."""
    connection.execute("SET client_min_messages = error")
    connection.execute("CREATE PUBLICATION few FOR TABLE penstock.events, penstock.topics")
    connection.execute("CREATE PUBLICATION new FOR TABLE penstock.leases WITH (publish = 'insert')")
    for each in ("events_1", "topics", "leases"):
        connection.execute(f"ALTER TABLE penstock.{each} REPLICA IDENTITY NOTHING".encode())
    found = _findings(database_url)
    assert [each.what.split()[6].strip(",") for each in found] == ["events_1", "topics"]
    assert all("REPLICA IDENTITY DEFAULT" in each.command for each in found)


def _findings(url: str) -> list[Finding]:
    return [each for each in doctor(url) if each.check == "publication"]
