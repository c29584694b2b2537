"""Copies the positions of a subscription to the database when another store keeps them.

Retention goes by the positions in the database and by nothing else.  While the store or the copying
process is away, these positions do not move and nothing is dropped.

Dead letters are fenced by the lease_epochs that come with the positions: see :func:`tell`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock import database
from penstock.errors import PenstockError, StaleLease
from penstock.leases.coordination.registry import Holding, LeaseRegistry
from penstock.records import Lease

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)

#: The longest time that a mark may lag behind.
SECONDS = 10.0
#: A partition may be claimed, and the database told so, between reading the registry and copying.
TRIES = 3


def copy_positions(connection: Any, subscription: str, registry: LeaseRegistry) -> int:
    """Copy every position once, all or none.  Returns how many have moved.

    Raises StaleLease when the partitions were given out again without the registry, and
    BeyondHighWatermark when the log was restored to a state before a position.
    """
    for _ in range(TRIES - 1):
        try:
            return tell(connection, subscription, registry.snapshot().partitions.values())
        except StaleLease as error:
            log.info("the positions of %s are read again: %s", subscription, error)
    return tell(connection, subscription, registry.snapshot().partitions.values())


def tell(connection: Any, subscription: str, holdings: Iterable[Holding | Lease]) -> int:
    """Tell the database of leases and their positions.  Returns how many positions have moved.

    From then on the database refuses the dead letters of an earlier holder.
    """
    holdings = list(holdings)
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
    """Copy every so many seconds until ``stop`` is set, and once more at the end."""
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
