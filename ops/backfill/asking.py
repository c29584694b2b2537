"""Asking for the copies that lack, once: by a sensor that sees a loss, by a run that audits."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ops.backfill.requests import (
    COPY,
    BackfillRequest,
    Requested,
    Window,
    list_backfills,
    request_backfill,
)
from ops.seal import missing_copies
from penstock.records import as_time

WAITING, RUNNING = "waiting", "running"
#: As many requests of a state as the database lists at once.
MOST_LISTED = 10_000


def by_hand(request: int) -> str:
    """The command that works a request off where it is called."""
    return f"penstock backfill run --request {request}"


def ask_once(
    connection: Any, topic: str, target: str, window: Window | None = None
) -> Requested | None:
    """Ask for the copies of a window that a target lacks; None when a request is open already."""
    open_ones = [
        each
        for state in (WAITING, RUNNING)
        for each in list_backfills(connection, topic, state=state, max_rows=MOST_LISTED)
        if each.kind == COPY and each.target == target
    ]
    return None if open_ones else request_backfill(connection, topic, COPY, target, window)


def ask_for_dropped(connection: Any, topic: str, target: str) -> Requested | None:
    """Ask for what a target lacks of what the database has dropped: it may be new to the policy.

    The archive does not bring it, because nothing was sealed that it has not seen.
    """
    lacking = missing_copies(connection, topic, target)
    if not any(each.dropped_at is not None and each.targets for each in lacking):
        return None
    return ask_once(connection, topic, target)


def running_requests(connection: Any) -> list[BackfillRequest]:
    """The requests that a run has claimed."""
    return list_backfills(connection, state=RUNNING, max_rows=MOST_LISTED)


def due_requests(connection: Any, most: int = 200) -> list[BackfillRequest]:
    """The first of those that wait and may begin now, in the order in which they are claimed.

    The list of the database has the newest first, and those that wait for a later time too: so all
    of it is read before some are chosen.
    """
    now = dt.datetime.now(dt.UTC)
    waiting = list_backfills(connection, state=WAITING, max_rows=MOST_LISTED)
    due = [each for each in waiting if as_time(each.not_before) <= now]
    return sorted(due, key=lambda each: (-each.priority, each.request))[:most]
