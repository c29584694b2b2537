"""The database of a run: a server of its own with durability on, Penstock, and the bare table."""

from __future__ import annotations

import itertools
import random
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from penstock import log, names
from penstock.migrate import migrate
from penstock.records import Message
from resources.embedded import EmbeddedPostgres

PARTITIONS = 16
PAYLOAD_BYTES = 200
KEYS = 5_000
NAMESPACE = "bench"
BARE_COLUMNS = ("id", "key", "type", "content_type", "headers", "payload")
BARE_TYPES = ("uuid", "text", "text", "text", "jsonb", "bytea")
PASS = 50_000  # events that one pass of the sequencer may take

#: What an application would make for its events: the same columns, a primary key, nothing else.
_BARE = """
CREATE TABLE {} (
    id uuid PRIMARY KEY, key text, type text NOT NULL, content_type text NOT NULL, headers jsonb,
    payload bytea NOT NULL
)
"""

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(slots=True)
class BenchDatabase:
    """A migrated database and one connection to it, in autocommit mode."""

    url: str
    connection: Connection
    engine: str
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_topic(self) -> str:
        """An empty topic of 16 partitions."""
        topic = f"{NAMESPACE}/topic{next(self._numbers)}"
        names.create_topic(self.connection, topic, PARTITIONS)
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


@contextmanager
def bench_database() -> Iterator[BenchDatabase]:
    """A server in a temporary folder with default settings, which are the durable ones."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedPostgres(Path(folder)) as server,
    ):
        url = server.url("bench")
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            _require_durable(connection)
            names.create_namespace(connection, NAMESPACE)
            yield BenchDatabase(url, connection, f"PostgreSQL {_version(connection)}")


def messages(topic: str, count: int) -> list[Message]:
    """Full-width events: key, type, content type, headers and 200 bytes; the same in every run."""
    chance = random.Random(20)
    return [
        Message(
            topic,
            chance.randbytes(PAYLOAD_BYTES),
            key=f"account-{chance.randrange(KEYS)}",
            type="account.changed",
            content_type="application/octet-stream",
            headers={"source": "bench", "number": number},
        )
        for number in range(count)
    ]


def bare_row(message: Message) -> tuple[Any, ...]:
    """The same event for the bare table; the caller of both makes the id while the clock runs."""
    return (
        uuid.uuid4(),
        message.key,
        message.type,
        message.content_type,
        Jsonb(message.headers),
        message.payload,
    )


def _require_durable(connection: Connection) -> None:
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        if connection.execute(f"SHOW {name}").fetchone() != ("on",):
            raise SystemExit(f"error: {name} is not on, the figures would mean nothing")


def _version(connection: Connection) -> str:
    return connection.info.parameter_status("server_version") or "?"
