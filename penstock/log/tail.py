"""Follow a topic: read events of all its partitions as they get their sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from penstock import database
from penstock.database import config
from penstock.errors import InvalidArgument, TopicNotFound
from penstock.log import sequences
from penstock.records import Event, PartitionRange
from penstock.topics import names

_FIRST_PAUSE = 0.05
_AT_ONCE = 500


def tail(
    connection: Any,
    topic: str,
    start: str | int = "latest",
    *,
    follow: bool = True,
    max_idle_seconds: float = 1.0,
    after_look: Callable[[bool], object] = lambda found: None,
) -> Iterator[Event]:
    """The events of all partitions of a topic, each partition in order; no position is kept.

    ``start``: ``earliest`` is all that the database holds, ``latest`` only new events.  A number
    is that many of the newest events of each partition.  With ``follow`` it goes on until the
    caller stops asking.  Without ``follow`` it ends at the high watermarks of the moment when it
    began.  Needs a connection outside of a transaction.  ``after_look`` is called after each look,
    with whether it found events.
    """
    done: dict[int, int] | None = None
    followed: set[int] = set()
    waiting = _Waiting(connection, max_idle_seconds) if follow else None
    while True:
        ranges = names.partition_ranges(connection, topic)
        if done is None:
            done = {each.partition: _before(start, each) for each in ranges}
        followed = _still_there(topic, followed, {each.partition_id for each in ranges})
        grown = {
            each.partition: each.high_watermark
            for each in ranges
            # A partition that a resize has added is read from its beginning.
            if done.setdefault(each.partition, each.low_sequence - 1) < each.high_watermark
        }
        yield from _read(connection, topic, done, dict(grown))
        if waiting is None:
            return
        after_look(bool(grown))
        waiting.pause(idle=not grown)


def _still_there(topic: str, followed: set[int], present: set[int]) -> set[int]:
    """The ids of the partitions.  A resize adds partitions and never removes one."""
    if not followed <= present:
        raise TopicNotFound(
            f'the topic that was followed is no longer "{topic}"',
            hint="it was deleted, renamed or moved, and another topic has its name",
        )
    return present


def _before(start: str | int, found: PartitionRange) -> int:
    """The last sequence that is not wanted."""
    if start == "latest":
        return found.high_watermark
    if start == "earliest":
        return found.low_sequence - 1
    if isinstance(start, int) and start >= 0:
        return max(found.low_sequence - 1, found.high_watermark - start)
    raise InvalidArgument(
        f"tail cannot start at {start!r}", hint="use earliest, latest or a number of events"
    )


def _read(
    connection: Any, topic: str, done: dict[int, int], grown: dict[int, int]
) -> Iterator[Event]:
    """The events between two sequences of each partition.

    The partitions take turns, so that one with many events does not delay the others.
    """
    while grown:
        for partition, high in list(grown.items()):
            after = done[partition]
            room = min(_AT_ONCE, high - after)
            events = sequences.fetch(connection, topic, partition, after + 1, room)
            yield from events
            done[partition] = after + len(events)
            if done[partition] >= high or not events:
                del grown[partition]


class _Waiting:
    """Pauses that grow while no events come.  A sequencer's notice ends a pause early."""

    def __init__(self, connection: Any, most: float) -> None:
        self._connection = connection
        self._most = most
        self._pause = _FIRST_PAUSE
        # Other databases cannot listen, and a pooler drops the LISTEN: there only the pauses count.
        self._listens = database.dialect_of(connection) == "postgres" and hasattr(
            connection, "notifies"
        )
        if self._listens:
            connection.execute(f'LISTEN "{config.schema_name()}_log"')

    def pause(self, *, idle: bool) -> None:
        """Wait until something may have come."""
        self._pause = min(self._pause * 2, self._most) if idle else _FIRST_PAUSE
        if not self._listens:
            time.sleep(self._pause)
            return
        for _ in self._connection.notifies(timeout=self._pause, stop_after=1):
            pass
