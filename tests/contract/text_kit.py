"""publish_text and publish_json as SQL calls them: by name on PostgreSQL, by place elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import database
from tests.kit.log import TOPIC

FUNCTIONS = ("publish_text", "publish_json")
#: The arguments after topic and payload, in their order.
OPTIONS = (
    "key", "type", "content_type", "headers", "event_id", "partition", "not_before", "dedup_key",
    "strict",
)  # fmt: skip


def call(
    own: Any, function: str, payload: str | None, topic: str = TOPIC, **options: Any
) -> tuple[Any, ...]:
    """The row that the function returns: the event's id and whether it was a duplicate."""
    binds = {"topic": topic, "payload": payload, **options}
    if database.dialect_of(own) == "postgres":
        named = "".join(f", {name} => %({name})s" for name in options)
        sql = f"SELECT * FROM penstock.{function}(%(topic)s, %(payload)s{named})"
    else:
        placed = ", ".join(f"%({name})s" for name in OPTIONS)
        sql = f"CALL penstock.{function}(%(topic)s, %(payload)s, {placed})"
        binds = dict.fromkeys(OPTIONS) | binds
    (row,) = database.execute(own, sql, binds)
    return row


def in_sql(function: str) -> Callable[[Any, str], object]:
    """The function as a call of a topic, for the tests of walls."""

    def published(own: Any, topic: str) -> object:
        begins = database.dialect_of(own) == "mysql"  # a procedure is not atomic by itself
        if begins:
            own.begin()
        try:
            row = call(own, function, "1", topic)
        except BaseException:
            if begins:
                own.rollback()
            raise
        if begins:
            own.commit()
        return row

    return published
