"""Legal holds: what no retention policy may remove until somebody releases the hold.

A hold covers a topic, one of its partitions, or a range of a partition's sequences.  While it is
open, `penstock clean` removes none of these events, and the topic cannot be deleted.  Other
partitions and topics are not affected.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import database
from penstock.errors import InvalidArgument
from penstock.topics import validation

_HINT = "give whole numbers; sequences start at 1, partitions at 0"


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold as it is recorded; ``partition`` None: all, ``last_sequence`` None: without an end."""

    topic: str
    name: str
    partition: int | None
    first_sequence: int
    last_sequence: int | None
    reason: str
    placed_at: datetime
    placed_by: str
    released_at: datetime | None
    released_by: str | None
    release_reason: str | None


def place_hold(
    connection: Any,
    topic: str,
    name: str,
    reason: str,
    *,
    partition: int | None = None,
    first_sequence: int | None = None,
    last_sequence: int | None = None,
) -> int:
    """Place a hold; AlreadyExists when the topic has an open one of this name.

    Returns how many events of the range the database no longer has.  They are in the archive, or
    gone: a hold brings nothing back.
    """
    validation.topic(topic)
    validation.single_name(name, "hold")
    numbers = {"partition": partition, "first_sequence": first_sequence}
    numbers["last_sequence"] = last_sequence
    for what, number in numbers.items():
        if number is not None and not validation.is_integer(number):
            raise InvalidArgument(f"the {what} of a hold is {number!r}", hint=_HINT)
    binds = {"topic": topic, "name": name, "reason": reason, **numbers}
    return int(database.call(connection, "place_hold", **binds)[0][0])


def release_hold(connection: Any, topic: str, name: str, reason: str) -> bool:
    """Release a hold; its record stays.  Returns whether there was an open one of this name."""
    validation.topic(topic)
    binds = {"topic": topic, "name": name, "reason": reason}
    return bool(database.call(connection, "release_hold", **binds)[0][0])


def list_holds(
    connection: Any, topic: str | None = None, *, with_released: bool = False
) -> list[Hold]:
    """The holds of one topic, or of all; ``with_released`` also those that are over."""
    if topic is not None:
        validation.topic(topic)
    binds = {"topic": topic, "released": with_released}
    return [Hold(*row) for row in database.call(connection, "list_holds", **binds)]
