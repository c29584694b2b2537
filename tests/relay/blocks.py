"""Events and blocks made by hand, for the tests of sinks without a relay."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from ops.sinks.base import RelayBlock, SinkLease
from penstock.records import Event

TOPIC = "bank/accounts"
START = datetime(2026, 11, 21, 12, 0, 0, 250, tzinfo=UTC)


def event(sequence: int, *, topic: str = TOPIC, **changes: Any) -> Event:
    """One event; the same arguments give the same event."""
    given: dict[str, Any] = {
        "topic": topic,
        "partition": 0,
        "sequence": sequence,
        "event_id": uuid.uuid5(uuid.NAMESPACE_URL, f"{topic}/{sequence}"),
        "key": f"account-{sequence % 7}",
        "type": "moved",
        "content_type": "application/json",
        "headers": {},
        "payload": b'{"amount": %d}' % sequence,
        "created_at": START + timedelta(seconds=sequence),
        "sequenced_at": START + timedelta(seconds=sequence + 1),
        "history": 1,
    }
    return Event(**given | changes)


def block(first: int, last: int, *, reopened: bool = False, **changes: Any) -> RelayBlock:
    """A block of such events."""
    of_event = {
        name: changes[name] for name in ("topic", "partition", "history") if name in changes
    }
    given: dict[str, Any] = {
        "relay": "to-the-sink",
        "topic": TOPIC,
        "known_as": changes.get("topic", TOPIC),
        "partition": 0,
        "history": 1,
        "lease_epoch": 1,
        "first_sequence": first,
        "last_sequence": last,
        "reopened": reopened,
        "events": tuple(event(sequence, **of_event) for sequence in range(first, last + 1)),
    }
    return RelayBlock(**given | changes)


def lease(**changes: Any) -> SinkLease:
    """The lease under which such blocks of partition 0 are sent."""
    given: dict[str, Any] = {
        "relay": "to-the-sink",
        "topic": TOPIC,
        "known_as": TOPIC,
        "partition": 0,
        "history": 1,
        "lease_epoch": 1,
    }
    return SinkLease(**given | changes)
