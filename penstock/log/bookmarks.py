"""Bookmarks: names for positions of a topic.

A bookmark says where to begin, in every partition of its topic.  It is used wherever a start is
given, as the text ``bookmark:NAME``.  It belongs to the history in which it was placed: after a
restore that lost its events it is refused (LogBehind).  It keeps no event from being removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.database import call
from penstock.log.starts import Start, start_of_each, start_text
from penstock.topics import validation


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Where a bookmark stands in one partition: ``position`` is the last sequence before it.

    ``is_lost`` says that a restore has lost the event at that position.
    """

    topic: str
    name: str
    partition: int
    position: int
    history: int
    is_lost: bool
    placed_at: datetime
    placed_by: str


def place_bookmark(
    connection: Any, topic: str, name: str, start: Start | Mapping[int, Start] = "latest"
) -> dict[int, int]:
    """Place a bookmark; AlreadyExists when the topic has one of this name.

    ``start`` is one for all partitions, or one for each, by its number.  Returns the last sequence
    before the bookmark in each partition.
    """
    validation.topic(topic)
    validation.single_name(name, "bookmark")
    if isinstance(start, Mapping):
        start = start_of_each(connection, topic, start)
    rows = call(connection, "place_bookmark", topic=topic, name=name, start=start_text(start))
    return {int(partition): int(position) for partition, position, _ in rows}


def drop_bookmark(connection: Any, topic: str, name: str) -> bool:
    """Remove a bookmark.  Returns whether there was one of this name."""
    validation.topic(topic)
    return bool(call(connection, "drop_bookmark", topic=topic, name=name)[0][0])


def list_bookmarks(connection: Any, topic: str | None = None) -> list[Bookmark]:
    """The bookmarks of one topic, or of all, with a row for each partition."""
    if topic is not None:
        validation.topic(topic)
    return [
        Bookmark(address, name, partition, position, history, bool(is_lost), *placed)
        for address, name, partition, position, history, is_lost, *placed in call(
            connection, "list_bookmarks", topic=topic
        )
    ]


def bookmark_positions(connection: Any, topic: str, name: str) -> dict[int, int]:
    """The last sequence before a bookmark, in each partition; 0 in one that was added later."""
    validation.topic(topic)
    rows = call(connection, "bookmark_positions", topic=topic, name=name)
    return {int(partition): int(position) for partition, position in rows}
