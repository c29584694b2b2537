"""Moving a subscription from one registry to another, without losing a position."""

from __future__ import annotations

import time
import uuid

from penstock.coordination.contract import LeaseRegistry, Snapshot
from penstock.errors import InvalidArgument

_PAUSE_SECONDS = 0.2


def move(source: LeaseRegistry, target: LeaseRegistry, *, patience: float = 30.0) -> int:
    """Carry all positions over; answers how many partitions there are.

    The consumers are stopped before, and configured for the target behind it.  Every lease of the
    source is taken first, so from then on nobody moves a position there; what somebody alive still
    holds is waited for, and InvalidArgument when ``patience`` is over: then nothing has changed in
    the target.  Run it again after whatever cut it off: what the target has reached stays.
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
    """The target may have kept the subscription before: then it stands behind."""
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
    """Hold every partition; answers them as they are then."""
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
