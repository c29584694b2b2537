"""Connections of an application's own kind: subclasses, other cursors, wrapped by a tracer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import psycopg.rows
import pymysql.cursors
import wrapt

import penstock
from penstock import log
from tests.contract.databases import ContractDatabase

TOPIC = "shop/orders"


class Subclass(psycopg.Connection[Any]):
    """As an application has that adds its own methods."""


class MySQLSubclass(pymysql.connections.Connection):
    """The same for PyMySQL."""


def _postgres_kinds(url: str) -> Iterator[Any]:
    yield Subclass.connect(url, row_factory=psycopg.rows.dict_row)
    yield wrapt.ObjectProxy(psycopg.connect(url, row_factory=psycopg.rows.dict_row))
    for cursor in (psycopg.ClientCursor, psycopg.RawCursor):
        yield psycopg.connect(url, cursor_factory=cursor)


def _mysql_kinds(db: ContractDatabase) -> Iterator[Any]:
    own: Any = db.connect()
    given = {"host": own.host, "port": own.port, "user": own.user, "password": own.password}
    dictionaries = partial(
        MySQLSubclass, **given, charset="utf8mb4", cursorclass=pymysql.cursors.DictCursor
    )
    yield dictionaries()
    yield wrapt.ObjectProxy(dictionaries())


def test_every_kind_of_connection_publishes_and_fetches(db: ContractDatabase) -> None:
    """Guards: what a cursor has to do is asked of the cursor, not of the connection's module."""
    own = db.connect()
    penstock.create_topic(own, TOPIC, create_namespaces=True)
    kinds: Callable[[], Iterator[Any]] = (
        partial(_postgres_kinds, db.url) if db.engine == "postgres" else partial(_mysql_kinds, db)
    )
    published = []
    for connection in kinds():
        with contextlib.closing(connection):
            published.append(penstock.publish(connection, TOPIC, b"one", key="a"))
            published += penstock.publish_batch(
                connection, [penstock.Message(TOPIC, b"two"), penstock.Message(TOPIC, b"three")]
            )
            connection.commit()
            log.sequence(own)
            found = log.fetch(connection, TOPIC, 0, 1)
            connection.rollback()
        assert [event.event_id for event in found] == published
        assert all(event.created_at.tzinfo and event.sequenced_at.tzinfo for event in found)
