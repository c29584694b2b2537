"""What publishers know of topics.

Publishing to a topic that does not exist would abort the caller's transaction.  Asking the database
first whether the topic exists does not.  Only topics that exist are remembered.  The database
checks again when it publishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from penstock import database
from penstock.database import config
from penstock.database.steps import Steps, asked, run
from penstock.errors import (
    InvalidPartition,
    NotMigrated,
    PayloadTooLarge,
    TopicNotFound,
    UsageError,
)
from penstock.publishing.rows import Row
from penstock.topics import strategies

_MOST_DATABASES = 64
_MOST_TOPICS = 10_000
_BY_DATABASE = frozenset({"crc32", "round_robin"})  # strategies that need nothing of a publisher


class TopicFacts(NamedTuple):
    """What decides whether a topic accepts an event."""

    topic_id: int
    partitions: int
    max_payload_bytes: int
    strategy: str
    #: False once the database has said that its batches need publish_batch.
    by_columns: bool = True


Found = dict[str, TopicFacts]

_databases: dict[tuple[str, ...], Found] = {}
_connections: WeakKeyDictionary[Any, Found] = WeakKeyDictionary()


class KnownTopics:
    """The remembered topics of a database."""

    def __init__(self, found: Found) -> None:
        self._found = found

    def placed(self, row: Row) -> Row | None:
        """The event, with its partition when only the publisher can choose it.

        None when the caller has to ask the database first, before it writes anything.
        """
        facts = self._found.get(row.topic)
        if facts is None or len(row.payload) > facts.max_payload_bytes:
            return None
        if row.partition is not None:
            return row if row.partition < facts.partitions else None
        if facts.strategy in _BY_DATABASE:
            return row
        try:
            return _chosen(row, facts)
        except InvalidPartition:
            return None

    def asked_for(self, row: Row) -> Steps[Row]:
        """The same, asking the database: TopicNotFound, PayloadTooLarge or InvalidPartition."""
        facts = yield from self.looked_up(row.topic)
        return accepted(facts, row)

    def required(self, topic: str) -> Steps[TopicFacts]:
        """What is remembered of a topic, else what the database says: TopicNotFound."""
        return self._found.get(topic) or (yield from self.looked_up(topic))

    def looked_up(self, topic: str) -> Steps[TopicFacts]:
        """What the database says of a topic: TopicNotFound."""
        if not self._found:
            yield from installed()
        rows = yield from asked("topic_lookup", topic=topic)
        if not rows:
            self._found.pop(topic, None)
            raise TopicNotFound(
                f"there is no topic {topic!r}",
                hint="create it: `penstock topic create`, or penstock.create_topic(...)",
            )
        if len(self._found) >= _MOST_TOPICS:
            self._found.clear()
        topic_id, partitions, max_payload_bytes, _, strategy = rows[0]
        facts = TopicFacts(topic_id, partitions, max_payload_bytes, strategy)
        self._found[topic] = facts
        return facts

    def plain(self, topic: Any) -> TopicFacts | None:
        """A remembered topic that takes plain events by columns; None for every other."""
        facts = self._found.get(topic) if isinstance(topic, str) else None
        return facts if facts and facts.strategy == "crc32" and facts.by_columns else None

    def not_by_columns(self, topic: str) -> None:
        """Remember that the batches of a topic need publish_batch."""
        facts = self._found.get(topic)
        if facts is not None:
            self._found[topic] = facts._replace(by_columns=False)

    @contextmanager
    def forgotten_on_refusal(self, topics: Iterable[str]) -> Iterator[None]:
        """Forget the topics when the database refuses: one may be deleted or not committed."""
        try:
            yield
        except UsageError:
            for topic in topics:
                self._found.pop(topic, None)
            raise


def known_topics(connection: Any) -> KnownTopics:
    """What is remembered about the database of a connection."""
    return KnownTopics(remembered(database.database_key(connection)))


def known_to_connection(connection: Any) -> KnownTopics:
    """What is remembered for one connection that does not tell which database it is open to."""
    try:
        return KnownTopics(_connections.setdefault(connection, {}))
    except TypeError:  # it cannot be weakly referenced
        return KnownTopics({})


def remembered(key: tuple[str, ...] | None) -> Found:
    """The topics of one database; nothing is remembered when the database is not known."""
    if key is None:
        return {}
    if len(_databases) >= _MOST_DATABASES:
        _databases.clear()
    return _databases.setdefault((*key, config.schema_name()), {})


def installed() -> Steps[None]:
    """NotMigrated when the functions are missing; asking does not abort the transaction."""
    schema = config.schema_name()
    found = yield from asked("is_installed", schema=schema)
    if not found:
        raise NotMigrated(f"the database has no Penstock in the schema {schema}")


def require_installed(connection: Any) -> None:
    """The same, on a synchronous connection."""
    run(connection, installed())


def clear() -> None:
    """Forget everything."""
    _databases.clear()
    _connections.clear()


def accepted(facts: TopicFacts, row: Row) -> Row:
    """The event with its partition: PayloadTooLarge or InvalidPartition when it does not fit."""
    _refuse(facts, row)
    if row.partition is not None or facts.strategy in _BY_DATABASE:
        return row
    return _chosen(row, facts)


def _chosen(row: Row, facts: TopicFacts) -> Row:
    return row._replace(partition=strategies.choose(facts.strategy, row.key, facts.partitions))


def _refuse(facts: TopicFacts, row: Row) -> None:
    if len(row.payload) > facts.max_payload_bytes:
        raise PayloadTooLarge(
            f"the payload has {len(row.payload)} bytes, topic {row.topic!r} takes"
            f" {facts.max_payload_bytes}",
            hint="keep large data elsewhere and publish where it is",
        )
    if row.partition is not None and row.partition >= facts.partitions:
        raise InvalidPartition(
            f"topic {row.topic!r} has no partition {row.partition}",
            hint=f"it has {facts.partitions}, numbered from 0",
        )
