"""What a relay with rules has left out, and up to where each place of its sink was sent events.

A sink that tells what it holds ends somewhere before the position of such a relay, and has lost
nothing. So the database keeps the last sequence that each place was sent. It moves with the
position, and a lease reads it once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ops.sinks.base import SinkMisconfigured
from penstock.database import call

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ops.sinks.routing import Routing
    from penstock.database import Connection
    from penstock.records import Event, Lease
    from penstock.subscriptions.stream import Membership

#: So many places may the events of one partition choose.
MOST_PLACES = 1_000

_NEVER: tuple[int, dict[str, int], bool] = (0, {}, False)


@dataclass(slots=True)
class PassedPlaces:
    """The last sequence that each place of the held partitions was sent, under their leases.

    Also for a relay without rules: it may have had some, and then its sink ends where they have
    left it, until the first block without them was sent.
    """

    #: By partition: the lease epoch, the places, and whether a person has put the position there.
    _known: dict[int, tuple[int, dict[str, int], bool]] = field(default_factory=dict)

    def of(
        self,
        connection: Connection,
        member: Membership,
        lease: Lease,
        routing: Routing,
        first_sequence: int,
    ) -> Mapping[str, int] | None:
        """For a block of a lease.  None when every event before it went to every place."""
        epoch = self._known.get(lease.partition_id, _NEVER)[0]
        if epoch != lease.lease_epoch:
            rows = call(
                connection,
                "passed_places",
                subscription=member.subscription,
                partition_id=lease.partition_id,
                most_places=MOST_PLACES,
            )
            known = {str(place): int(sequence) for place, sequence, _ in rows}
            is_put = any(bool(row[2]) for row in rows)
            self._known[lease.partition_id] = (lease.lease_epoch, known, is_put)
        if not self.keeps(lease, routing, first_sequence):
            return None
        return dict(self._known[lease.partition_id][1])

    def keeps(self, lease: Lease, routing: Routing, first_sequence: int) -> bool:
        """Whether a block from this sequence on is recorded with its places."""
        return routing.keeps_places or self._lags(lease, first_sequence)

    def _lags(self, lease: Lease, first_sequence: int) -> bool:
        """Whether rules that the relay has no more have left something out before a block."""
        _, known, is_put = self._known.get(lease.partition_id, _NEVER)
        return not is_put and known.get("", first_sequence) < first_sequence - 1

    def require_room(self, lease: Lease, routing: Routing, events: Iterable[Event]) -> None:
        """SinkMisconfigured, before anything is sent, when events choose too many places."""
        known = self._known.get(lease.partition_id, _NEVER)[1]
        chosen = {""}
        for each in events:
            with suppress(ValueError):  # it is refused when its place is asked for
                chosen.add(routing.place(each))
        if len(known.keys() | chosen) > MOST_PLACES + 1:
            raise SinkMisconfigured(
                f"the template to= sends {lease.topic} partition {lease.partition} to more than "
                f"{MOST_PLACES} places",
                hint="use a template with fewer values, in a relay of a new subscription",
            )

    def note(
        self,
        connection: Connection,
        member: Membership,
        lease: Lease,
        routing: Routing,
        events: Iterable[Event],
        *,
        left_out: int,
        up_to: int,
    ) -> dict[str, int]:
        """Record a block, in the transaction that moves the position.  Returns what was recorded.

        :meth:`passed` takes it when that has committed.
        """
        ends = {routing.place(each): each.sequence for each in events}
        call(
            connection,
            "note_places",
            subscription=member.subscription,
            consumer=member.consumer,
            partition_id=lease.partition_id,
            lease_epoch=lease.lease_epoch,
            places=list(ends),
            sequences=list(ends.values()),
            left_out=left_out,
            up_to=up_to,
        )
        return ends

    def passed(self, lease: Lease, ends: Mapping[str, int]) -> None:
        """A block was committed."""
        known = self._known.get(lease.partition_id)
        if known is not None and known[0] == lease.lease_epoch:
            known[1].update(ends)

    def forget(self, lease: Lease) -> None:
        """Whether the last block was committed is not known: it is read again."""
        self._known.pop(lease.partition_id, None)
