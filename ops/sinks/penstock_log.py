"""Another Penstock database, on any engine, exactly once.

The target has a row for each partition that a relay brings: how far it has come. One call of the
database locks and compares the row, publishes the events and moves it. A relay that is late finds
another place there, and nothing is published. A relay that is killed or paused leaves nothing open,
because the call is one statement, or on MySQL a transaction that the server ends soon.

Events keep their ids, keys and headers. When both topics have as many partitions, they keep their
partition; else the key chooses it, and events without a key go to the number of theirs, modulo. The
header `penstock-origin` says where an event was published first and through which databases it has
come. One that has been in the target before is left out there, so two databases can relay to each
other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, quote, urlencode

from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
)
from ops.sinks.ends import NOTHING, SinkEnd, left
from ops.sinks.logins import secret
from ops.sinks.options import flag, options_of
from penstock import database
from penstock.database import sessions
from penstock.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidArgument,
    NotMigrated,
    PayloadTooLarge,
    PermissionDenied,
    SinkError,
    TopicNotFound,
    UsageError,
    error_text,
    is_interruption,
)
from penstock.log.restores import Seen
from penstock.publishing.columns import packed
from penstock.publishing.steps import columns_of, rows_of
from penstock.records import Event, Message
from penstock.topics import names

if TYPE_CHECKING:
    from penstock.database import Connection

ORIGIN = "penstock-origin"
VARIABLES = "PENSTOCK_SINK"

_SAID = "Penstock"
_CHUNK = 2_000
_MILLISECONDS = 20_000
_OWN_OPTIONS = ("prefix", "create", "resend")
#: The arguments of publish_relayed on PostgreSQL. MySQL takes one JSON array.
_COLUMNS = ("payloads", "keys", "types", "content_types", "headers", "event_ids", "partitions")
_PLACE = re.compile(r"event (\d+)")
#: What connections say when the login was refused.
_LOGIN_HINTS = ("check the user and the password", "give a password")


class PenstockSink:
    """Publishes each topic to the topic of its address, or of PREFIX/ADDRESS, in the target."""

    name = "penstock"
    max_block_events = _CHUNK
    max_block_bytes = 4 << 20

    def __init__(
        self, url: str, *, prefix: str = "", create: bool = False, resend: bool = False
    ) -> None:
        self.resend = resend
        #: How many partitions the topics of the source have, by their addresses.
        self.partitions: dict[str, int] = {}
        self._url = url
        self._prefix = prefix
        self._create = create

    def target(self, topic: str) -> str:
        """The address of a topic in the target."""
        return f"{self._prefix}/{topic}" if self._prefix else topic

    def connect(self) -> Connection:
        """A connection to the target."""
        with _translated():
            return database.connect(
                self._url, application_name="penstock relay", statement_timeout_ms=_MILLISECONDS
            )

    def preflight(self, topic: str, partitions: int) -> None:
        """Check that the target has the topic, and that the login may publish to it."""
        target = self.target(topic)
        self.partitions[topic] = partitions
        with closing(self.connect()) as connection, _translated():
            if database.call(connection, "topic_lookup", topic=target):
                return
            if not self._create:
                raise SinkMisconfigured(
                    f'the other database has no topic "{target}" that the login may publish to',
                    hint="create it there (penstock topic create), or add create=true to the "
                    "sink's address",
                )
            names.create_topic(connection, target, partitions, create_namespaces=True)

    def open(self, lease: SinkLease) -> PenstockChannel:
        """The way to a topic of the target, for one lease."""
        return PenstockChannel(self, lease)

    def close(self) -> None:
        """The channels have closed their connections."""


class PenstockChannel:
    """One partition's row in the target, as long as one lease lasts."""

    def __init__(self, sink: PenstockSink, lease: SinkLease) -> None:
        self._sink = sink
        self._lease = lease
        self._connection: Connection | None = None
        self._ends: dict[str, SinkEnd] = {}
        self._here = ""
        self._ended = False
        self._partitions: dict[str, int] = {}

    def seen(self) -> Seen | None:
        """The last event that has come."""
        end = self._end(self._lease.topic)
        return None if end is NOTHING else Seen(end.sequence, end.history)

    def send_block(self, block: RelayBlock) -> None:
        """Publish what has not come yet, in calls that each move the row."""
        end, target = self._end(block.topic), self._sink.target(block.topic)
        place = f'"{target}" of the other database'
        events = left(block, end, place, resend=self._sink.resend, skip=self._skip)
        if (end.history, end.sequence) == (block.history, block.last_sequence):
            return
        for start in range(0, max(1, len(events)), _CHUNK):
            chunk = events[start : start + _CHUNK]
            is_last = start + _CHUNK >= len(events)
            sequence = block.last_sequence if is_last else chunk[-1].sequence
            self._publish(block, chunk, _end_at(block, sequence))

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def abort(self) -> None:
        """Wait for no answer of the database; connecting has a time limit of its own."""
        self._ended = True
        connection = self._connection
        if connection is not None:
            sessions.of_connection(connection).cut(connection)

    def _skip(self, topic: str, end: SinkEnd) -> None:
        self._move(topic, end, [])

    def _end(self, topic: str) -> SinkEnd:
        if topic not in self._ends:
            target = self._sink.target(topic)
            with _translated():
                rows = database.call(self._connected(), "relayed_to", **self._source(target))
            history, sequence, event_id, here, partitions = rows[0]
            if here == self._lease.installation and target == topic:
                raise SinkMisconfigured(
                    f'the sink is the topic "{topic}" itself',
                    hint="add prefix= to its address, or name another database",
                )
            self._here, self._partitions[topic] = str(here), int(partitions)
            found = SinkEnd(int(history), int(sequence), str(event_id or ""))
            self._ends[topic] = found if found.history else NOTHING
        return self._ends[topic]

    def _publish(self, block: RelayBlock, events: Sequence[Event], end: SinkEnd) -> None:
        wanted = [each for each in events if self._here not in _through(each)]
        messages = [self._message(each, block.topic) for each in wanted]
        try:
            self._move(block.topic, end, messages)
        except (PayloadTooLarge, InvalidArgument) as error:
            place = _PLACE.match(error.message)
            if place is None:
                raise SinkUnavailable(f"the other database: {error_text(error)}") from error
            raise EventRefused(wanted[int(place[1])].sequence, error.message) from error

    def _move(self, topic: str, end: SinkEnd, messages: Sequence[Message]) -> None:
        """Publish, and move the row, if it stands where it is expected."""
        target, expected = self._sink.target(topic), self._end(topic)
        with _translated():
            connection = self._connected()
            moved, *present = database.call(
                connection,
                "publish_relayed",
                **self._source(target),
                **_columns(connection, messages),
                expected_history=expected.history,
                expected_sequence=expected.sequence,
                to_history=end.history,
                to_sequence=end.sequence,
                last_event_id=end.event_id or None,
            )[0]
        if not moved:
            raise SinkUnavailable(
                f'"{target}" of the other database is at sequence {present[1]} of history '
                f"{present[0]}, not at {expected.sequence} of {expected.history}: another relay "
                "has gone on"
            )
        self._ends[topic] = end

    def _source(self, target: str) -> dict[str, Any]:
        lease = self._lease
        return {
            "topic": target,
            "installation": lease.installation,
            "relay": lease.relay,
            "known_as": lease.known_as,
            "source_partition": lease.partition,
        }

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._sink.connect()
        if self._ended:
            raise SinkUnavailable("the relay has ended the call to the other database")
        return self._connection

    def _message(self, event: Event, topic: str) -> Message:
        return Message(
            self._sink.target(topic),
            event.payload,
            key=event.key,
            type=event.type,
            content_type=event.content_type,
            headers=event.headers | {ORIGIN: self._origin(event)},
            event_id=event.event_id,
            partition=self._partition(event, topic),
        )

    def _partition(self, event: Event, topic: str) -> int | None:
        there = self._partitions[topic]
        if there == self._sink.partitions.get(topic, there):
            return event.partition
        return None if event.key else event.partition % there

    def _origin(self, event: Event) -> dict[str, Any]:
        before = event.headers.get(ORIGIN)
        first = before if isinstance(before, dict) else _first(event)
        return first | {"through": [*_through(event), self._lease.installation]}


