"""A look at events without taking them: of a queue, or of a log by sequence, time or key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from consumers.gateway.pages.readings import Budget
from consumers.gateway.pages.visits import PageRoute, Visit
from penstock import database, log
from penstock.errors import InvalidArgument
from penstock.records import Event, PartitionRange
from penstock.subscriptions import queue
from penstock.topics import names, strategies
from penstock.upkeep.pages import PageAnswer

MOST_EVENTS = 20
#: For a key, so many of the newest events of its partition are read, or so many bytes.
MOST_LOOKED_AT = 2_000
_STEP = 100
_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class WantedPlace:
    """Where to look, as somebody has said it."""

    topic: str
    partition: int | None
    sequence: int | None
    key: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class FoundEvents:
    """Events of a partition, and what was looked at for them: from a sequence on."""

    partition: int
    events: list[Event]
    range: PartitionRange
    looked_from: int | None = None


def peek_queue(visit: Visit) -> PageAnswer:
    """The next events of a queue, and what each waits for."""
    name = visit.needed("name")
    found = visit.read(("peek", name), lambda c: queue.peek(c, name, MOST_EVENTS))
    return visit.show("peek_queue.html", f"Next in {name}", name=name, found=found)


def peek(visit: Visit) -> PageAnswer:
    """Events of a topic: from a sequence or a time on, or the newest of a key."""
    place = WantedPlace(
        visit.needed("topic"),
        visit.number("partition", 0, 65_535),
        visit.number("sequence", 1),
        visit.text("key"),
        visit.time("since"),
    )
    budget = visit.house.readings.budget()
    found = visit.read(place, lambda c: _found(c, budget, place))
    return visit.show("peek.html", place.topic, topic=place.topic, found=found)


def _found(connection: Any, budget: Budget, place: WantedPlace) -> FoundEvents:
    topic, partition, sequence = place.topic, place.partition, place.sequence
    ranges = {each.partition: each for each in names.partition_ranges(connection, topic)}
    if partition is None:
        partition = _partition_of(connection, place, len(ranges)) if place.key else 0
    if partition not in ranges:
        raise InvalidArgument(f"the topic has no partition {partition}", hint="take a lower one")
    there = ranges[partition]
    if place.key:
        return _of_key(connection, budget, place, there)
    if place.since is not None:
        binds = {"topic": topic, "partition": partition, "since": place.since}
        sequence = int(database.call(connection, "position_at", **binds)[0][0]) + 1
    if sequence is None:
        sequence = max(there.low_sequence, there.high_watermark - MOST_EVENTS + 1)
    return FoundEvents(
        partition, log.fetch(connection, topic, partition, sequence, MOST_EVENTS), there
    )


def _partition_of(connection: Any, place: WantedPlace, partitions: int) -> int:
    """Where the events of a key are, as the topic's strategy says."""
    if names.describe_topic(connection, place.topic).strategy != "crc32":
        raise InvalidArgument(
            "the strategy of this topic does not say where a key is", hint="give the partition"
        )
    return strategies.partition_of(place.key, partitions)


def _of_key(
    connection: Any, budget: Budget, place: WantedPlace, there: PartitionRange
) -> FoundEvents:
    """The newest events of a key, among the newest of its partition: there is no index of keys."""
    found: list[Event] = []
    end, read = there.high_watermark, 0
    lowest = max(there.low_sequence, end - MOST_LOOKED_AT + 1)
    while end >= lowest and len(found) < MOST_EVENTS and read < _MOST_BYTES:
        if budget.is_over():
            break
        first = max(lowest, end - _STEP + 1)
        events = log.fetch(connection, place.topic, there.partition, first, end - first + 1)
        read += sum(len(each.payload) for each in events)
        found += [each for each in reversed(events) if each.key == place.key]
        end = first - 1
    return FoundEvents(there.partition, found[:MOST_EVENTS], there, end + 1)


ROUTES = (PageRoute("/peek", peek), PageRoute("/peek-queue", peek_queue))
