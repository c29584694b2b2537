"""Asking for the copies that lack, once: by a sensor that sees a loss, by a run that audits."""

from __future__ import annotations

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

WAITING, RUNNING = "waiting", "running"


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
        for each in list_backfills(connection, topic, state=state)
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


def open_requests(connection: Any, max_rows: int = 200) -> list[BackfillRequest]:
    """The requests that wait or run, those first that are worked off first."""
    found = [
        each
        for state in (RUNNING, WAITING)
        for each in list_backfills(connection, state=state, max_rows=max_rows)
    ]
    return sorted(found, key=lambda each: (-each.priority, each.request))
