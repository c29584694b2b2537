"""Telling the database how far a subscription has read whose positions another store keeps.

Retention goes by the positions in the database and by nothing else.  While the store, or whoever
copies, is away, they stand still and nothing is dropped.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from penstock import database
from penstock.errors import PenstockError
from penstock.leases.coordination.registry import LeaseRegistry

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)

#: The longest time that a mark may lag behind.
SECONDS = 10.0


def copy_positions(connection: Any, subscription: str, registry: LeaseRegistry) -> int:
    """Copy every position once, all or none; answers how many have moved.

    StaleLease when the partitions were given out anew behind the registry's back,
    BeyondHighWatermark when the log was restored to before a position.
    """
    holdings = registry.snapshot().partitions.values()
    ((moved,),) = database.call(
        connection,
        "mark_low_water",
        subscription=subscription,
        partition_ids=[each.partition_id for each in holdings],
        lease_epochs=[each.lease_epoch for each in holdings],
        positions=[each.position for each in holdings],
    )
    return int(moved)


def keep_copying(
    url: str,
    subscription: str,
    registry: LeaseRegistry,
    stop: threading.Event,
    *,
    seconds: float = SECONDS,
) -> None:
    """Copy every so many seconds until ``stop`` is set, and once more then."""
    connection: Connection | None = None
    stopping = False
    while not stopping:
        stopping = stop.wait(seconds)
        try:
            connection = connection or database.connect(url)
            copy_positions(connection, subscription, registry)
        except Exception as error:
            if not (isinstance(error, PenstockError) or database.is_unavailable(error)):
                raise
            log.warning("positions of %s were not copied: %s", subscription, error)
            _close(connection)
            connection = None
    _close(connection)


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
