"""Namespaces and topics."""

from __future__ import annotations

from typing import Any

from penstock import database
from penstock.errors import NamespaceNotFound
from penstock.records import Namespace, PartitionRange, Topic, TopicDescription
from penstock.topics import strategies, validation


def create_namespace(connection: Any, path: str, *, parents: bool = False) -> int:
    """Create a namespace below an existing one, with ``parents`` also the missing ones above it."""
    validation.namespace(path)
    if parents:
        _create_missing(connection, path.rpartition("/")[0])
    return int(_one(connection, "create_namespace", path=path))


def rename_namespace(connection: Any, path: str, new_name: str) -> str:
    """Give a namespace another name; what is below it follows.  Returns its new path."""
    validation.namespace(path)
    validation.single_name(new_name, "namespace")
    return str(_one(connection, "rename_namespace", path=path, new_name=new_name))


def move_namespace(connection: Any, path: str, new_parent: str) -> str:
    """Move a namespace under another one, or to the root (``""``).  Returns its new path."""
    validation.namespace(path)
    if new_parent != "":
        validation.namespace(new_parent)
    return str(_one(connection, "move_namespace", path=path, new_parent=new_parent))


def delete_namespace(connection: Any, path: str, *, with_topics: bool = False) -> int:
    """Delete a namespace and all below it.  Returns how many topics it deleted.

    InUse when there are topics, unless ``with_topics``, and always when a subscription reads one.
    """
    validation.namespace(path)
    return int(_one(connection, "delete_namespace", path=path, with_topics=with_topics))


def list_namespaces(connection: Any) -> list[Namespace]:
    """All namespaces that the login may see, parents first."""
    return [Namespace(*row) for row in database.call(connection, "list_namespaces")]


def create_topic(
    connection: Any,
    topic: str,
    partitions: int = 1,
    *,
    strategy: str = "crc32",
    create_namespaces: bool = False,
    if_not_exists: bool = False,
) -> int:
    """Create a topic in an existing namespace, or with ``create_namespaces`` in a new one.

    With ``if_not_exists`` an existing topic is left as it is.  It must have the same strategy and
    at least as many partitions (it may have grown), else AlreadyExists.

    ``strategy`` says how an event that names no partition gets one: ``crc32`` of its key,
    ``round_robin``, ``explicit`` (every event must name one), or ``client:NAME`` for a function
    that publishers have registered with :func:`penstock.register_strategy`.
    """
    validation.topic(topic)
    validation.partition_count(partitions)
    strategies.require_valid(strategy)
    binds = {"topic": topic, "partitions": partitions, "strategy": strategy}
    if if_not_exists:
        binds["create_namespaces"] = create_namespaces
        return int(_one(connection, "ensure_topic", **binds))
    if create_namespaces:
        _create_missing(connection, topic.rpartition("/")[0])
    try:
        return int(_one(connection, "create_topic", **binds))
    except NamespaceNotFound as error:
        error.hint = "create_topic(..., create_namespaces=True) creates what is missing above it"
        raise


def rename_topic(connection: Any, topic: str, new_name: str) -> str:
    """Give a topic another name in its namespace.  Returns its new address."""
    validation.topic(topic)
    validation.single_name(new_name, "topic")
    return str(_one(connection, "rename_topic", topic=topic, new_name=new_name))


def move_topic(connection: Any, topic: str, namespace: str) -> str:
    """Move a topic into another namespace.  Returns its new address."""
    validation.topic(topic)
    validation.namespace(namespace)
    return str(_one(connection, "move_topic", topic=topic, namespace=namespace))


def resize_topic(connection: Any, topic: str, partitions: int) -> int:
    """Give a topic more partitions.  Returns how many it had.

    From then on a key may go to another partition.  So the events of a key from before and from
    after the change are not in order with each other.
    """
    validation.topic(topic)
    validation.partition_count(partitions)
    return int(_one(connection, "resize_topic", topic=topic, partitions=partitions))


def delete_topic(connection: Any, topic: str, *, with_subscriptions: bool = False) -> None:
    """Delete a topic with its events; InUse when a subscription reads it.

    With ``with_subscriptions`` its subscriptions read on without it.
    """
    validation.topic(topic)
    binds = {"topic": topic, "with_subscriptions": with_subscriptions}
    database.call(connection, "delete_topic", **binds)


def list_topics(
    connection: Any, namespace: str = "", *, after: str = "", max_rows: int | None = None
) -> list[Topic]:
    """The topics at or below a namespace that the login may see; all when it is empty.

    In the order of their addresses: those that come ``after`` one, and at most ``max_rows``.
    """
    if namespace:
        validation.namespace(namespace)
    binds = {"namespace": namespace, "after": after, "max_rows": max_rows}
    return [Topic(*row) for row in database.call(connection, "list_topics", **binds)]


def describe_topic(connection: Any, topic: str) -> TopicDescription:
    """A topic's settings, its partitions, and which sequences of each can be fetched."""
    validation.topic(topic)
    _, *properties = database.call(connection, "describe_topic", topic=topic)[0]
    return TopicDescription(topic, tuple(partition_ranges(connection, topic)), *properties)


def partition_ranges(connection: Any, topic: str) -> list[PartitionRange]:
    """Which sequences of each partition of a topic can be fetched, by the partition's number."""
    rows = database.call(connection, "high_watermarks", topic=topic)
    return [PartitionRange(*row) for row in rows]


def _create_missing(connection: Any, path: str) -> None:
    missing = []
    while path and not _one(connection, "namespace_exists", path=path):
        missing.append(path)
        path = path.rpartition("/")[0]
    for each in reversed(missing):
        database.call(connection, "create_namespace", path=each)


def _one(connection: Any, name: str, **binds: Any) -> Any:
    return database.call(connection, name, **binds)[0][0]
