"""Starts as they are given on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from penstock.cli.archive_targets import archive_targets

START = (
    "earliest, latest, the first sequence to read, a position, a time with its zone, "
    "bookmark:NAME, or subscription:NAME"
)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")


def start_in(connection: Any, topics: Iterable[str], start: str, target: list[str] | None) -> str:
    """A start for the database; a time that only the archive knows is looked up there."""
    since = time_of(start)
    if since is None:
        return start
    from penstock.archive import times

    return times.start_at(connection, topics, since, targets=archive_targets(target))


def time_of(start: str) -> datetime | None:
    """The time that a start is; None when it is another one, or one that the database refuses."""
    if not _TIME.match(start):
        return None
    try:
        found = datetime.fromisoformat(start)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
