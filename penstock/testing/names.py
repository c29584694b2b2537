"""Namespaces and topics of a log in memory.  Everyone has all rights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.database.dialect import Row
from penstock.errors import (
    AlreadyExists,
    InUse,
    InvalidPartition,
    MovedUnderItself,
    NamespaceNotFound,
)
from penstock.testing.statements import one, refused, statement
from penstock.testing.store import MemoryTransaction
from penstock.testing.tables import (
    MAX_PAYLOAD_BYTES,
    LeaseRow,
    TopicRow,
    find_topic,
    lock_lease,
    put_lease,
)
from penstock.topics import strategies, validation
from penstock.topics.partition_ids import topic_of


@statement
def is_installed(tx: MemoryTransaction, schema: str) -> list[Row]:
    """One row: there is nothing to install."""
    return one(1)


@statement
def create_namespace(tx: MemoryTransaction, path: str) -> list[Row]:
    """Creates one namespace below an existing parent.  Returns its id."""
    validation.namespace(path)
    parent = path.rpartition("/")[0]
    if parent:
        _require_namespace(tx, parent)
    _claim(tx, "namespace", path)
    tx.put("namespaces", path, tx.store.clock.now())
    return one(tx.store.next("namespaces"))


@statement
def rename_namespace(tx: MemoryTransaction, path: str, new_name: str) -> list[Row]:
    """Gives a namespace another name.  Returns its new path."""
    validation.namespace(path)
    validation.single_name(new_name, "namespace")
    _require_namespace(tx, path)
    parent, slash, _ = path.rpartition("/")
    return one(_place_namespace(tx, path, parent + slash + new_name))


@statement
def move_namespace(tx: MemoryTransaction, path: str, new_parent: str) -> list[Row]:
    """Moves a namespace under another parent, or to the root.  Returns its new path."""
    validation.namespace(path)
    _require_namespace(tx, path)
    name = path.rpartition("/")[-1]
    if new_parent:
        validation.namespace(new_parent)
        _require_namespace(tx, new_parent)
        if f"{new_parent}/".startswith(f"{path}/"):
            raise refused(MovedUnderItself, f'"{path[:200]}" cannot be moved under itself')
        name = f"{new_parent}/{name}"
    return one(_place_namespace(tx, path, name))


@statement
def delete_namespace(tx: MemoryTransaction, path: str, with_topics: bool) -> list[Row]:
    """Deletes a namespace with all below it.  Returns how many topics were deleted."""
    validation.namespace(path)
    _require_namespace(tx, path)
    topics = [each for each in tx.rows("topics").values() if _is_in(each.address, path)]
    if topics and not with_topics:
        raise refused(InUse, f'the namespace "{path[:200]}" holds {len(topics)} topics')
    for topic in topics:
        _drop(tx, topic, with_subscriptions=False)
    for each in tx.rows("namespaces"):
        if _is_in(str(each), path):
            tx.delete("namespaces", each)
    return one(len(topics))


@statement
def namespace_exists(tx: MemoryTransaction, path: str) -> list[Row]:
    """Whether there is a namespace."""
    return one(tx.get("namespaces", path) is not None)


@statement
def list_namespaces(tx: MemoryTransaction) -> list[Row]:
    """All namespaces, parents first."""
    return sorted(tx.rows("namespaces").items())


@statement
def create_topic(tx: MemoryTransaction, topic: str, partitions: int, strategy: str) -> list[Row]:
    """Creates a topic with its partitions.  Returns its id."""
    validation.topic(topic)
    validation.partition_count(partitions)
    strategies.require_valid(strategy)
    _require_namespace(tx, topic.rpartition("/")[0])
    _claim(tx, "topic", topic)
    topic_id = tx.store.next("topics")
    now = tx.store.clock.now()
    known_as = f"{topic}//{topic_id}"
    tx.put("topics", topic, TopicRow(topic_id, topic, partitions, strategy, now, known_as))
    return one(topic_id)


@statement
def ensure_topic(
    tx: MemoryTransaction, topic: str, partitions: int, strategy: str, create_namespaces: bool
) -> list[Row]:
    """Creates a topic unless it exists.  Returns its id."""
    validation.topic(topic)
    validation.partition_count(partitions)
    strategies.require_valid(strategy)
    parent = topic.rpartition("/")[0]
    steps = parent.split("/") if create_namespaces else []
    for path in ("/".join(steps[:depth]) for depth in range(1, len(steps) + 1)):
        tx.lock(("namespace", path))
        if tx.get("namespaces", path) is None:
            tx.put("namespaces", path, tx.store.clock.now())
    _require_namespace(tx, parent)
    tx.lock(("topic", topic))
    own = tx.get("topics", topic)
    if own is None:
        return create_topic(tx, topic, partitions, strategy)
    if own.strategy != strategy:
        text = f'the topic "{topic[:200]}" exists already, with the strategy "{own.strategy}"'
        raise refused(AlreadyExists, text)
    if own.partitions < partitions:
        text = f'the topic "{topic[:200]}" exists already, with {own.partitions} partitions'
        raise refused(AlreadyExists, f"{text}, fewer than {partitions}")
    return one(own.topic_id)


@statement
def rename_topic(tx: MemoryTransaction, topic: str, new_name: str) -> list[Row]:
    """Gives a topic another name.  Returns its new address."""
    validation.single_name(new_name, "topic")
    return one(_place_topic(tx, topic, topic.rpartition("/")[0] + "/" + new_name))


@statement
def move_topic(tx: MemoryTransaction, topic: str, namespace: str) -> list[Row]:
    """Moves a topic into another namespace.  Returns its new address."""
    find_topic(tx, topic)
    _require_namespace(tx, namespace)
    return one(_place_topic(tx, topic, namespace + "/" + topic.rpartition("/")[-1]))


@statement
def resize_topic(tx: MemoryTransaction, topic: str, partitions: int) -> list[Row]:
    """Gives a topic more partitions.  Returns how many it had."""
    validation.partition_count(partitions)
    tx.lock(("topic", topic))
    own = find_topic(tx, topic)
    if partitions < own.partitions:
        raise InvalidPartition(
            f'topic "{topic[:200]}" has {own.partitions} partitions already',
            hint="Partitions are only added: the events of a removed one would have no place.",
        )
    grown = replace(own, partitions=partitions)
    tx.put("topics", topic, grown)
    for subscription_id in _readers(tx, own):
        for partition_id in grown.partition_ids(own.partitions):
            put_lease(tx, LeaseRow(subscription_id, partition_id, 0))
    return one(own.partitions)


@statement
def delete_topic(tx: MemoryTransaction, topic: str, with_subscriptions: bool) -> list[Row]:
    """Deletes a topic with its events."""
    tx.lock(("topic", topic))
    _drop(tx, find_topic(tx, topic), with_subscriptions=with_subscriptions)
    return one(None)


@statement
def list_topics(
    tx: MemoryTransaction, namespace: str, after: str, max_rows: int | None
) -> list[Row]:
    """The topics at or below a namespace, all of them when it is empty; those after an address."""
    return sorted(
        (topic.address, topic.partitions, topic.created_at, topic.strategy)
        for topic in tx.rows("topics").values()
        if topic.address > after and (not namespace or _is_in(topic.address, namespace))
    )[:max_rows]


@statement
def describe_topic(tx: MemoryTransaction, topic: str) -> list[Row]:
    """What is set for a topic, and how many subscriptions read it."""
    own = find_topic(tx, topic)
    return [
        (
            own.partitions, own.strategy, MAX_PAYLOAD_BYTES, None, None, False,
            len(_readers(tx, own)), own.created_at, own.topic_id, own.known_as,
        )
    ]  # fmt: skip


def _require_namespace(tx: MemoryTransaction, path: str) -> None:
    if tx.get("namespaces", path) is None:
        raise refused(NamespaceNotFound, f'there is no namespace "{path[:200]}"')


def _claim(tx: MemoryTransaction, what: str, path: str) -> None:
    """Locks a name.  Another transaction that claims the same name waits for this one."""
    tx.lock((what, path))
    if tx.get(f"{what}s", path) is not None:
        raise refused(AlreadyExists, f'there is already a {what} "{path[:200]}"')


def _is_in(path: str, namespace: str) -> bool:
    return f"{path}/".startswith(f"{namespace}/")


def _place_namespace(tx: MemoryTransaction, path: str, new_path: str) -> str:
    if new_path == path:
        return path
    _claim(tx, "namespace", new_path)
    for each, created_at in tx.rows("namespaces").items():
        if _is_in(str(each), path):
            moved = validation.namespace(new_path + str(each)[len(path) :])
            tx.delete("namespaces", each)
            tx.put("namespaces", moved, created_at)
    for topic in tx.rows("topics").values():
        if _is_in(topic.address, path):
            _readdress(tx, topic, new_path + topic.address[len(path) :])
    return new_path


def _place_topic(tx: MemoryTransaction, topic: str, new_address: str) -> str:
    validation.topic(topic)
    tx.lock(("topic", topic))
    own = find_topic(tx, topic)
    if new_address != topic:
        validation.topic(new_address)
        _claim(tx, "topic", new_address)
        _readdress(tx, own, new_address)
    return new_address


def _readdress(tx: MemoryTransaction, topic: TopicRow, address: str) -> None:
    tx.delete("topics", topic.address)
    tx.put("topics", validation.topic(address), replace(topic, address=address))


def _readers(tx: MemoryTransaction, topic: TopicRow) -> list[int]:
    """The ids of the subscriptions that read a topic."""
    places: Iterable[tuple[int, int]] = tx.rows("subscription_topics")
    return [subscription_id for subscription_id, read in places if read == topic.topic_id]


def _drop(tx: MemoryTransaction, topic: TopicRow, *, with_subscriptions: bool) -> None:
    """Removes a topic.  The sequencer discards events that still come for it."""
    readers = _readers(tx, topic)
    if readers and not with_subscriptions:
        raise refused(InUse, f'a subscription reads the topic "{topic.address[:200]}"')
    for reader in readers:
        tx.delete("subscription_topics", (reader, topic.topic_id))
        for partition_id in topic.partition_ids():
            lock_lease(tx, (reader, partition_id))
            tx.delete("leases", (reader, partition_id))
            tx.delete("attempts", (reader, partition_id))
    for key in tx.rows("queue_events"):
        if topic_of(key[1]) == topic.topic_id:
            tx.delete("queue_events", key)
    for key, letter in tx.rows("dead_letters").items():
        if topic_of(letter.place[1]) == topic.topic_id:
            tx.delete("dead_letters", key)
    tx.delete("topics", topic.address)
