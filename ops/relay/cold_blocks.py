"""Blocks of events that only the archive has, for a relay that stands below the low sequence.

The database cannot see these events, so the relay itself says where a block ends. All else is as
with every block: it is recorded before it is sent, fenced, and sent again by a successor. What is
recorded decides, so it does not matter where a successor would cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import archive, database
from penstock.archive.hot_or_cold import LowSequences
from penstock.archive.log_reader import events_of

if TYPE_CHECKING:
    from penstock.archive.targets import Target
    from penstock.database import Connection
    from penstock.records import Event, Lease


@dataclass(frozen=True, slots=True)
class ColdEvents:
    """Reads a leased partition over database and archive."""

    connection: Connection
    lease: Lease
    targets: Sequence[Target]

    def end_of_block(self, max_events: int, max_bytes: int) -> int:
        """The last sequence of the next block: what the sink takes, and all of it is cold."""
        lease, low = self.lease, LowSequences()
        low.learn(self.connection, [lease.topic])
        first = lease.position + 1
        cold = low.cut(lease.partition_id, range(first, first + max_events)).cold
        return _cut(self._events(cold, lease.topic), first, max_bytes)

    def between(self, subscription: str, first: int, last: int, topic: str) -> list[Event]:
        """The events of a block, without its dead letters, under the address that it has."""
        rows: list[tuple[Any, ...]] = database.call(
            self.connection,
            "dead_letters_between",
            subscription=subscription,
            partition_id=self.lease.partition_id,
            first_sequence=first,
            last_sequence=last,
        )
        passed = [range(start, up_to + 1) for start, up_to in rows]
        return [
            each
            for each in self._events(range(first, last + 1), topic)
            if not any(each.sequence in some for some in passed)
        ]

    def _events(self, found: range, topic: str) -> Iterable[Event]:
        lease, place = self.lease, (found.start, len(found))
        with archive.read_on(
            self.connection, lease.topic, lease.partition, *place, targets=self.targets
        ) as reader:
            for batch in reader:
                yield from events_of(topic, batch)


def _cut(events: Iterable[Event], first: int, max_bytes: int) -> int:
    """As the database cuts: the payloads stay below the bound, but a block has one event."""
    last, size = first, 0
    for event in events:
        size += len(event.payload)
        if size > max_bytes and event.sequence > first:
            break
        last = event.sequence
    return last
