"""What MySQL and MariaDB let through as headers when their own JSON functions cannot judge it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import database
from penstock.errors import InvalidArgument
from penstock.topics.names import create_topic
from tests.contract.databases import MySQLDatabase
from tests.contract.kit import open_transaction


def _is_object(own: Any, text: str) -> bool:
    look = "CALL penstock.is_json_object(%(text)s, @is_object, @depth)"
    database.execute(own, look, {"text": text})
    return bool(database.execute(own, "SELECT @is_object")[0][0])


@pytest.mark.parametrize(
    ("text", "guard"),
    [('{"a":[1{}]}', "\\\\]', ' 0 '"), ('{"a":1{"b":1}}', "\\\\]'), ' 0 '")],
)
def test_a_digit_beside_an_object_is_no_json(
    mysql_db: MySQLDatabase, text: str, guard: str
) -> None:
    """Guard: is_json_object leaves blanks round what it has judged."""
    own = mysql_db.connect()
    assert _is_object(own, '{"a": [1, {}, {"b": []}]}')
    assert not _is_object(own, text)
    mysql_db.without_guard("is_json_object", guard, guard.replace(" 0 ", "0"))
    assert _is_object(own, text)


def _publishes(own: Any, headers: str) -> bool:
    rest = "NULL, '', 'a', %(h)s, NULL, NULL, NULL, NULL, 0)"
    call = f"CALL penstock.publish('tests/topic', 'x', {rest}"
    try:
        database.execute(own, call, {"h": headers})
    except InvalidArgument:
        return False
    return True


@pytest.mark.parametrize(
    ("headers", "guard"), [("{", "JSON_VALID(headers)"), ("[1]", "LEFT(headers, 1) = '{'")]
)
def test_the_short_way_of_publish_judges_headers_too(
    mysql_db: MySQLDatabase, headers: str, guard: str
) -> None:
    """Guard: the conditions under which publish takes no closer look; without one it goes in."""
    own = mysql_db.connect()
    create_topic(own, "tests/topic", 1, create_namespaces=True)
    with open_transaction(mysql_db) as app:
        assert not _publishes(app, headers)
        assert _publishes(app, '{"a": 1}')
    mysql_db.without_guard("publish", guard, "TRUE")
    with open_transaction(mysql_db) as app:
        assert _publishes(app, headers)
