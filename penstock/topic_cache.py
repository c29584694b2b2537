"""What publishers know of topics.

Asking the database whether a topic exists does not abort the caller's transaction, publishing to
one that does not would.  Only topics that exist are remembered; the database checks again when it
publishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock import config, database
from penstock.errors import (
    InvalidPartition,
    NotMigrated,
    PayloadTooLarge,
    TopicNotFound,
    UsageError,
)

_MOST_DATABASES = 64
_MOST_TOPICS = 10_000


class TopicFacts(NamedTuple):
    """What decides whether a topic takes an event."""

    topic_id: int
    partitions: int
    max_payload_bytes: int


_databases: dict[tuple[str, ...], dict[str, TopicFacts]] = {}


class KnownTopics:
    """The remembered topics of the database that a connection is open to."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._found = _remembered(connection)

    def require(self, topic: str, payload_bytes: int, partition: int | None) -> None:
        """TopicNotFound, PayloadTooLarge or InvalidPartition, before anything was written."""
        facts = self._found.get(topic)
        if facts is None or not _takes(facts, payload_bytes, partition):
            facts = self._look_up(topic)
            _refuse(facts, topic, payload_bytes, partition)

    @contextmanager
    def forgotten_on_refusal(self, topics: Iterable[str]) -> Iterator[None]:
        """Forget the topics when the database refuses: one may be deleted, or never committed."""
        try:
            yield
        except UsageError:
            for topic in topics:
                self._found.pop(topic, None)
            raise

    def _look_up(self, topic: str) -> TopicFacts:
        if not self._found:
            require_installed(self._connection)
        rows = database.call(self._connection, "topic_lookup", topic=topic)
        if not rows:
            self._found.pop(topic, None)
            raise TopicNotFound(
                f"there is no topic {topic!r}",
                hint="create it: `penstock topic create`, or penstock.create_topic(...)",
            )
        if len(self._found) >= _MOST_TOPICS:
            self._found.clear()
        facts = self._found[topic] = TopicFacts(*rows[0][:3])
        return facts


def require_installed(connection: Any) -> None:
    """NotMigrated when the functions are missing; asking does not abort the transaction."""
    schema = config.schema_name()
    if not database.call(connection, "is_installed", schema=schema):
        raise NotMigrated(f"the database has no Penstock in the schema {schema}")


def clear() -> None:
    """Forget everything."""
    _databases.clear()


def _remembered(connection: Any) -> dict[str, TopicFacts]:
    key = database.database_key(connection)
    if key is None:
        return {}
    if len(_databases) >= _MOST_DATABASES:
        _databases.clear()
    return _databases.setdefault((*key, config.schema_name()), {})


def _takes(facts: TopicFacts, payload_bytes: int, partition: int | None) -> bool:
    fits = payload_bytes <= facts.max_payload_bytes
    return fits and (partition is None or partition < facts.partitions)


def _refuse(facts: TopicFacts, topic: str, payload_bytes: int, partition: int | None) -> None:
    if payload_bytes > facts.max_payload_bytes:
        raise PayloadTooLarge(
            f"the payload has {payload_bytes} bytes, topic {topic!r} takes"
            f" {facts.max_payload_bytes}",
            hint="keep large data elsewhere and publish where it is",
        )
    if partition is not None and partition >= facts.partitions:
        raise InvalidPartition(
            f"topic {topic!r} has no partition {partition}",
            hint=f"it has {facts.partitions}, numbered from 0",
        )
