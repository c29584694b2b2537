"""Relay again: a window of the log, sent to a sink once more, to places of its own.

The blocks of a range are cut by its events alone, so an attempt that follows a killed one sends the
very same blocks, and the sink stores each once.  The name of the relay is the request's: a broker
that has seen the events from another relay does not take them for repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ops.backfill.requests import BackfillUnit
from ops.backfill.running import Job
from ops.relay.pace import RelayPace
from ops.sinks.base import Channel, EventRefused, RelayBlock, Sink, SinkLease
from ops.sinks.routed import routing_of
from penstock.database import call
from penstock.errors import EpochError, PenstockError
from penstock.topics.names import describe_topic, partition_ranges

if TYPE_CHECKING:
    from penstock.records import Event

#: While the pace makes it wait, a runner sees as often whether it still has its request.
_LOOK_SECONDS = 0.5

#: The events of a range of a partition, in order, wherever they are, as those of a history.
ReadEvents = Callable[[BackfillUnit, int], Iterator["Event"]]


def place_of(connection: Any, request: int) -> str:
    """The name of a request's own places in a sink.

    It holds the installation's id: databases may share a sink, and each counts from 1.
    """
    return f"backfill-{request}-{_installation(connection)}"


def _installation(connection: Any) -> str:
    ((installation,),) = call(connection, "installation_id")
    return str(installation)


class RelayAgain:
    """Sends the ranges of one request."""

    def __init__(self, job: Job, open_beside: Callable[[str], Sink], read: ReadEvents) -> None:
        """Check that the sink can take the topic; SinkMisconfigured says what to set.

        ``open_beside`` opens the sink with places of its own under the name that it gets.
        """
        claim = job.claim
        self._job = job
        self._read = read
        self._name = place_of(job.connection, claim.request)
        self._installation = _installation(job.connection)
        self._sink = open_beside(self._name)
        pacing = routing_of(self._sink).pacing
        self._pace = RelayPace(pacing)
        self._most = (
            pacing.block_events(self._sink.max_block_events),
            pacing.block_bytes(self._sink.max_block_bytes),
        )
        self._held: set[int] = set()
        found = describe_topic(job.connection, claim.topic)
        self._sink.preflight(claim.topic, len(found.partitions))
        ranges = partition_ranges(job.connection, claim.topic)
        self._history = max(each.history for each in ranges)

    def bring(self, unit: BackfillUnit) -> None:
        """Send a range, after those before it in its partition, and record it as done."""
        if unit.partition in self._held:
            raise EpochError(
                "an earlier range of its partition was not sent",
                hint="the next attempt sends them in order",
            )
        try:
            self._send(unit)
        except PenstockError:
            self._held.add(unit.partition)
            raise
        self._job.done(unit)

    def close(self) -> None:
        """Close the sink's connections."""
        self._sink.close()

    def _send(self, unit: BackfillUnit) -> None:
        self._job.alive.check()
        with closing(self._sink.open(self._lease(unit))) as channel:
            self._send_on(channel, unit)

    def _lease(self, unit: BackfillUnit) -> SinkLease:
        claim = self._job.claim
        return SinkLease(
            relay=self._name,
            topic=claim.topic,
            known_as=claim.known_as,
            partition=unit.partition,
            history=self._history,
            lease_epoch=claim.attempt,
            installation=self._installation,
        )

    def _send_on(self, channel: Channel, unit: BackfillUnit) -> None:
        seen = channel.seen()
        stored = seen.sequence if seen is not None and seen.history == self._history else 0
        if stored >= unit.last_sequence:
            return  # it was sent by an attempt that died before it could say so
        with closing(self._blocks(unit)) as blocks:
            for block in blocks:
                if block.last_sequence > stored:
                    self._job.alive.check()
                    self._send_block(channel, block)

    def _send_block(self, channel: Channel, block: RelayBlock) -> None:
        while left := self._pace.wait_seconds():
            self._job.alive.check()
            time.sleep(min(left, _LOOK_SECONDS))
        self._pace.spend(block.events)
        try:
            channel.send_block(block)
        except EventRefused as error:  # the fault of one event: other partitions go on
            raise EpochError(error.message, hint="relay the windows around this event") from error

    def _blocks(self, unit: BackfillUnit) -> Generator[RelayBlock, None, None]:
        """The range in blocks that the sink takes, cut by what is in them alone."""
        events: list[Event] = []
        size = 0
        expected = unit.first_sequence
        for event in self._read(unit, self._history):
            if event.sequence != expected:
                raise EpochError(f"sequence {event.sequence} was read instead of {expected}")
            expected += 1
            length = len(event.payload)
            full = len(events) == self._most[0]
            if events and (full or size + length > self._most[1]):
                yield self._block(unit, events)
                events, size = [], 0
            events.append(event)
            size += length
        if expected != unit.last_sequence + 1:
            raise EpochError(f"what was read ends before sequence {expected}")
        yield self._block(unit, events)

    def _block(self, unit: BackfillUnit, events: list[Event]) -> RelayBlock:
        claim = self._job.claim
        return RelayBlock(
            relay=self._name,
            topic=claim.topic,
            known_as=claim.known_as,
            partition=unit.partition,
            history=self._history,
            lease_epoch=claim.attempt,
            first_sequence=events[0].sequence,
            last_sequence=events[-1].sequence,
            reopened=True,
            events=tuple(events),
            passed={},  # a window begins anywhere in the log
        )
