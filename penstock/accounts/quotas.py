"""How much an account may publish."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock import database


@dataclass(frozen=True, slots=True)
class Quota:
    """What an account may publish a second, and what it has published in the last ten seconds.

    ``waiting`` is how many events waited in its namespace, if they were too many when they were
    counted last.
    """

    max_events: int | None
    max_bytes: int | None
    max_waiting: int | None
    max_requests: int | None
    set_at: datetime
    set_by: str
    events: int
    bytes: int
    waiting: int | None


def set_quota(
    connection: Any,
    account: str,
    *,
    max_events: int | None = None,
    max_bytes: int | None = None,
    max_waiting: int | None = None,
    max_requests: int | None = None,
) -> None:
    """Limit events and bytes a second, on average over ten seconds, and how many events may wait.

    ``max_requests`` is how many requests, polls and streams it may have at a time at each process
    of a gateway.  None is no limit.  A publish for an account that has used its quota is refused:
    QuotaExceeded.
    """
    database.call(
        connection,
        "set_account_quota",
        account=account,
        max_events=max_events,
        max_bytes=max_bytes,
        max_waiting=max_waiting,
        max_requests=max_requests,
    )


def quota_of(connection: Any, account: str) -> Quota | None:
    """The quota of an account, if it has one."""
    rows = database.call(connection, "account_quota", account=account)
    return Quota(*rows[0]) if rows else None
