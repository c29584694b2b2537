"""What MySQL and MariaDB let through as headers when their own JSON functions cannot judge it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import database
from tests.contract.databases import MySQLDatabase


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
