"""The last record of a sink's partition, and what it says about a block that is to be sent.

A sink that exactly one relay writes to needs no other memory of what was sent: its last record is
the truth. It is read when nobody else can write any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from ops.sinks.base import RelayBlock, SinkMisconfigured
from ops.sinks.cloudevents import source, to_properties
from penstock.log.restores import Seen
from penstock.records import Event

RELAY_HEADER = "penstock_relay"
TOPIC_HEADER = "penstock_topic"


@dataclass(frozen=True, slots=True)
class Tail:
    """What the last record of a partition says about itself."""

    relay: str
    #: The address of the event's topic when it was sent, as a CloudEvents source.
    source: str
    known_as: str
    history: int
    sequence: int
    event_id: str

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Tail | None:
        """None when no relay has sent the record."""
        if RELAY_HEADER not in headers:
            return None
        return cls(
            headers[RELAY_HEADER],
            headers["ce_source"],
            # The record may be older than permanent names of topics: then its address is used.
            headers.get(TOPIC_HEADER) or unquote(headers["ce_source"]).removeprefix("/"),
            int(headers["ce_penstockhistory"]),
            int(headers["ce_sequence"]),
            headers["ce_id"],
        )

    def seen(self, relay: str, known_as: str) -> Seen | None:
        """How far this relay has come with this topic, if the record is its own."""
        if (self.relay, self.known_as) != (relay, known_as):
            return None
        return Seen(self.sequence, self.history)


def headers_of(event: Event, block: RelayBlock) -> dict[str, str]:
    """The headers of an event's record: CloudEvents in the binary form, and the relay's own."""
    return to_properties(event) | {RELAY_HEADER: block.relay, TOPIC_HEADER: block.known_as}


def present(tail: Tail | None, block: RelayBlock, where: str) -> Tail | None:
    """The tail, if it was sent in this log's present history.

    SinkMisconfigured when it is another relay's, or not of the log that the block comes from.
    """
    if tail is None:
        return None
    if (tail.relay, tail.known_as) != (block.relay, block.known_as):
        if (tail.relay, tail.source) == (block.relay, source(block.source_topic or block.topic)):
            return None  # from a topic that had the address before this one
        raise SinkMisconfigured(
            f"{where} carries the events of {tail.source}, by the relay {tail.relay}",
            hint="give each relay and topic a place of its own",
        )
    if tail.history > block.history:
        raise ahead(where, block, f"holds events of history {tail.history}")
    if tail.history < block.history:
        return tail if _began_before(tail, block) else None
    if tail.sequence > block.last_sequence:
        raise ahead(where, block, f"holds sequence {tail.sequence}")
    for event in block.events:
        if event.sequence == tail.sequence and str(event.event_id) != tail.event_id:
            raise ahead(where, block, f"holds another event of sequence {tail.sequence}")
    return tail


def ahead(where: str, block: RelayBlock, finding: str) -> SinkMisconfigured:
    """The sink holds what the log does not have."""
    return SinkMisconfigured(
        f"{where} {finding}, but the relay {block.relay} is at {block.first_sequence} to "
        f"{block.last_sequence} of {block.topic} partition {block.partition}",
        hint="the database was restored to an older state, or the subscription was created again "
        "or moved back: reconcile the restore, or relay under another name to another place",
    )


def _began_before(tail: Tail, block: RelayBlock) -> bool:
    """Whether the block was open when its history began, and sent under the one before.

    The record of an open block and the sequences in it are restored together. If one of these
    sequences is the event that the sink holds last, then neither the block nor what comes before
    that event was lost.
    """
    return block.reopened and any(
        event.sequence == tail.sequence and str(event.event_id) == tail.event_id
        for event in block.events
    )
