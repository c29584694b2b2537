"""What the database answers, as frozen records."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One event to publish.

    Without ``partition`` the key chooses it; without a key the topic's partitions take turns.
    Without ``event_id`` the publisher makes one.
    """

    topic: str
    payload: bytes | bytearray | memoryview
    key: str | None = field(default=None, kw_only=True)
    type: str = field(default="", kw_only=True)
    content_type: str = field(default="application/octet-stream", kw_only=True)
    headers: Mapping[str, Any] | None = field(default=None, kw_only=True)
    event_id: uuid.UUID | None = field(default=None, kw_only=True)
    partition: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the log.

    ``sequence`` is its position in its partition, 1, 2, 3, ... without a gap in one ``history``.
    """

    topic: str
    partition: int
    sequence: int
    event_id: uuid.UUID
    key: str | None
    type: str
    content_type: str
    headers: dict[str, Any]
    payload: bytes
    created_at: datetime
    sequenced_at: datetime
    history: int

    @classmethod
    def from_row(cls, topic: str, partition: int, row: Sequence[Any]) -> Event:
        """An event out of a row of ``fetch`` or ``poll``: sequence, event_id, ..., history."""
        sequence, event_id, key, kind, content_type, headers, payload, *rest = row
        return cls(
            topic, partition, sequence, as_uuid(event_id), key, kind, content_type,
            as_headers(headers), bytes(payload), *rest,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one consumer to read one partition, fenced by ``lease_epoch``."""

    topic: str
    partition: int
    partition_id: int
    lease_epoch: int
    state: str
    position: int
    history: int


@dataclass(frozen=True, slots=True)
class LogEpoch:
    """A sealed range of sequences of one partition; archived, verified and dropped as one."""

    topic: str
    partition: int
    log_epoch: int
    first_sequence: int
    last_sequence: int
    event_count: int
    checksum: str
    sealed_at: datetime | None = None
    dropped_at: datetime | None = None
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace: a path of names that topics live in."""

    path: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, its number of partitions, and how an event gets one of them."""

    address: str
    partitions: int
    created_at: datetime
    strategy: str = "crc32"


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """What of a partition can be fetched: from ``low_sequence`` to ``high_watermark``."""

    partition: int
    low_sequence: int
    high_watermark: int
    history: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with the range of each partition, and what is set for it.

    ``max_unsequenced_events`` and ``max_unsequenced_bytes`` are the limits of back pressure, None
    for no limit; ``subscriptions`` counts who reads it.
    """

    topic: str
    partitions: tuple[PartitionRange, ...]
    strategy: str
    max_payload_bytes: int
    max_unsequenced_events: int | None
    max_unsequenced_bytes: int | None
    restricted: bool
    subscriptions: int
    created_at: datetime


def as_uuid(value: Any) -> uuid.UUID:
    """A UUID, also from a driver that answers text."""
    return value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))


def as_headers(value: Any) -> dict[str, Any]:
    """Headers as a dictionary, also from a driver that answers JSON as text.

    Never raises for what a database holds, or one event would stop its readers: a number beyond
    Python's limits stays text, and headers that cannot be decoded are answered as
    ``{"penstock-undecodable": "their first 1,000 characters"}``.
    """
    if value is None:
        return {}
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        text = value
        try:
            # As the database writes it: one object without space around it.
            value, _ = _decode(text)
        except (ValueError, RecursionError):
            return {UNDECODABLE: text[:1_000]}
    if type(value) is dict:
        return value
    return dict(value) if isinstance(value, Mapping) else {UNDECODABLE: str(value)[:1_000]}


def _integer(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:  # more digits than sys.get_int_max_str_digits()
        return text


def _float(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


#: The only header of an event whose headers cannot be decoded.
UNDECODABLE = "penstock-undecodable"

_decode = json.JSONDecoder(parse_int=_integer, parse_float=_float).raw_decode