def open_sink(parts: SplitResult, *, environ: Mapping[str, str], beside: str = "") -> PenstockSink:
    """The sink of an address: `penstock+postgresql://HOST:PORT/DATABASE`, `penstock+mysql:...`.

    What is no option of the sink is one of the database's address, such as `sslmode`.
    """
    scheme = parts.scheme.partition("+")[2]
    given = options_of(parts, (*_OWN_OPTIONS, *parse_qs(parts.query)), _SAID)
    own = {name: given.pop(name) for name in _OWN_OPTIONS if name in given}
    if not parts.netloc or not parts.path.strip("/"):
        raise ConfigurationError("the Penstock address names no server, or no database after it")
    login = ":".join(
        quote(secret(environ, f"{VARIABLES}_{each}"), safe="") for each in ("USERNAME", "PASSWORD")
    )
    host = parts.netloc if login == ":" else f"{login.removesuffix(':')}@{parts.netloc}"
    query = f"?{urlencode(given)}" if given else ""
    return PenstockSink(
        f"{scheme}://{host}{parts.path}{query}",
        prefix="/".join(each for each in (own.get("prefix", "").strip("/"), beside) if each),
        create=flag(own, "create", _SAID, default=False),
        resend=flag(own, "resend", _SAID, default=False),
    )


