"""What a relay does when its sink has lost events that it had.

Sinks that tell what they hold stop at such a gap. Often nothing is missing: the events between are
dead letters, or a person has put the subscription behind them. Otherwise the relay goes on only
when the sink's address says `resend=true`. Then it sends the missing events again, from the log or
the archive, under their own sequences. These blocks need no record: the sink compares where it ends
before it takes one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import database
from penstock.errors import TopicNotFound

if TYPE_CHECKING:
    from ops.sinks.ends import SinkBehind
    from penstock.database import Connection
    from penstock.records import Lease

log = logging.getLogger(__name__)

_CHUNK = 500


@dataclass(frozen=True, slots=True)
class SinkGap:
    """What lies between the end of a sink and the block that a relay is to send."""

    first: int
    last: int
    #: How many of its events are neither dead letters nor left out before.
    missing: int
    #: The first sequence that the database has. The archive has what comes before.
    low_sequence: int
    #: A person has put the subscription behind it.
    is_put: bool

    @classmethod
    def of(cls, connection: Connection, subscription: str, lease: Lease, gap: range) -> SinkGap:
        """Ask the database, which knows dead letters and who has moved the subscription."""
        place = gap.start, gap.stop - 1
        rows = database.call(
            connection,
            "missing_events",
            subscription=subscription,
            partition_id=lease.partition_id,
            first_sequence=place[0],
            last_sequence=place[1],
        )
        if not rows:
            raise TopicNotFound(f'"{lease.topic}" is not read by {subscription} any more')
        return cls(*place, *rows[0])

    @property
    def is_passed(self) -> bool:
        """Whether the sink is to go on behind it."""
        return self.is_put or not self.missing

    def parts(self, lease: Lease, behind: SinkBehind) -> list[tuple[int, int, bool]]:
        """The parts of the log that bring the sink to the end of the gap, and which are cold.

        Raises ``behind`` when the sink may not get them again.
        """
        if not behind.resend:
            raise behind
        log.warning(
            "%s partition %s: the sink has lost events. %s are sent again, from sequence %s on",
            lease.topic, lease.partition, self.missing, self.first,
        )  # fmt: skip
        return [
            (start, min(start + _CHUNK - 1, self.last), start < self.low_sequence)
            for start in range(self.first, self.last + 1, _CHUNK)
        ]
