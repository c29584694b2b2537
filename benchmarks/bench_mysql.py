"""MySQL and MariaDB: durable servers of ``tools.servers``, and a fresh schema for each group.

Penstock is one schema of a server there. A read view that is held keeps the whole server from
purging old rows. So the other side of a comparison with a held view runs on its own server.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.bench import NAMESPACE, Bench
from benchmarks.events import messages, with_ids
from benchmarks.measure import batches
from penstock import database
from penstock.database import config
from penstock.database.migrate import migrate
from penstock.publishing import known_topics
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.topics import names
from tools.servers import DURABLE, Distribution, MySQLServer

FILL = 2_000  # events that are published in one transaction

_BARE = """
CREATE TABLE {} (
    id BINARY(16) PRIMARY KEY, `key` VARCHAR(255), type VARCHAR(255) NOT NULL,
    content_type VARCHAR(255) NOT NULL, headers JSON, payload LONGBLOB NOT NULL
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
"""
_HISTORY = """
SELECT `COUNT` FROM information_schema.INNODB_METRICS WHERE NAME = 'trx_rseg_history_len'
"""
_DURABILITY = """
SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite, @@log_bin, @@sync_binlog
"""


@dataclass(slots=True)
class BenchMySQL(Bench):
    """The one schema of a server; ``connection`` is PyMySQL's as Penstock opens it."""

    server: MySQLServer

    bare_table = _BARE
    bare_columns = "id, `key`, type, content_type, headers, payload"
    id_type = "BINARY(16)"
    first_id = bytes(16)
    garbage_name = "undo logs"

    def bare_rows(self, events: Iterable[Message]) -> Iterator[tuple[Any, ...]]:
        for event, new_id in with_ids(events):
            yield (
                new_id.bytes, event.key, event.type, event.content_type,
                json.dumps(event.headers), event.payload,
            )  # fmt: skip

    def execute(self, statement: str, binds: Sequence[Any] = ()) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, binds or None)

    def rows(self, query: str, binds: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query, binds or None)
            return list(cursor.fetchall())

    def executemany(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement for many rows.  PyMySQL puts them into one INSERT."""
        with self.connection.cursor() as cursor:
            cursor.executemany(statement, list(rows))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.connection.begin()
        yield
        self.connection.commit()

    def require_durable(self) -> None:
        ((flush, doublewrite, has_binlog, sync_binlog),) = self.rows(_DURABILITY)
        for name, is_durable in (
            ("innodb_flush_log_at_trx_commit", flush == 1),
            ("innodb_doublewrite", str(doublewrite).upper() in {"1", "ON"}),
            ("sync_binlog", not has_binlog or sync_binlog == 1),
        ):
            if not is_durable:
                raise SystemExit(f"error: {name} is not durable, the figures would mean nothing")

    def settle(self) -> None:
        """Does nothing: there is no CHECKPOINT.

        Pages are written all the time, in the turns of both.
        """

    def analyse(self, table: str | None = None) -> None:
        schema = config.schema_name()
        tables = [f"`{schema}`.{each}" for each in ("events", "chunks", "positions")]
        self.rows(f"ANALYZE TABLE {', '.join([*tables, *([table] if table else [])])}")

    def fill(self, topics: Sequence[str], count: int) -> None:
        events = messages(topics[0], min(count, FILL))
        for part in batches(count, FILL):
            turns = zip(part, events, strict=False)
            publish_batch(
                self.connection,
                [replace(event, topic=topics[n % len(topics)]) for n, event in turns],
            )

    def fill_both(self, topic: str, table: str, events: Sequence[Message]) -> None:
        insert = self.insert(table)
        for part in batches(len(events), FILL):
            chosen = events[part.start : part.stop]
            publish_batch(self.connection, chosen)
            with self.transaction():
                self.executemany(insert, self.bare_rows(chosen))

    def another(self) -> AbstractContextManager[Bench]:
        return _fresh_server(self.engine, self.server.distribution)

    @contextmanager
    def held_view(self) -> Iterator[None]:
        look = f"SELECT COUNT(*) FROM `{config.schema_name()}`.topics"
        connection = database.connect(self.url, statement_timeout_ms=0)
        try:
            for statement in (
                # Only the end of the run ends it.
                "SET SESSION wait_timeout = 31536000",
                "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                "START TRANSACTION",
            ):
                database.execute(connection, statement)
            before = database.execute(connection, look)
            yield
            if database.execute(connection, look) != before:
                raise RuntimeError("the read view was not held")
        finally:
            connection.close()

    @property
    def server_pid(self) -> int:
        assert self.server.pid is not None
        return self.server.pid

    def calls(self) -> int:
        return int(self.rows("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])

    def garbage(self) -> int:
        return int(self.figure(_HISTORY))

    def garbage_report(self) -> str:
        return f"{self.garbage()} undo logs that are not purged"


@contextmanager
def bench_server(distribution: Distribution) -> Iterator[MySQLServer]:
    """A server in a temporary folder, with each commit on disk before the server confirms it."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as folder,
        MySQLServer(folder, distribution, settings=DURABLE) as server,
    ):
        yield server


@contextmanager
def bench_schema(server: MySQLServer, name: str) -> Iterator[BenchMySQL]:
    """A fresh Penstock and an empty database for the bare tables, dropped after the group."""
    # As on PostgreSQL, neither side pays for TLS on the machine's own network.
    url = f"{server.url(name)}?ssl_disabled=true"
    migrate(url)
    # An earlier installation at the same address may have had other numbers for its topics.
    known_topics.clear()
    connection = database.connect(url, statement_timeout_ms=0)
    try:
        distribution = server.distribution
        title = f"{distribution.title} {server.version()}"
        bench = BenchMySQL(distribution.name, title, url, connection, server)
        bench.require_durable()
        names.create_namespace(connection, NAMESPACE)
        yield bench
    finally:
        for each in (name, config.schema_name()):
            database.execute(connection, f"DROP DATABASE IF EXISTS `{each}`")
        connection.close()


@contextmanager
def _fresh_server(engine: str, distribution: Distribution) -> Iterator[Bench]:
    with bench_server(distribution) as server, bench_schema(server, "bench") as bench:
        yield bench
