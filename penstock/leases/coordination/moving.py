"""Moving a subscription from one registry to another, without losing a position."""

from __future__ import annotations

import time
import uuid
from urllib.parse import urlsplit

from penstock import database, subscriptions
from penstock.errors import InvalidArgument, PositionsElsewhere
from penstock.leases.coordination import open_registry
from penstock.leases.coordination.registry import LeaseRegistry, Snapshot
from penstock.leases.coordination.registry_keeper import STORES

_PAUSE_SECONDS = 0.2


def move_subscription(url: str, subscription: str, source: str, target: str) -> int:
    """Do the same as :func:`move`, by the URLs of the stores.

    The subscription is one of the database at ``url``.
    """
    with database.connect(url) as connection:
        found = subscriptions.describe_subscription(connection, subscription)
    with (
        open_registry(source, subscription, lease_seconds=found.lease_seconds) as here,
        open_registry(target, subscription, lease_seconds=found.lease_seconds) as there,
    ):
        if urlsplit(source).scheme in STORES and not here.snapshot().partitions:
            raise PositionsElsewhere(
                f"the store to move from knows nothing of {subscription!r}",
                hint="give the URL that its consumers have as coordination",
            )
        if urlsplit(target).scheme in STORES and there.snapshot().partitions:
            raise PositionsElsewhere(
                f"the store to move to already holds old positions of {subscription!r}",
                hint="what it holds of that time is out of date: give the URL another ?prefix=",
            )
        return move(here, there)


def move(source: LeaseRegistry, target: LeaseRegistry, *, patience: float = 30.0) -> int:
    """Carry all positions over.  Returns how many partitions there are.

    Stop the consumers before, and configure them for the target afterwards.  This function first
    takes every lease of the source, so that no consumer moves a position there.  It waits for the
    leases that live consumers still hold.  When ``patience`` is over it raises InvalidArgument, and
    nothing has changed in the target.  If it is interrupted, run it again: the positions that the
    target has reached stay.
    """
    mover = f"move-{uuid.uuid4().hex}"
    source.register(mover)
    try:
        final = _take_all(source, mover, patience)
        positions = {each.partition_id: each.position for each in final.partitions.values()}
        epochs = [each.lease_epoch for each in final.partitions.values()]
        target.initialize(positions, lease_epoch=max(epochs, default=0))
        _bring_up(target, mover, positions, patience)
    finally:
        source.deregister(mover)
    return len(positions)


def _bring_up(
    target: LeaseRegistry, mover: str, positions: dict[int, int], patience: float
) -> None:
    """Bring the target up to the source: it may have older positions of the subscription."""
    target.register(mover)
    try:
        present = _take_all(target, mover, patience).partitions
        for partition_id, position in positions.items():
            held = present[partition_id]
            if held.position < position:
                target.update_position(partition_id, mover, position, held.lease_epoch)
    finally:
        target.deregister(mover)


def _take_all(registry: LeaseRegistry, mover: str, patience: float) -> Snapshot:
    """Take every partition.  Returns the partitions as they are then."""
    deadline = time.monotonic() + patience
    while True:
        registry.renew(mover)
        for each in registry.snapshot().partitions.values():
            if not each.live:
                registry.claim(each.partition_id, mover, each.lease_epoch)
        seen = registry.snapshot()
        others = {each.holder for each in seen.partitions.values() if each.holder != mover}
        if not others:
            return seen
        if time.monotonic() > deadline:
            raise InvalidArgument(
                f"partitions are still held by {', '.join(sorted(map(str, others)))}",
                hint="stop the consumers of the subscription first",
            )
        time.sleep(_PAUSE_SECONDS)
