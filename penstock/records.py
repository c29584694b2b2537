"""What the database returns, as frozen records."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, TypeVar

from penstock.errors import InvalidArgument

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Message:
    """One event to publish: the table of docs/reference/publishing.md is made of the comments."""

    topic: str
    payload: bytes | bytearray | memoryview
    #: Events of one key go to one partition and keep their order.  At most 255 characters.  Without
    #: a key the partitions take turns.
    key: str | None = field(default=None, kw_only=True)
    #: A name for the kind of event, at most 255 characters.  Consumers can filter by it.
    type: str = field(default="", kw_only=True)
    #: With `application/json` or `text/...` relays and files show the payload as text.
    content_type: str = field(default="application/octet-stream", kw_only=True)
    #: A dictionary with text keys, at most 65,536 bytes as JSON.
    headers: Mapping[str, Any] | None = field(default=None, kw_only=True)
    #: Your own id of the event.  Without one the publisher makes a UUID.
    event_id: uuid.UUID | None = field(default=None, kw_only=True)
    #: For topics whose publishers choose the partition.
    partition: int | None = field(default=None, kw_only=True)
    #: The event gets its sequence at this time, with a zone, or later: at most 30 days ahead.
    not_before: datetime | None = field(default=None, kw_only=True)
    #: While the log remembers this key, an hour at least, the topic takes no other event with it.
    dedup_key: str | None = field(default=None, kw_only=True)
    #: For relays to a broker that knows these words: they travel in headers.
    exchange: str | None = field(default=None, kw_only=True)
    routing_key: str | None = field(default=None, kw_only=True)
    #: For relays: how often this event is tried, 1 to 1,000.
    max_attempts: int | None = field(default=None, kw_only=True)


class MessageOptions(TypedDict, total=False):
    """The fields of a :class:`Message` that have a default, for functions that take them."""

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


@dataclass(frozen=True, slots=True)
class Published:
    """The result of publishing an event: its id, or for a duplicate the id of the earlier event."""

    event_id: uuid.UUID
    duplicate: bool


#: How much of its payload the repr of an event shows.
SHOWN_BYTES = 40


class Event:
    """One event of the log; immutable.

    ``sequence`` is its position in its partition, 1, 2, 3, ... without a gap in one ``history``.
    Event id, headers and times are decoded when they are first read, so a handler that reads only
    keys and payloads does not pay for them.
    """

    __slots__ = (
        "_created_at", "_event_id", "_headers", "_place", "_row", "_sequenced_at",
    )  # fmt: skip

    _place: tuple[str, int, int]
    _row: Sequence[Any]
    _event_id: uuid.UUID
    _headers: dict[str, Any]
    _created_at: datetime
    _sequenced_at: datetime

    def __init__(  # noqa: PLR0917 - the fields of the record, in their order
        self,
        topic: str,
        partition: int,
        sequence: int,
        event_id: uuid.UUID,
        key: str | None,
        type: str,
        content_type: str,
        headers: dict[str, Any],
        payload: bytes,
        created_at: datetime,
        sequenced_at: datetime,
        history: int,
    ) -> None:
        row = (
            sequence, event_id, key, type, content_type, headers, payload, created_at,
            sequenced_at,
        )  # fmt: skip
        _set_place(self, (topic, partition, history))
        _set_row(self, row)

    @classmethod
    def from_rows(
        cls, topic: str, partition: int, history: int, rows: Iterable[Sequence[Any]]
    ) -> list[Event]:
        """Events of one partition from rows: sequence, event_id, ..., sequenced_at."""
        place = (topic, partition, history)
        events = []
        # This loop is half of the cost of reading an event in Python: one object, two slots.
        for row in rows:
            event = _new_event(cls)
            _set_place(event, place)
            _set_row(event, row)
            events.append(event)
        return events

    @property
    def topic(self) -> str:
        """The address of the topic that it was read from."""
        return self._place[0]

    @property
    def partition(self) -> int:
        """The number of its partition in the topic, from 0."""
        return self._place[1]

    @property
    def sequence(self) -> int:
        """Its position in its partition."""
        return self._row[0]  # type: ignore[no-any-return]

    @property
    def event_id(self) -> uuid.UUID:
        """The id that its publisher gave it."""
        try:
            return self._event_id
        except AttributeError:
            return self._decoded("_event_id", as_uuid(self._row[1]))

    @property
    def key(self) -> str | None:
        """The key; events with the same key keep their order.  None when it has no key."""
        return self._row[2]  # type: ignore[no-any-return]

    @property
    def type(self) -> str:
        """What kind of event it is, in its publisher's words."""
        return self._row[3]  # type: ignore[no-any-return]

    @property
    def content_type(self) -> str:
        """How to read the payload."""
        return self._row[4]  # type: ignore[no-any-return]

    @property
    def headers(self) -> dict[str, Any]:
        """The headers: a JSON object that is published with the payload."""
        try:
            return self._headers
        except AttributeError:
            return self._decoded("_headers", as_headers(self._row[5]))

    @property
    def payload(self) -> bytes:
        """The event itself."""
        return bytes(self._row[6])

    @property
    def created_at(self) -> datetime:
        """When it was published, by the database's clock."""
        try:
            return self._created_at
        except AttributeError:
            return self._decoded("_created_at", as_time(self._row[7]))

    @property
    def sequenced_at(self) -> datetime:
        """When it got its sequence."""
        try:
            return self._sequenced_at
        except AttributeError:
            return self._decoded("_sequenced_at", as_time(self._row[8]))

    @property
    def history(self) -> int:
        """The line of history that its sequence belongs to."""
        return self._place[2]

    def _decoded(self, slot: str, value: T) -> T:
        object.__setattr__(self, slot, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: an event does not change."""
        raise AttributeError(f"an Event is immutable, {name} cannot be set")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in EVENT_FIELDS)

    def __eq__(self, other: object) -> bool:
        """Whether all fields are equal."""
        return self._values() == other._values() if isinstance(other, Event) else NotImplemented

    def __hash__(self) -> int:
        """By its place in the log."""
        return hash((self.topic, self.partition, self.sequence, self.history))

    def __repr__(self) -> str:
        """All fields; of the payload its size and how it begins."""
        fields = (
            f"payload={_beginning(value)}" if name == "payload" else f"{name}={value!r}"
            for name, value in zip(EVENT_FIELDS, self._values(), strict=True)
        )
        return f"Event({', '.join(fields)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied by its decoded fields."""
        return Event, self._values()


def _beginning(payload: bytes) -> str:
    """Enough to tell which event it is, and little enough for a line of a log."""
    shown = repr(payload[:SHOWN_BYTES])
    more = "..." if len(payload) > SHOWN_BYTES else ""
    return f"<{len(payload)} bytes: {shown}{more}>"


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
    """A sealed range of sequences of one partition; archived, verified and dropped as one.

    Archives know the topic by ``known_as`` (see `TopicDescription`).
    """

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
    known_as: str = ""


@dataclass(frozen=True, slots=True)
class EpochCopyState:
    """A recorded copy of a log epoch, and whether it is still there.

    ``state`` is "verified" or "missing"; ``detail`` says why.  ``location``, ``layout`` and
    ``first_row`` say where it lies: see `penstock.archive.copies.Copy`.
    """

    partition: int
    log_epoch: int
    target: str
    state: str
    detail: str | None
    changed_at: datetime
    location: str = ""
    layout: int = 1
    first_row: int = 0


@dataclass(frozen=True, slots=True)
class RetentionLimit:
    """How full a topic is whose retention has a limit in bytes (``max_bytes``).

    ``size``: what is sealed and not removed; ``above``: how much of it is above the limit.
    ``uncounted`` log epochs are not in it yet; the next runs of clean count them. ``hold`` says
    what keeps the oldest one above it, ``log_epoch`` of ``partition``; None: the next run of clean
    removes it.
    """

    topic: str
    max_bytes: int
    size: int
    uncounted: int
    above: int
    partition: int | None
    log_epoch: int | None
    hold: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterCounts:
    """How many dead letters a subscription has in each state; the oldest one's age in seconds."""

    subscription: str
    dead: int
    parked: int
    redriven: int
    oldest_seconds: float
    #: Of the dead and parked: copies lie in the topic that the subscription names, or it took none.
    forwarded: int = 0
    not_forwarded: int = 0

    @property
    def left(self) -> int:
        """Those that an operator has to look at here: those that went on are looked at there."""
        return self.dead + self.parked - self.forwarded

    @property
    def unforwarded(self) -> int:
        """The dead ones without those that went on."""
        return max(self.dead - self.forwarded, 0)


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
    """The sequences of a partition that can be fetched: ``low_sequence`` to ``high_watermark``.

    ``partition_id`` never changes, even when the topic's address does.
    """

    partition: int
    low_sequence: int
    high_watermark: int
    history: int
    partition_id: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with the range of each partition, and its settings.

    ``max_unsequenced_events`` and ``max_unsequenced_bytes`` are the limits of back pressure, None
    for no limit.  ``subscriptions`` is how many subscriptions read it.  ``known_as`` is the name by
    which sinks and archives know the topic, even when its address changes.
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
    topic_id: int
    known_as: str


def payload_bytes(events: Iterable[Event]) -> tuple[int, int]:
    """How many events there are, and the bytes of all their payloads."""
    sizes = [len(event._row[6]) for event in events]
    return len(sizes), sum(sizes)


def headers_text(event: Event) -> str | None:
    """The headers as JSON: the text as it was read, where there is one, so that nothing changes."""
    given = event._row[5]
    if given is None or isinstance(given, str):
        return given
    return given.decode() if isinstance(given, bytes) else json.dumps(given)


def as_uuid(value: Any) -> uuid.UUID:
    """A UUID, also from a driver that returns its 16 bytes or text."""
    if isinstance(value, bytes):
        return uuid.UUID(bytes=value)
    return value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))


