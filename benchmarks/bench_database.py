"""PostgreSQL: the embedded server with durability on, and a separate database for each group."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from benchmarks.bench import NAMESPACE, Bench
from benchmarks.events import COPY_TYPES, KEYS, PAYLOAD_BYTES, copy_rows, with_ids
from penstock import database
from penstock.database.migrate import migrate
from penstock.publishing.bulk import publish_bulk
from penstock.records import Message
from penstock.topics import names
from resources.embedded import EmbeddedPostgres
from tools.servers.postgres_matrix import MatrixPostgres

BARE_COLUMNS = ("id", "key", "type", "content_type", "headers", "payload")
FILL = 200_000  # events of one transaction

_BARE = """
CREATE TABLE {} (
    id uuid PRIMARY KEY, key text, type text NOT NULL, content_type text NOT NULL, headers jsonb,
    payload bytea NOT NULL
)
"""

#: Events that the server makes itself, for cases that only need a log to be there.
_FILL = """
INSERT INTO pg_temp.penstock_bulk (topic, payload, key, type, content_type, headers)
SELECT (%(topics)s::text[])[1 + n %% %(count)s],
       substr(decode(repeat(md5(n::text), 13), 'hex'), 1, %(bytes)s),
       'account-' || n / %(count)s %% %(keys)s, 'account.changed', 'application/octet-stream',
       jsonb_build_object('source', 'bench', 'number', n)
FROM generate_series(%(first)s::integer, %(last)s::integer) AS n
"""

_DEAD = """
SELECT COALESCE(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'penstock'
"""
_DEAD_TABLES = """
SELECT COALESCE(string_agg(relname || ' ' || n_dead_tup, ', ' ORDER BY n_dead_tup DESC), 'none')
FROM pg_stat_user_tables WHERE schemaname = 'penstock' AND n_dead_tup > 0
"""
_CALLS = """
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()
"""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(slots=True)
class BenchDatabase(Bench):
    """A database of the embedded server; ``connection`` is psycopg's."""

    server: EmbeddedPostgres
    name: str

    bare_table = _BARE
    bare_columns = ", ".join(BARE_COLUMNS)
    id_type = "uuid"
    first_id = "00000000-0000-0000-0000-000000000000"
    garbage_name = "dead tuples"

    def bare_rows(self, events: Iterable[Message]) -> Iterator[tuple[Any, ...]]:
        for event, new_id in with_ids(events):
            yield (
                new_id, event.key, event.type, event.content_type, Jsonb(event.headers),
                event.payload,
            )  # fmt: skip

    def execute(self, statement: str, binds: Sequence[Any] = ()) -> None:
        self.connection.execute(statement, binds or None)

    def rows(self, query: str, binds: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.connection.execute(query, binds or None).fetchall()
        return found

    def executemany(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(statement, rows)

    def transaction(self) -> AbstractContextManager[Any]:
        block: AbstractContextManager[Any] = self.connection.transaction()
        return block

    def require_durable(self) -> None:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            if self.figure(f"SHOW {name}") != "on":
                raise SystemExit(f"error: {name} is not on, the figures would mean nothing")

    def settle(self) -> None:
        self.connection.execute("CHECKPOINT")

    def analyse(self, table: str | None = None) -> None:
        self.connection.execute("VACUUM ANALYZE")

    def fill(self, topics: Sequence[str], count: int) -> None:
        for first in range(1, count + 1, FILL):
            binds = {
                "topics": list(topics), "count": len(topics), "bytes": PAYLOAD_BYTES, "keys": KEYS,
                "first": first, "last": min(first + FILL - 1, count),
            }  # fmt: skip
            with self.transaction():
                database.call(self.connection, "prepare_bulk")
                self.connection.execute(_FILL, binds)
                database.call(self.connection, "publish_bulk")

    def fill_both(self, topic: str, table: str, events: Sequence[Message]) -> None:
        with self.transaction():
            publish_bulk(self.connection, events)
            self.copy_bare(table, copy_rows(events))

    def copy_bare(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Put rows into a bare table by binary COPY."""
        statement = f"COPY {table} ({self.bare_columns}) FROM STDIN (FORMAT BINARY)"
        with self.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.set_types(COPY_TYPES)
            for row in rows:
                copy.write_row(row)

    def another(self) -> AbstractContextManager[Bench]:
        return bench_database(self.server, f"{self.name}_another")

    @contextmanager
    def unvacuumed(self) -> Iterator[BenchDatabase]:
        """Another one, on its own server that never vacuums by itself."""
        with bench_server({"autovacuum": "off"}) as server, bench_database(server, self.name) as it:
            yield it

    @contextmanager
    def held_view(self) -> Iterator[None]:
        with psycopg.connect(self.url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT count(*) FROM penstock.topics")
            yield
            connection.execute("SELECT count(*) FROM penstock.topics")
            connection.rollback()

    @property
    def server_pid(self) -> int:
        assert self.server.pid is not None
        return self.server.pid

    def calls(self) -> int:
        self.connection.execute("SELECT pg_stat_force_next_flush()")
        return int(self.figure(_CALLS))

    def garbage(self) -> int:
        self.connection.execute("SELECT pg_stat_force_next_flush()")
        return int(self.figure(_DEAD))

    def garbage_report(self) -> str:
        return str(self.figure(_DEAD_TABLES))


@contextmanager
def bench_server(
    settings: Mapping[str, str] | None = None, major: int | None = None
) -> Iterator[EmbeddedPostgres]:
    """A server in a temporary folder.  Its default settings are durable."""
    made = EmbeddedPostgres if major is None else partial(MatrixPostgres, major)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as folder,
        made(Path(folder), settings=settings) as server,
    ):
        yield server


@contextmanager
def bench_database(server: EmbeddedPostgres, name: str) -> Iterator[BenchDatabase]:
    """A fresh database, so that no group pays for the rows of another."""
    url = server.url(name)
    migrate(url)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            title = f"PostgreSQL {_version(connection)}"
            bench = BenchDatabase("postgres", title, url, connection, server, name)
            bench.require_durable()
            names.create_namespace(connection, NAMESPACE)
            yield bench
    finally:
        _drop(server, name)


def _drop(server: EmbeddedPostgres, name: str) -> None:
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(drop)


def _version(connection: Connection) -> str:
    return connection.info.parameter_status("server_version") or "?"
