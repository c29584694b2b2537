"""Namespaces and topics."""

from __future__ import annotations

from typing import Any

from penstock import database, validation
from penstock.records import Namespace, PartitionRange, Topic, TopicDescription


def create_namespace(connection: Any, path: str, *, parents: bool = False) -> int:
    """Create a namespace below an existing one, with ``parents`` also the missing ones above it."""
    validation.namespace(path)
    if parents:
        _create_missing(connection, path.rpartition("/")[0])
    return int(database.call(connection, "create_namespace", path=path)[0][0])


def list_namespaces(connection: Any) -> list[Namespace]:
    """All namespaces, parents first."""
    return [Namespace(*row) for row in database.call(connection, "list_namespaces")]


def create_topic(
    connection: Any, topic: str, partitions: int = 1, *, create_namespaces: bool = False
) -> int:
    """Create a topic in an existing namespace, or with ``create_namespaces`` in a new one."""
    validation.topic(topic)
    validation.partition_count(partitions)
    if create_namespaces:
        _create_missing(connection, topic.rpartition("/")[0])
    rows = database.call(connection, "create_topic", topic=topic, partitions=partitions)
    return int(rows[0][0])


def list_topics(connection: Any, namespace: str = "") -> list[Topic]:
    """The topics at or below a namespace; all topics when it is empty."""
    if namespace:
        validation.namespace(namespace)
    return [Topic(*row) for row in database.call(connection, "list_topics", namespace=namespace)]


def describe_topic(connection: Any, topic: str) -> TopicDescription:
    """The partitions of a topic, and what of each can be fetched."""
    validation.topic(topic)
    rows = database.call(connection, "high_watermarks", topic=topic)
    return TopicDescription(topic, tuple(PartitionRange(*row) for row in rows))


def _create_missing(connection: Any, path: str) -> None:
    if not path:
        return
    known = {each.path for each in list_namespaces(connection)}
    names = path.split("/")
    for end in range(1, len(names) + 1):
        part = "/".join(names[:end])
        if part not in known:
            database.call(connection, "create_namespace", path=part)
