"""How full topics are whose retention has a limit in bytes."""

from __future__ import annotations

from typing import Any

from penstock import database
from penstock.records import RetentionLimit


def retention_limits(connection: Any) -> list[RetentionLimit]:
    """The topics with ``max_bytes`` that the login may see, with what keeps each above it."""
    return [RetentionLimit(*row) for row in database.call(connection, "retention_limits")]
