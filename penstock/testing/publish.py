"""Publishing into a log in memory: the event is a row of the caller's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from penstock.database.dialect import Row
from penstock.errors import (
    InvalidArgument,
    InvalidPartition,
    PayloadTooLarge,
    PenstockError,
    TopicNotFound,
)
from penstock.publishing.rows import Row as Given
from penstock.records import as_uuid
from penstock.testing.statements import refused, statement
from penstock.testing.store import MemoryTransaction
from penstock.testing.tables import HISTORY, MAX_PAYLOAD_BYTES, EventRow, TopicRow
from penstock.topics import strategies
from penstock.topics.partition_ids import id_of

#: The defaults of the log's settings.  They cannot be changed here.
DEDUP_WINDOW = timedelta(hours=1)
LONGEST_DELAY = timedelta(days=30)


class _DedupKey(NamedTuple):
    """Table dedup_keys, by topic and key."""

    event_id: uuid.UUID
    at: datetime


@statement
def topic_lookup(tx: MemoryTransaction, topic: str) -> list[Row]:
    """What a publisher needs to know about a topic.  No row when there is no such topic."""
    found: TopicRow | None = tx.get("topics", topic)
    if found is None:
        return []
    return [(found.topic_id, found.partitions, MAX_PAYLOAD_BYTES, HISTORY, found.strategy)]


@statement
def publish(
    tx: MemoryTransaction,
    *,
    topic: str,
    payload: bytes,
    key: str | None,
    type: str,
    content_type: str,
    headers: str | None,
    event_id: Any,
    partition: int | None,
    not_before: datetime | None,
    dedup_key: str | None,
    strict: bool,
) -> list[Row]:
    """Publishes one event.  Returns its id and whether it was a duplicate."""
    given = Given(
        topic, payload, key, type, content_type, headers, as_uuid(event_id), partition,
        not_before, dedup_key,
    )  # fmt: skip
    (original,) = _publish_all(tx, [given], strict)
    return [(original or given.event_id, original is not None)]


@statement
def publish_batch(
    tx: MemoryTransaction,
    *,
    topics: Sequence[str],
    payloads: Sequence[bytes],
    keys: Sequence[str | None] | None,
    types: Sequence[str],
    content_types: Sequence[str],
    headers: Sequence[str | None] | None,
    event_ids: Sequence[Any],
    partitions: Sequence[int | None] | None,
    not_befores: Sequence[datetime | None] | None,
    dedup_keys: Sequence[str | None] | None,
    strict: bool,
) -> list[Row]:
    """Publishes many events.  Returns how many, and the duplicates with the earlier events' ids."""
    none = [None] * len(topics)
    given = [
        Given(*row)
        for row in zip(
            topics, payloads, keys or none, types, content_types, headers or none,
            map(as_uuid, event_ids), partitions or none, not_befores or none, dedup_keys or none,
            strict=True,
        )
    ]  # fmt: skip
    originals = _publish_all(tx, given, strict)
    duplicates = [place for place, original in enumerate(originals) if original is not None]
    published = len(given) - len(duplicates)
    return [(published, duplicates, [originals[place] for place in duplicates])]


def _publish_all(
    tx: MemoryTransaction, events: Sequence[Given], strict: bool
) -> list[uuid.UUID | None]:
    """Publishes all or none.  Returns, for each event, the id of the earlier one it repeats."""
    topics = [_required(tx, place, event) for place, event in enumerate(events)]
    if strict:
        for name in sorted({(event.topic, event.key or "") for event in events}):
            tx.lock(("strict", name))
    claims = {
        (topic.topic_id, event.dedup_key)
        for topic, event in zip(topics, events, strict=True)
        if event.dedup_key is not None
    }
    for claim in sorted(claims):
        tx.lock(("dedup", claim))
    originals = []
    for topic, event in zip(topics, events, strict=True):
        original = _claimed(tx, topic, event)
        if original is None:
            _insert(tx, topic, event)
        originals.append(original)
    return originals


def _required(tx: MemoryTransaction, place: int, event: Given) -> TopicRow:
    found: TopicRow | None = tx.get("topics", event.topic)
    if found is None:
        raise _bad(TopicNotFound, place, event, "its topic does not exist")
    if len(event.payload) > MAX_PAYLOAD_BYTES:
        raise _bad(PayloadTooLarge, place, event, f"its payload has {len(event.payload)} bytes")
    if event.not_before is not None and event.not_before > tx.store.clock.now() + LONGEST_DELAY:
        raise _bad(InvalidArgument, place, event, f"it is delayed by more than {LONGEST_DELAY}")
    if event.partition is not None and event.partition not in range(found.partitions):
        raise _bad(InvalidPartition, place, event, f"there is no partition {event.partition}")
    if event.partition is None and found.strategy not in {"crc32", "round_robin"}:
        raise _bad(InvalidPartition, place, event, f"the strategy {found.strategy} needs one")
    return found


def _bad(kind: type[PenstockError], place: int, event: Given, problem: str) -> PenstockError:
    return refused(kind, f'event {place} for topic "{event.topic[:200]}": {problem}')


def _claimed(tx: MemoryTransaction, topic: TopicRow, event: Given) -> uuid.UUID | None:
    """The id of the earlier event with the dedup key.  Without one, this event takes the key."""
    if event.dedup_key is None:
        return None
    place, now = (topic.topic_id, event.dedup_key), tx.store.clock.now()
    found: _DedupKey | None = tx.get("dedup_keys", place)
    if found is not None and now - found.at < DEDUP_WINDOW:
        return found.event_id
    tx.put("dedup_keys", place, _DedupKey(event.event_id, now))
    return None


def _insert(tx: MemoryTransaction, topic: TopicRow, event: Given) -> None:
    now = tx.store.clock.now()
    row = EventRow(
        id_of(topic.topic_id, _partition(tx, topic, event)),
        event.event_id,
        event.key,
        event.type,
        event.content_type,
        event.headers,
        event.payload,
        now,
        event.not_before if event.not_before is not None and event.not_before > now else None,
    )
    tx.put("unsequenced", tx.store.next("events"), row)


def _partition(tx: MemoryTransaction, topic: TopicRow, event: Given) -> int:
    if event.partition is not None:
        return event.partition
    if event.key is not None and topic.strategy == "crc32":
        return strategies.partition_of(event.key, topic.partitions)
    return tx.store.next("round_robin") % topic.partitions
