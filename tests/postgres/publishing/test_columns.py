"""A batch arrives the same, whether its columns are sent as binary arrays or as text."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

import penstock
from penstock import Message, log
from penstock.publishing.columns import PackedArray, packed

TOPIC = "bank/accounts"
Connection = psycopg.Connection[Any]


def _default(url: str) -> Connection:
    return psycopg.connect(url, autocommit=True)


def _binding_on_the_client(url: str) -> Connection:
    return psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor)


def _of_another_encoding(url: str) -> Connection:
    return psycopg.connect(url, autocommit=True, client_encoding="LATIN1")


@pytest.mark.parametrize(
    "open_connection", [_default, _binding_on_the_client, _of_another_encoding]
)
def test_everything_arrives(
    database_url: str, connection: Connection, open_connection: Callable[[str], Connection]
) -> None:
    penstock.create_topic(connection, TOPIC, 2, create_namespaces=True)
    given = [
        Message(TOPIC, b"", partition=0),
        Message(TOPIC, bytes(range(256)), key="größe", type='a"b\\c{},NULL', partition=0),
        Message(TOPIC, b"x", key="", headers={"é": [None, "\\"]}, partition=0),
        Message(
            TOPIC, b"y", key="NULL", content_type="text/plain", event_id=uuid.uuid4(), partition=0
        ),
    ]
    with open_connection(database_url) as publisher:
        ids = penstock.publish_batch(publisher, given)
    log.sequence(connection)
    found = log.fetch(connection, TOPIC, 0, 1)
    assert [(e.event_id, e.payload, e.key, e.type, e.content_type, e.headers) for e in found] == [
        (event_id, m.payload, m.key, m.type, m.content_type, m.headers or {})
        for event_id, m in zip(ids, given, strict=True)
    ]


def test_only_where_the_server_binds_utf8(database_url: str) -> None:
    def is_binary(connection: Connection) -> bool:
        return isinstance(packed(connection, keys=("text", ["k"]))["keys"], PackedArray)

    with (
        _default(database_url) as plain,
        _binding_on_the_client(database_url) as client,
        _of_another_encoding(database_url) as latin,
    ):
        assert [is_binary(each) for each in (plain, client, latin)] == [True, False, False]


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("text", ["a", None, "", "ü"]),
        ("bytea", [b"\0\xff", None]),
        ("uuid", [uuid.uuid4(), None]),
        ("int4", [-1, None, 2**31 - 1]),
        ("int4", [None, None]),
        ("timestamptz", [datetime(1999, 12, 31, 23, 59, 59, 999_999, UTC), None]),
        ("timestamptz", [datetime(9999, 12, 31, 23, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC)]),
    ],
)
def test_every_type_and_null(connection: Connection, type_name: str, values: list[Any]) -> None:
    array = packed(connection, column=(type_name, values))["column"]
    assert isinstance(array, PackedArray)
    row = connection.execute(f"SELECT %s::{type_name}[]", (array,)).fetchone()
    assert row == (values,)
