"""What a relay knows of its topics: their permanent names, and how many partitions they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ops.sinks.base import SinkLease
from penstock.database import call
from penstock.topics import names
from penstock.topics.partition_ids import topic_of

if TYPE_CHECKING:
    from penstock.database import Connection
    from penstock.records import Lease


@dataclass(frozen=True, slots=True)
class SinkTopic:
    """A topic, as its sink knows it."""

    known_as: str
    partitions: int
    #: The id of the database that the events come from.
    installation: str

    def served(self, relay: str, lease: Lease) -> SinkLease:
        """What a channel of this lease serves."""
        return SinkLease(
            relay=relay,
            topic=lease.topic,
            known_as=self.known_as,
            partition=lease.partition,
            history=lease.history,
            lease_epoch=lease.lease_epoch,
            installation=self.installation,
        )


class SinkTopics:
    """Asked of the database once for each topic and address, and when a topic has grown."""

    def __init__(self) -> None:
        self._partitions: dict[str, int] = {}
        self._known_as: dict[int, str] = {}
        self._installation = ""

    def of(self, connection: Connection, lease: Lease) -> SinkTopic | None:
        """The topic of a lease.  None when another one has its address now."""
        topic_id = topic_of(lease.partition_id)
        known = self._partitions.get(lease.topic, 0)
        if lease.partition >= known or topic_id not in self._known_as:
            found = names.describe_topic(connection, lease.topic)
            known = self._partitions[lease.topic] = len(found.partitions)
            self._known_as[found.topic_id] = found.known_as
        if topic_id not in self._known_as:
            return None
        if not self._installation:
            self._installation = str(call(connection, "installation_id")[0][0])
        return SinkTopic(self._known_as[topic_id], known, self._installation)
