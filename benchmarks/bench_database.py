"""The databases of a run: a server of its own with durability on, Penstock, and the bare table."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.events import KEYS, PAYLOAD_BYTES
from penstock import database, log, names
from penstock.migrate import migrate
from resources.embedded import EmbeddedPostgres

PARTITIONS = 16
NAMESPACE = "bench"
BARE_COLUMNS = ("id", "key", "type", "content_type", "headers", "payload")
PASS = 50_000  # events that one pass of the sequencer may take
FILL = 200_000  # events that are made in one transaction

#: What an application would make for its events: the same columns, a primary key, nothing else.
_BARE = """
CREATE TABLE {} (
    id uuid PRIMARY KEY, key text, type text NOT NULL, content_type text NOT NULL, headers jsonb,
    payload bytea NOT NULL
)
"""

#: Events out of the server's own hands, for the cases that only need a log to be there.
_FILL = """
INSERT INTO pg_temp.penstock_bulk (topic, payload, key, type, content_type, headers)
SELECT (%(topics)s::text[])[1 + n %% %(count)s],
       substr(decode(repeat(md5(n::text), 13), 'hex'), 1, %(bytes)s),
       'account-' || n / %(count)s %% %(keys)s, 'account.changed', 'application/octet-stream',
       jsonb_build_object('source', 'bench', 'number', n)
FROM generate_series(%(first)s::integer, %(last)s::integer) AS n
"""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(slots=True)
class BenchDatabase:
    """A migrated database and one connection to it, in autocommit mode."""

    server: EmbeddedPostgres
    name: str
    url: str
    connection: Connection
    engine: str
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_topic(self, partitions: int = PARTITIONS) -> str:
        """An empty topic."""
        topic = f"{NAMESPACE}/topic{next(self._numbers)}"
        names.create_topic(self.connection, topic, partitions)
        return topic

    def new_bare_table(self) -> str:
        """An empty table with a primary key."""
        table = f"bare{next(self._numbers)}"
        self.connection.execute(_BARE.format(table))
        return table

    def settle(self) -> None:
        """Write out what earlier runs left, so that this one does not pay for it."""
        self.connection.execute("CHECKPOINT")

    def work_off(self) -> int:
        """Sequence whatever waits, in committed passes; answers how many events."""
        done = 0
        while (result := log.sequence(self.connection, PASS)).sequenced or result.more:
            done += result.sequenced
        return done

    def fill(self, topics: Sequence[str], count: int) -> None:
        """Publish full-width events in bulk, turn by turn over the topics, without a client."""
        for first in range(1, count + 1, FILL):
            binds = {
                "topics": list(topics), "count": len(topics), "bytes": PAYLOAD_BYTES, "keys": KEYS,
                "first": first, "last": min(first + FILL - 1, count),
            }  # fmt: skip
            with self.connection.transaction():
                database.call(self.connection, "prepare_bulk")
                self.connection.execute(_FILL, binds)
                database.call(self.connection, "publish_bulk")

    def figure(self, query: str) -> Any:
        """The only value of the only row of a query."""
        row = self.connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]


@contextmanager
def bench_server() -> Iterator[EmbeddedPostgres]:
    """A server in a temporary folder with default settings, which are the durable ones."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedPostgres(Path(folder)) as server,
    ):
        yield server


@contextmanager
def bench_database(server: EmbeddedPostgres, name: str) -> Iterator[BenchDatabase]:
    """A fresh database, so that no group of figures pays for the rows of another."""
    url = server.url(name)
    migrate(url)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            _require_durable(connection)
            names.create_namespace(connection, NAMESPACE)
            yield BenchDatabase(server, name, url, connection, f"PostgreSQL {_version(connection)}")
    finally:
        _drop(server, name)


def _drop(server: EmbeddedPostgres, name: str) -> None:
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(drop)


def _require_durable(connection: Connection) -> None:
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        if connection.execute(f"SHOW {name}").fetchone() != ("on",):
            raise SystemExit(f"error: {name} is not on, the figures would mean nothing")


def _version(connection: Connection) -> str:
    return connection.info.parameter_status("server_version") or "?"
