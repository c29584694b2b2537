"""Starts: how a call says where to begin to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from penstock.errors import InvalidArgument, InvalidPartition
from penstock.topics.names import partition_ranges

#: Where to begin: "earliest", "latest", the first sequence to read, a time with its zone (also as
#: text in ISO 8601), "bookmark:NAME", or "subscription:NAME" (where that one stands).  A time means
#: the first event that was sequenced then or later.
Start = str | int | datetime


def start_text(start: Start) -> str:
    """A start as the database's functions take it."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidArgument(f"the time {start} has no zone", hint="give an aware datetime")
        return start.isoformat()
    return str(start)


def start_of_each(connection: Any, topic: str, starts: Mapping[int, Start]) -> str:
    """One start for a topic that is made of a start for each of its partitions, by number."""
    present = partition_ranges(connection, topic)
    if starts.keys() != {each.partition for each in present}:
        raise InvalidPartition(
            f'starts are given for the partitions {sorted(starts)} of "{topic}"',
            hint=f"give one for each of its partitions, 0 to {len(present) - 1}",
        )
    return by_partition_id({each.partition_id: starts[each.partition] for each in present})


def by_partition_id(starts: Mapping[int, Start]) -> str:
    """The same for partitions of any topics, by their ids."""
    return json.dumps({str(each): start_text(start) for each, start in starts.items()})
