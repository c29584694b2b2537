"""``penstock fetch`` from a bookmark or a time: over the database and the archive."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock import database
from penstock.cli.starts import time_of
from penstock.errors import InvalidArgument, InvalidPartition
from penstock.log import bookmarks
from penstock.records import Event
from penstock.topics.names import partition_ranges

if TYPE_CHECKING:
    from penstock.archive.targets import Target


@dataclass(frozen=True, slots=True)
class Since:
    """The events of one partition or of all, from a bookmark or a time on."""

    topic: str
    partition: int | None
    bookmark: str | None
    time: str | None

    @classmethod
    def of(cls, topic: str, partition: int | None, beginnings: Sequence[Any]) -> Since:
        """From the options --from, --from-lsn, --from-bookmark and --from-time: one is given."""
        if sum(each is not None for each in beginnings) > 1:
            raise InvalidArgument(
                "more than one beginning is given",
                hint="give one of --from, --from-lsn, --from-bookmark and --from-time",
            )
        return cls(topic, partition, *beginnings[2:])

    def events(self, max_events: int, targets: Sequence[Target]) -> Iterator[Event]:
        """The first events, the oldest first."""
        from penstock import archive

        with database.connect() as connection, ExitStack() as opened:
            if self.bookmark is not None:
                after = bookmarks.bookmark_positions(connection, self.topic, self.bookmark)
            else:
                after = _at_time(connection, self.topic, str(self.time), targets)
            readers = [
                opened.enter_context(
                    archive.read_on(
                        connection, self.topic, each, after[each] + 1, max_events, targets=targets
                    )
                )
                for each in _chosen(self.topic, self.partition, after)
            ]
            merged = heapq.merge(
                *(reader.events() for reader in readers),
                key=lambda event: (event.sequenced_at, event.partition),
            )
            yield from islice(merged, max_events)


def _chosen(topic: str, partition: int | None, present: Iterable[int]) -> list[int]:
    found = sorted(present)
    if partition is None:
        return found
    if partition not in found:
        raise InvalidPartition(
            f'the topic "{topic}" has no partition {partition}',
            hint=f"it has the partitions 0 to {len(found) - 1}",
        )
    return [partition]


def _at_time(connection: Any, topic: str, text: str, targets: Sequence[Target]) -> dict[int, int]:
    from penstock import archive

    since = time_of(text)
    if since is None:
        raise InvalidArgument(
            f"{text[:80]!r} is no time with a zone", hint="write 2026-01-31T09:30:00+01:00"
        )
    return {
        each.partition: archive.position_at(
            connection, topic, each.partition, since, targets=targets
        )
        for each in partition_ranges(connection, topic)
    }
