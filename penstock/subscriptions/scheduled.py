"""Events that were published for later: they are not in the log yet, and in no count of a queue."""

from __future__ import annotations

from typing import Any

from penstock import database


def scheduled(connection: Any, subscription: str) -> int:
    """How many events of a queue's topics are not due yet.

    It counts no further than 20,000.
    """
    return int(database.call(connection, "queue_scheduled", subscription=subscription)[0][0])
