"""What of its last block each partition has sent, for sinks that cannot tell what they hold."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from uuid import UUID

from ops.sinks.base import RelayBlock
from penstock.records import Event

_Partition = tuple[str, str, int]
_Place = tuple[int, int, int, int]


class SentEvents:
    """The events of each partition's last block that the sink has confirmed to this process.

    A block that is tried again, after one event of it was refused or the sink did not respond, is
    sent without them. It counts for one lease only: whoever moves a subscription back to send
    events again gives its partitions new leases.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[_Partition, tuple[_Place, set[UUID]]] = {}

    def of(self, block: RelayBlock) -> set[UUID]:
        """The ids of the block's confirmed events, to be added to.  Empty for another block."""
        partition = (block.relay, block.known_as, block.partition)
        place = (block.history, block.lease_epoch, block.first_sequence, block.last_sequence)
        with self._lock:
            known = self._places.get(partition)
            if known is None or known[0] != place:
                known = self._places[partition] = (place, set())
            return known[1]


def left(block: RelayBlock, confirmed: set[UUID]) -> Sequence[Event]:
    """The block's events that are not confirmed."""
    return [event for event in block.events if event.event_id not in confirmed]
