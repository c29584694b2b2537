"""A relay behind a real PgBouncer whose database is put back: its connection never ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from ops.relay.block import Backoff
from ops.relay.pauses import Pauses
from ops.relay.relay import Relay
from ops.sinks.jsonl import JsonlSink
from penstock import database
from penstock.log.histories import restore_status
from penstock.subscriptions import stream
from tests.doctor.pooler import Pooler
from tests.kit.log import drain, known_as, topic, wait_until
from tests.kit.proof import proves
from tests.kit.sinks import turn
from tests.kit.storage import many
from tests.kit.stream import STREAM, SUBSCRIPTION, slow_leases
from tests.support import PostgresServer

FAST = Backoff(base_seconds=0.01, max_seconds=0.05)


class Restored:
    """The database of a test, and a copy that takes its place under its name."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self._server = server
        self._name = url.rpartition("/")[2]
        self._copy, self._lost = f"{self._name}_copy", f"{self._name}_lost"

    def take(self) -> None:
        """A copy of the present state."""
        self._nobody_is_connected()
        self._server.create(self._copy, self._name)

    def come_back(self) -> None:
        """To that state; the sessions of the server end, and those of a pooler do not."""
        self._nobody_is_connected()
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        with psycopg.connect(self._server.admin_url, autocommit=True) as connection:
            for old, new in ((self._name, self._lost), (self._copy, self._name)):
                names = sql.Identifier(old), sql.Identifier(new)
                connection.execute(rename.format(*names))

    def drop(self) -> None:
        """What is left over."""
        for name in (self._copy, self._lost):
            self._server.drop(name)

    def _nobody_is_connected(self) -> None:
        sessions = "FROM pg_stat_activity WHERE datname = %s"
        with psycopg.connect(self._server.admin_url, autocommit=True) as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid) {sessions}", (self._name,))
            wait_until(
                lambda: (
                    connection.execute(f"SELECT 1 {sessions}", (self._name,)).fetchone() is None
                ),
                "the sessions of the server have ended",
            )


@pytest.fixture
def restored(postgres_server: PostgresServer, database_url: str) -> Iterator[Restored]:
    """What puts the test's database back."""
    made = Restored(postgres_server, database_url)
    yield made
    made.drop()


def _grow(url: str, events: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        many(connection, events, name=STREAM)
        drain(connection)


@proves("S21 behind a connection that stays", how="PgBouncer")
@pytest.mark.parametrize("events", [20, 60], ids=["behind", "grown beyond"])
def test_the_connection_outlives_a_restore_and_nothing_is_sent(
    database_url: str, restored: Restored, tmp_path: Path, events: int
) -> None:
    """Guard: blocks of one lease follow each other (_require_onward)."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        topic(connection, 1, STREAM)
        stream.subscribe(connection, SUBSCRIPTION, [STREAM])
        slow_leases(connection)
        name = known_as(connection, STREAM)
    _grow(database_url, 50)
    with (
        closing(JsonlSink(tmp_path / "out")) as sink,
        Pooler(database_url, tmp_path / "pgbouncer", "transaction") as pooler,
    ):
        relay = Relay(pooler.url, SUBSCRIPTION, sink, backoff=FAST)
        with relay.keeper, relay.open() as connection:
            turn(relay, connection)
            (lease,) = relay.keeper.leases()
            restored.take()
            _grow(database_url, 50)
            turn(relay, connection)
            lines = sink.path(name, 0).read_bytes()
            restored.come_back()
            _grow(database_url, events)
            for _ in range(3):
                relay.pauses = Pauses()
                turn(relay, connection)
            assert [each.lease_epoch for each in relay.keeper.leases()] == [lease.lease_epoch]
            assert not connection.closed
            assert relay.stats.last_error.startswith("LogBehind")
    assert [int(json.loads(line)["sequence"]) for line in lines.splitlines()] == [*range(1, 101)]
    assert sink.path(name, 0).read_bytes() == lines
    with database.connect(database_url) as connection:
        assert stream.position(connection, SUBSCRIPTION, STREAM) == {0: 50}
        assert bool(restore_status(connection)) is (events == 20)