def as_time(value: Any) -> datetime:
    """An aware time, also from PostgreSQL's 8 bytes, or from a driver that omits the zone UTC."""
    if isinstance(value, bytes):
        return _POSTGRES_EPOCH + timedelta(microseconds=int.from_bytes(value, "big", signed=True))
    time = value if isinstance(value, datetime) else _time_of_codec(value)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _time_of_codec(value: Any) -> datetime:
    """A time from a connection that the application has told how to read times."""
    if isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], int):  # asyncpg's
        return _POSTGRES_EPOCH + timedelta(microseconds=value[0])
    with suppress(ValueError):
        return datetime.fromisoformat(str(value))
    raise InvalidArgument(
        f"a time came as {type(value).__name__}, because the connection reads timestamptz by a "
        "codec or loader of its own",
        hint="let it return datetime, or give Penstock a connection without it",
    )


def as_headers(value: Any) -> dict[str, Any]:
    """Headers as a dictionary, also from a driver that returns JSON as text.

    It never raises for headers that a database holds, because one event would then stop all its
    readers.  A number beyond Python's limits stays text.  Headers that cannot be decoded become
    ``{"penstock-undecodable": "their first 1,000 characters"}``.
    """
    if value is None:
        return {}
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        text = value
        try:
            # The database writes one object without space around it.
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

_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

#: The fields of an Event, in their order.
EVENT_FIELDS = (
    "topic", "partition", "sequence", "event_id", "key", "type", "content_type", "headers",
    "payload", "created_at", "sequenced_at", "history",
)  # fmt: skip

# The slots' own setters: __setattr__ refuses, and object.__setattr__ has to look up the name.
_new_event = object.__new__
_set_place = Event.__dict__["_place"].__set__
_set_row = Event.__dict__["_row"].__set__
