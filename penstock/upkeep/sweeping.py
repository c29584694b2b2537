"""Sweep: collect dead consumers of subscriptions to which no consumer checks in any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import database


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one sweep did.

    ``locked_leases`` could not be freed, because a transaction of the dead holder still locks
    them.  A later sweep or check-in frees them.
    """

    expired_consumers: int
    locked_leases: int


def sweep(connection: Any, max_rows: int = 1000) -> SweepResult:
    """Free the leases of consumers whose lease time is over, as every check-in does."""
    return SweepResult(*database.call(connection, "sweep", max_rows=max_rows)[0])
