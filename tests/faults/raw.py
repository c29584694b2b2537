"""A consumer of SQL alone, like a program in another language, without Penstock's Python.

It joins, checks in, reads, and commits its effects with its position in one transaction; the SQL is
that of docs/reference/sql.md, by the database's own driver.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pymysql

from tests.faults.history import Recorder
from tests.faults.hooks import Failpoints

Rows = list[tuple[Any, ...]]

#: How long a transaction of its own may be idle, in seconds: docs/reference/sql.md says why.
IDLE_SECONDS = 2

STALE_LEASE = ("PS010", 31010)
#: Calls by name: for PostgreSQL, and for MySQL and MariaDB.
CALLS = {
    "join": (
        "SELECT * FROM penstock.join(%s, %s, %s)",
        "CALL penstock.`join`(%s, %s, %s, 1, NULL)",
    ),
    "check_in": (
        "SELECT * FROM penstock.check_in(%s, %s, %s)",
        "CALL penstock.check_in(%s, %s, %s, TRUE)",
    ),
    "poll": (
        ("SELECT * FROM penstock.poll(%s, %s, ARRAY[%s::bigint], ARRAY[%s::bigint],"
        " ARRAY[%s::bigint], %s)"),
        "CALL penstock.poll(%s, %s, JSON_ARRAY(%s), JSON_ARRAY(%s), JSON_ARRAY(%s), %s, NULL)",
    ),
    "commit": (
        "SELECT penstock.commit(%s, %s, ARRAY[%s::bigint], ARRAY[%s::bigint], ARRAY[%s::bigint])",
        "CALL penstock.`commit`(%s, %s, JSON_ARRAY(%s), JSON_ARRAY(%s), JSON_ARRAY(%s), NULL)",
    ),
    "release": (
        "SELECT penstock.release(%s, %s, ARRAY[%s::bigint], ARRAY[%s::bigint])",
        "CALL penstock.`release`(%s, %s, JSON_ARRAY(%s), JSON_ARRAY(%s))",
    ),
    "leave": (
        "SELECT penstock.leave(%s, %s, %s)",
        "CALL penstock.`leave`(%s, %s, %s)",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Held:
    """A lease, as a check-in returns it."""

    topic: str
    partition: int
    partition_id: int
    epoch: int
    state: str
    position: int


class Driver:
    """psycopg or PyMySQL, each call by its own SQL."""

    def __init__(self, url: str) -> None:
        self._is_mysql = url.startswith("mysql")
        self.connection: Any = _mysql(url) if self._is_mysql else _postgres(url)

    def call(self, name: str, *values: Any) -> Rows:
        """The rows of the first result; the others, of a procedure, are read too."""
        return self.run(CALLS[name][self._is_mysql], *values)

    def run(self, sql: str, *values: Any) -> Rows:
        """One statement."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            rows = list(cursor.fetchall()) if cursor.description else []
            while cursor.nextset():
                pass
        return rows

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Committed, or rolled back where that goes."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self.connection.rollback()
            raise
        self.connection.commit()


def _postgres(url: str) -> Any:
    limit = f"-c idle_in_transaction_session_timeout={IDLE_SECONDS}s"
    return psycopg.connect(url, options=limit)


def _mysql(url: str) -> Any:
    parts = urlsplit(url)
    connection = pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=unquote(parts.username or ""),
        password=unquote(parts.password or ""), database=parts.path.lstrip("/"), charset="utf8mb4",
        connect_timeout=10, read_timeout=60, ssl_disabled=True,
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SET SESSION time_zone = '+00:00'")
        limits = (
            "idle_transaction_timeout"
            if "MariaDB" in connection.get_server_info()
            else "wait_timeout"
        )
        cursor.execute(f"SET SESSION {limits} = {IDLE_SECONDS}")
    connection.commit()
    return connection


class RawConsumer:
    """One session: from join to leave, or to the first error of the connection."""

    def __init__(
        self, given: argparse.Namespace, recorder: Recorder, driver: Driver, consumer: str
    ) -> None:
        self._sub: str = given.subscription
        self._batch: int = given.batch
        self._recorder = recorder
        self._driver = driver
        self._failpoints = Failpoints(given.failpoint, recorder)
        self._consumer = consumer
        self._session = str(uuid.uuid4())

    def run(self, stop: threading.Event) -> None:
        """Until told to stop."""
        self._member("join")
        while not stop.wait(0.05):
            for row in self._member("check_in"):
                lease = Held(*row[:6])
                self._work(lease)
                if lease.state == "RELEASING":
                    self._release(lease)
        self._member("leave")

    def _member(self, name: str) -> Rows:
        begun = self._recorder.begun()
        with self._driver.transaction():
            rows = self._driver.call(name, self._sub, self._consumer, self._session)
        self._recorder.write(name, "ok", sub=self._sub, consumer=self._consumer, **begun)
        return rows

    def _release(self, lease: Held) -> None:
        with self._driver.transaction():
            found = (self._sub, self._consumer, lease.partition_id, lease.epoch)
            self._driver.call("release", *found)

    def _work(self, lease: Held) -> None:
        """What follows the position of one partition: effects and position in one transaction."""
        begun = self._recorder.begun()
        fields: dict[str, Any] = {
            "sub": self._sub, "partition": lease.partition, "epoch": lease.epoch,
        }  # fmt: skip
        sent, outcome, commit = 0.0, "", dict[str, Any]()
        try:
            with self._driver.transaction():
                rows = self._poll(lease)
                events = [[row[1], _label(row[7])] for row in rows]
                self._recorder.write("poll", "ok", **fields, events=events, **begun)
                if not rows:
                    return
                commit = {**fields, "position": rows[-1][1], **self._recorder.begun()}
                outcome = "fail"
                self._recorder.write("commit", "invoke", **commit)
                found = (self._sub, self._consumer, lease.partition_id, lease.epoch)
                self._driver.call("commit", *found, rows[-1][1])
                self._effects(lease, events)
                self._failpoints.hit("commit.before")
                outcome, sent = "info", time.monotonic()
            outcome = "ok"
            self._failpoints.hit("commit.after")
        except (psycopg.Error, pymysql.MySQLError) as error:
            known = getattr(error, "sqlstate", None) or (error.args or [None])[0]
            if known not in STALE_LEASE:
                raise
        finally:
            if outcome:
                self._recorder.write("commit", outcome, **commit, **{"sent": sent} if sent else {})

    def _poll(self, lease: Held) -> Rows:
        where = (lease.partition_id, lease.epoch, lease.position, self._batch)
        return self._driver.call("poll", self._sub, self._consumer, *where)

    def _effects(self, lease: Held, events: list[list[Any]]) -> None:
        values = ", ".join(
            f"('{self._sub}', {lease.partition}, {sequence}, '{label}')"
            for sequence, label in events
        )
        self._driver.run(f"INSERT INTO effects (sub, part, seq, label) VALUES {values}")


def _label(payload: Any) -> str:
    return bytes(payload).partition(b" ")[0].decode()


def raw_on(given: argparse.Namespace, recorder: Recorder, stop: threading.Event) -> None:
    """Consume until told to stop; each connection is a consumer of its own."""
    number = 0
    while not stop.is_set():
        number += 1
        try:
            driver = Driver(given.url)
            with contextlib.closing(driver.connection):
                RawConsumer(given, recorder, driver, f"{given.name}.{number}").run(stop)
        except Exception as error:  # whatever it was: it connects again
            recorder.write("trouble", "ok", error=f"{type(error).__name__}: {error}"[:200])
        stop.wait(0.2)
