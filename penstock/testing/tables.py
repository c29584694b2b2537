"""The rows of a log in memory, and functions that find them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from penstock.errors import InvalidPartition, SubscriptionNotFound, TopicNotFound, WrongMode
from penstock.testing.statements import refused
from penstock.testing.store import MemoryTransaction
from penstock.topics.partition_ids import id_of

HISTORY = 1
MAX_PAYLOAD_BYTES = 1_048_576
MAX_SEQUENCE = 10**18

Place = tuple[int, int]  # a subscription and a partition


@dataclass(frozen=True, slots=True)
class TopicRow:
    """Table topics, by address."""

    topic_id: int
    address: str
    partitions: int
    strategy: str
    created_at: datetime
    known_as: str

    def partition_ids(self, first: int = 0) -> list[int]:
        """The ids of its partitions from a number on."""
        return [id_of(self.topic_id, number) for number in range(first, self.partitions)]


@dataclass(frozen=True, slots=True)
class EventRow:
    """Tables events and, until they are sequenced, unsequenced, by an increasing number."""

    partition_id: int
    event_id: uuid.UUID
    key: str | None
    type: str
    content_type: str
    headers: str | None
    payload: bytes
    created_at: datetime
    due_at: datetime | None


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """Table subscriptions, by name.  ``settings`` are all settings of its policies."""

    subscription_id: int
    name: str
    settings: Mapping[str, Any]
    policy_version: int = 1
    paused: bool = False
    mode: str = "stream"

    @property
    def lease_time(self) -> timedelta:
        """How long a consumer counts as alive without a heartbeat."""
        return timedelta(seconds=self.settings["lease_seconds"])


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """Table consumers, by subscription and name."""

    name: str
    session: uuid.UUID
    weight: float
    deadline: datetime
    #: The ids of the topics that it takes.  None means all.
    topics: frozenset[int] | None = None

    def takes(self, topic_id: int) -> bool:
        """Whether it may be given partitions of a topic."""
        return self.topics is None or topic_id in self.topics


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """Table leases, by subscription and partition.  It has the position too."""

    subscription_id: int
    partition_id: int
    position: int
    lease_epoch: int = 0
    state: str = "AVAILABLE"
    holder: str | None = None
    acquired_at: datetime | None = None
    moved_at: datetime | None = None
    moved_epoch: int = 0
    release_deadline: datetime | None = None

    @property
    def place(self) -> Place:
        """Its key."""
        return self.subscription_id, self.partition_id


def find_topic(tx: MemoryTransaction, address: str) -> TopicRow:
    """The topic at an address.  Raises TopicNotFound when there is none."""
    found: TopicRow | None = tx.get("topics", address)
    if found is None:
        raise refused(TopicNotFound, f'there is no topic "{address[:200]}"')
    return found


def find_partition(tx: MemoryTransaction, address: str, number: int) -> int:
    """The id of a partition.  Raises InvalidPartition when the topic has none of this number."""
    topic = find_topic(tx, address)
    if number not in range(topic.partitions):
        raise refused(InvalidPartition, f'topic "{address[:200]}" has no partition {number}')
    return id_of(topic.topic_id, number)


def find_subscription(tx: MemoryTransaction, name: str) -> SubscriptionRow:
    """The subscription with a name.  Raises SubscriptionNotFound when there is none."""
    found: SubscriptionRow | None = tx.get("subscriptions", name)
    if found is None:
        raise refused(SubscriptionNotFound, f'there is no subscription "{name}"')
    return found


def find_stream(tx: MemoryTransaction, name: str) -> SubscriptionRow:
    """A subscription that is no queue.  Raises WrongMode for one that is."""
    found = find_subscription(tx, name)
    if found.mode != "stream":
        raise refused(WrongMode, f'subscription "{name}" is a queue')
    return found


def require_reads(tx: MemoryTransaction, owner: SubscriptionRow, address: str) -> int:
    """The id of a topic.  Raises SubscriptionNotFound when the subscription does not read it."""
    topic_id = find_topic(tx, address).topic_id
    if tx.get("subscription_topics", (owner.subscription_id, topic_id)) is None:
        raise refused(
            SubscriptionNotFound, f'subscription "{owner.name}" does not read topic "{address}"'
        )
    return topic_id


def topics_by_id(tx: MemoryTransaction) -> dict[int, TopicRow]:
    """Every topic, by its id."""
    return {topic.topic_id: topic for topic in tx.rows("topics").values()}


def leases_of(tx: MemoryTransaction, subscription_id: int) -> list[LeaseRow]:
    """The leases of a subscription, by their partitions."""
    found = [each for each in tx.rows("leases").values() if each.subscription_id == subscription_id]
    return sorted(found, key=lambda each: each.partition_id)


def put_lease(tx: MemoryTransaction, lease: LeaseRow) -> None:
    """Write a lease."""
    tx.put("leases", lease.place, lease)


def lock_lease(tx: MemoryTransaction, place: Place, *, wait: bool = True) -> LeaseRow | None:
    """A lease, read after it is locked.  None when there is none, or it cannot be locked."""
    if not tx.lock(("lease", place), wait=wait):
        return None
    found: LeaseRow | None = tx.get("leases", place)
    return found


def high_watermark(tx: MemoryTransaction, partition_id: int) -> int:
    """The last sequence of a partition."""
    return tx.get("watermarks", partition_id) or 0
