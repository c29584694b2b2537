"""What a relay writes to: the small interface, the block that it sends, and what can go wrong.

A block is a range of one partition. The relay records it in the database, fenced by lease_epoch,
before it sends anything of it. A successor gets exactly the same block, so a sink has one task: a
block that is sent twice is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.errors import SinkError
from penstock.log.restores import Seen
from penstock.records import Event

T = TypeVar("T")


class SinkUnavailable(SinkError):
    """The sink does not answer or cannot take more now.  The block is tried again later.

    With ``retry_after`` the sink has said after how many seconds.
    """

    def __init__(self, message: str, *, hint: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class SinkPaused(SinkError):
    """The sink asks for a pause until a person resumes the relay: its subscription is paused."""


class SinkMisconfigured(SinkError):
    """With its present settings the sink would lose or double events. The text says what to set."""

    lasts = True


class EventRefused(SinkError):
    """The sink will never take this event.  It goes to the dead letters; its block goes on."""

    def __init__(self, sequence: int, reason: str) -> None:
        super().__init__(f"the sink refused the event of sequence {sequence}: {reason}")
        self.sequence = sequence
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RelayBlock:
    """One recorded range of one partition, with its events except the dead-lettered ones.

    ``topic`` is the address that the topic had when the range was recorded, so a repeated block is
    the same. ``known_as`` is the permanent name of the topic, by which sinks know what was sent.
    """

    relay: str
    topic: str
    known_as: str
    partition: int
    history: int
    lease_epoch: int
    first_sequence: int
    last_sequence: int
    reopened: bool
    events: tuple[Event, ...]
    #: The topic's address in the log, where rules have put another one in its place.
    source_topic: str = ""
    #: Which of the places of its partition a part of a block is for, where events choose them.
    place: str = ""
    #: The last sequence that was sent to each place before the block, where a place does not get
    #: every event. None: every event before the block was sent, or given up.
    passed: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class SinkLease:
    """The partition that a channel serves, and the lease under which it does.

    ``topic`` is the address that the topic has now; a block carries the one that it was recorded
    under. ``installation`` is the id of the database that the events come from.
    """

    relay: str
    topic: str
    known_as: str
    partition: int
    history: int
    lease_epoch: int
    installation: str = ""


def encoded(events: Iterable[Event], encode: Callable[[Event], T]) -> Iterator[T]:
    """Each event as the sink writes it.  One that cannot be written is refused."""
    for event in events:
        try:
            yield encode(event)
        except ValueError as error:
            raise EventRefused(event.sequence, f"it cannot be encoded: {error}") from error


class Channel(Protocol):
    """The way to one partition of a sink, for one lease.

    It is used by one thread at a time, not always the same one; only ``abort`` comes from another
    thread in the middle of a call. After any error the relay closes it and opens another one for
    the next attempt.
    """

    def seen(self) -> Seen | None:
        """The last event of this relay's partition that the sink holds.

        None when it cannot tell. A log that does not reach it was restored to an earlier state.
        """

    def send_block(self, block: RelayBlock) -> None:
        """Store the block.  It is durable when this returns.

        Raises SinkUnavailable, EventRefused or SinkMisconfigured.
        """

    def close(self) -> None:
        """End it.  What was not sent is not sent later."""

    def abort(self) -> None:
        """End a call that is under way, and all later ones: they raise SinkUnavailable.

        The lease was lost, or the relay was told to stop and has waited. It comes from another
        thread, and ``close`` follows. A channel without it is closed.
        """
        self.close()


def abort_of(channel: Channel) -> Callable[[], None]:
    """Its ``abort``.  A sink of somebody else's may be older than that: then its ``close``."""
    found: Callable[[], None] = getattr(channel, "abort", channel.close)
    return found


class Sink(Protocol):
    """Where a relay writes.  One instance serves many topics and partitions, by their channels."""

    #: The sink's name in messages.
    name: str
    #: The limits of a block that the relay opens.
    max_block_events: int
    max_block_bytes: int

    def preflight(self, topic: str, partitions: int) -> None:
        """Prove that nothing will be lost or doubled.  SinkMisconfigured says what to set."""

    def open(self, lease: SinkLease) -> Channel:
        """The channel of a partition.  Called from several threads at once; it may take a while.

        The database has just confirmed the lease, so a sink that fences can do it here.
        """

    def close(self) -> None:
        """Close what the channels share.  They were closed before."""