def _columns(connection: Connection, messages: Sequence[Message]) -> dict[str, Any]:
    """The events as publish_relayed takes them."""
    if database.dialect_of(connection) == "mysql":
        return packed(connection, **columns_of(rows_of(messages))) if messages else {"events": None}
    if not messages:
        return dict.fromkeys(_COLUMNS)
    binds = packed(connection, **columns_of(rows_of(messages)))
    return {name: binds[name] for name in _COLUMNS}


def _end_at(block: RelayBlock, sequence: int) -> SinkEnd:
    ids = [str(each.event_id) for each in block.events if each.sequence == sequence]
    return SinkEnd(block.history, sequence, ids[0] if ids else "")


def _through(event: Event) -> list[str]:
    """The databases through which an event has come."""
    origin = event.headers.get(ORIGIN)
    found = origin.get("through") if isinstance(origin, dict) else None
    return [str(each) for each in found] if isinstance(found, list) else []


def _first(event: Event) -> dict[str, Any]:
    """Where an event was published by an application."""
    return {
        "topic": event.topic,
        "partition": event.partition,
        "sequence": event.sequence,
        "history": event.history,
        "created_at": event.created_at.isoformat(),
    }


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the target as those of a sink, except those about one event."""
    try:
        yield
    except (SinkError, PayloadTooLarge, InvalidArgument):
        raise
    except (TopicNotFound, PermissionDenied, NotMigrated, UsageError) as error:
        raise SinkMisconfigured(f"the other database: {error.message}", hint=error.hint) from error
    except DatabaseUnavailable as error:
        if error.hint in _LOGIN_HINTS:
            raise SinkMisconfigured(
                f"the other database: {error.message}",
                hint=f"set {VARIABLES}_USERNAME and {VARIABLES}_PASSWORD, or their files",
            ) from error
        raise SinkUnavailable(f"the other database: {error_text(error)}") from error
    except Exception as error:
        if is_interruption(error):
            raise
        raise SinkUnavailable(f"the other database: {error_text(error)}") from error
