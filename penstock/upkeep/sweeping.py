"""Sweep: collect dead consumers of subscriptions that nobody checks in to any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import database


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one sweep did.

    ``locked_leases`` could not be freed, because a transaction of their late holder still has them;
    the next sweep or check-in frees them.
    """

    expired_consumers: int
    locked_leases: int


def sweep(connection: Any, max_rows: int = 1000) -> SweepResult:
    """Free the leases of consumers whose time has run out, as every check-in does."""
    return SweepResult(*database.call(connection, "sweep", max_rows=max_rows)[0])
