"""One partition of a Kafka topic, for one lease: what it holds, and its blocks.

What was sent is read from the partition itself: its last committed record. That is read once, after
the older producer was fenced; from then on nobody else of this relay writes. After any error the
channel is closed, and the next one looks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
    encoded,
)
from ops.sinks.kafka_admin import KafkaAdmin, KafkaTopic
from ops.sinks.kafka_client import KafkaClient
from ops.sinks.kafka_producer import KafkaProducer, Record
from ops.sinks.kafka_tail import last_record
from ops.sinks.tail import Tail, headers_of, present
from penstock.log.restores import Seen
from penstock.records import Event

# Upper bounds: of a record besides key, value and headers; of a header with its name.
_RECORD_OVERHEAD = 128
_HEADER_OVERHEAD = 40
#: Another program's transaction may end at any time.
_RETRY_SECONDS = 1.0


class KafkaChannel:
    """Its producer is made for the first block, so a relay that only looks fences nobody."""

    def __init__(
        self,
        kafka: KafkaClient,
        admin: KafkaAdmin,
        lease: SinkLease,
        limits: Mapping[str, KafkaTopic],
    ) -> None:
        self._kafka = kafka
        self._admin = admin
        self._lease = lease
        self._limits = limits
        self._producer: KafkaProducer | None = None
        #: The last record of each Kafka topic, once nobody else can write. A block keeps the
        #: address that it was recorded under, so there may be two.
        self._tails: dict[str, Tail | None] = {}

    def seen(self) -> Seen | None:
        """The partition's last record, if this relay sent it.

        None while a transaction is open there. A dead relay may have left it, and the first block
        ends it: then the partition is read before anything is sent.
        """
        lease = self._lease
        topic = self._kafka.settings.topic(lease.topic)
        tail = self._tails.get(topic)
        if tail is None:
            tail, _ = self._read(topic) or (None, 0)
        return None if tail is None else tail.seen(lease.relay, lease.known_as)

    def send_block(self, block: RelayBlock) -> None:
        """Send what Kafka does not hold of the block, in one transaction."""
        topic = self._kafka.settings.topic(block.topic)
        records = list(encoded(block.events, lambda event: _record(event, block)))
        self._refuse(topic, records)
        if not records:
            return
        if self._producer is None:
            self._producer = KafkaProducer(self._kafka, self._lease, self._limit(topic).max_bytes)
        held = self._held(topic, block)
        left = [each for each in records if held is None or each[0].sequence > held.sequence]
        if left:
            self._producer.send(topic, self._lease.partition, left)
            self._tails[topic] = Tail.of(left[-1][1])

    def close(self) -> None:
        """End it: what is not committed never will be."""
        producer, self._producer = self._producer, None
        self._tails.clear()
        if producer is not None:
            producer.close()

    def _held(self, topic: str, block: RelayBlock) -> Tail | None:
        """The last record that counts for this block."""
        where = f"the Kafka topic {topic} partition {block.partition}"
        if topic not in self._tails:
            found = self._read(topic)
            if found is None:
                raise SinkUnavailable(
                    f"another program has an open transaction in {where}",
                    retry_after=_RETRY_SECONDS,
                )
            tail, first = found
            if tail is None and first > 0 and block.reopened:
                raise _emptied(where, block)
            self._tails[topic] = tail
        return present(self._tails[topic], block, where)

    def _read(self, topic: str) -> tuple[Tail | None, int] | None:
        return last_record(self._kafka, self._admin, topic, self._lease.partition)

    def _refuse(self, topic: str, records: Sequence[Record]) -> None:
        """Before anything is sent: one record that the broker refuses would end the whole block."""
        limits = self._limit(topic)
        for event, _, size in records:
            if size > limits.max_bytes:
                raise EventRefused(
                    event.sequence,
                    f"{size} bytes with its headers, the topic takes {limits.max_bytes}",
                )
            if limits.is_compacted and not event.key:
                raise EventRefused(event.sequence, "it has no key, and the topic is compacted")

    def _limit(self, topic: str) -> KafkaTopic:
        return self._limits.get(topic, KafkaTopic())


def record_bytes(event: Event, headers: Mapping[str, str]) -> int:
    """An upper bound of the bytes of a batch with this record alone, before compression."""
    texts = len("".join(headers.values()).encode())
    overhead = _RECORD_OVERHEAD + _HEADER_OVERHEAD * len(headers)
    return overhead + len(event.payload) + len((event.key or "").encode()) + texts


def _record(event: Event, block: RelayBlock) -> Record:
    headers = headers_of(event, block)
    return event, headers, record_bytes(event, headers)


def _emptied(where: str, block: RelayBlock) -> SinkMisconfigured:
    return SinkMisconfigured(
        f"{where} holds nothing of this relay any more, and the block {block.first_sequence} to "
        f"{block.last_sequence} was open: nobody can tell whether it was sent",
        hint="find out whether readers have got it, then: penstock relay resolve "
        f"{block.relay} {block.topic} {block.partition} --sent (or --not-sent)",
    )
