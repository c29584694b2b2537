"""``penstock fetch`` from a bookmark or a time: over the database and the archive."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

from penstock import database
from penstock.cli.archive_targets import archive_targets
from penstock.cli.starts import time_of
from penstock.errors import InvalidArgument, InvalidPartition
from penstock.log import bookmarks
from penstock.records import Event
from penstock.topics.names import partition_ranges


def fetched_since(
    topic: str,
    partition: int | None,
    max_events: int,
    *,
    bookmark: str | None,
    time: str | None,
    target: list[str] | None,
) -> Iterator[Event]:
    """The first events of one partition or of all, the oldest first."""
    from penstock import archive

    targets = archive_targets(target)
    with database.connect() as connection, ExitStack() as opened:
        if bookmark is not None:
            after = bookmarks.bookmark_positions(connection, topic, bookmark)
        else:
            after = _at_time(connection, topic, str(time), targets)
        readers = [
            opened.enter_context(
                archive.read_on(
                    connection, topic, number, after[number] + 1, max_events, targets=targets
                )
            )
            for number in _chosen(topic, partition, after)
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


def _at_time(connection: Any, topic: str, text: str, targets: list[Any]) -> dict[int, int]:
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
