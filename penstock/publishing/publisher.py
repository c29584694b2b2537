"""Publishing one event after the other to one topic, at less than `publish` costs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict, Unpack

from penstock import database
from penstock.database.steps import Rows, run_by
from penstock.publishing import rows as outgoing
from penstock.publishing.known_topics import known_topics
from penstock.publishing.steps import publish_steps
from penstock.records import Message, Published
from penstock.topics import validation


class Options(TypedDict, total=False):
    """The options of an event, as `publish` takes them."""

    key: str | None
    type: str
    content_type: str
    headers: Mapping[str, Any] | None
    event_id: uuid.UUID | None
    partition: int | None
    not_before: datetime | None
    dedup_key: str | None
    exchange: str | None
    routing_key: str | None
    max_attempts: int | None


class Publisher:
    """Publishes to one topic on one connection, in the transaction that is open there.

    It belongs to one thread, and to this connection: make a new one for another connection.
    """

    def __init__(self, connection: Any, topic: str, *, strict: bool = False) -> None:
        """Asks the database nothing, so it begins no transaction."""
        validation.topic(topic)
        self._connection = connection
        self._topic = topic
        self._strict = strict
        self._known = known_topics(connection)
        self._publish = database.prepared(connection, "publish")

    def publish(
        self, payload: bytes | bytearray | memoryview, **options: Unpack[Options]
    ) -> uuid.UUID:
        """Publish one event.  Returns its id, as the function `publish` does."""
        return self.publish_once(payload, **options).event_id

    def publish_once(
        self, payload: bytes | bytearray | memoryview, **options: Unpack[Options]
    ) -> Published:
        """The same.  Returns its id and whether it was a duplicate of an earlier one."""
        row = outgoing.row(Message(self._topic, payload, **options))
        return run_by(self._call, publish_steps(self._known, row, strict=self._strict))

    def _call(self, name: str, **binds: Any) -> Rows:
        if name == "publish":
            return self._publish(**binds)
        return database.call(self._connection, name, **binds)


def publisher(connection: Any, topic: str, *, strict: bool = False) -> Publisher:
    """What publishes one event after the other to a topic: prepared once, for many calls.

    On psycopg's connections it keeps its cursor and its statement, which `publish` makes anew each
    time.  On all others it is the same.
    """
    return Publisher(connection, topic, strict=strict)
