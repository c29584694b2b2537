"""Why publish_text and publish_json exist: in '...'::bytea a backslash is an escape."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.kit.log import Connection, drain, read, topic
from tests.kit.proof import proves

JSON = r'{"path":"c:\\temp"}'


@proves("a text is published as it was written", guard="what a bytea literal makes of it")
def test_a_bytea_literal_changes_json_and_publish_json_does_not(connection: Connection) -> None:
    topic(connection)
    connection.execute(f"SELECT penstock.publish('tests/log', '{JSON}'::bytea)".encode())
    connection.execute(f"SELECT penstock.publish_json('tests/log', '{JSON}')".encode())
    connection.execute(f"SELECT penstock.publish_text('tests/log', '{JSON}')".encode())
    drain(connection)
    by_bytea, by_json, by_text = [event.payload.decode() for event in read(connection)]
    assert by_json == by_text == JSON
    assert json.loads(by_json) == {"path": "c:\\temp"}
    assert json.loads(by_bytea) == {"path": "c:\temp"}  # a tab


def test_a_newline_in_a_bytea_literal_is_an_error(connection: Connection) -> None:
    topic(connection)
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        connection.execute(rb"""SELECT penstock.publish('tests/log', '"a\nb"'::bytea)""")
    connection.execute(rb"""SELECT penstock.publish_json('tests/log', '"a\nb"')""")
    drain(connection)
    assert [event.payload for event in read(connection)] == [rb'"a\nb"']


def test_publish_itself_has_no_second_form(connection: Connection) -> None:
    """With publish(text, text) an untyped literal would mean something else without a word."""
    found = connection.execute(
        "SELECT proname, count(*) FROM pg_proc WHERE pronamespace = 'penstock'::regnamespace"
        " AND proname LIKE 'publish%' GROUP BY proname"
    ).fetchall()
    assert len(found) >= 5
    assert {number for _, number in found} == {1}
