"""One partition of a Kafka topic, for one lease: what it holds, and its blocks.

What was sent is read from the partition itself: its last committed record. That is read once, after
the older producer was fenced; from then on nobody else of this relay writes. After any error the
channel is closed, and the next one looks again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
    encoded,
)
from ops.sinks.ends import SinkBehind, SinkEnd, last_before
from ops.sinks.kafka_admin import KafkaAdmin, KafkaTopic
from ops.sinks.kafka_client import KafkaClient
from ops.sinks.kafka_producer import KafkaProducer, Record
from ops.sinks.kafka_tail import KafkaEnd, last_record
from ops.sinks.tail import Tail, headers_of, present
from penstock.log.restores import Seen
from penstock.records import Event

# Upper bounds: of a record besides key, value and headers; of a header with its name.
_RECORD_OVERHEAD = 128
_HEADER_OVERHEAD = 40
#: Another program's transaction may end at any time.
_RETRY_SECONDS = 1.0


#: A Kafka partition, or a block.
Place = tuple[str | int, ...]


class KafkaChannel:
    """Its producer is made for the first block, so a relay that only looks fences nobody."""

    def __init__(
        self,
        kafka: KafkaClient,
        admin: KafkaAdmin,
        lease: SinkLease,
        limits: Mapping[str, KafkaTopic],
        noted: dict[Place, tuple[Place, int]],
    ) -> None:
        """``noted``: of each Kafka partition the block that was begun last, and its end then."""
        self._kafka = kafka
        self._admin = admin
        self._lease = lease
        self._limits = limits
        self._noted = noted
        self._producer: KafkaProducer | None = None
        self._ended = threading.Event()
        #: The end of each Kafka topic, once nobody else can write. A block keeps the address that
        #: it was recorded under, so there may be two.
        self._found: dict[str, KafkaEnd] = {}
        #: Up to which sequence everything was sent under this lease, or given up: by the place,
        #: where events choose one.
        self._passed: dict[str, int] = {}

    def seen(self) -> Seen | None:
        """The partition's last record, if this relay sent it.

        None while a transaction is open there. A dead relay may have left it, and the first block
        ends it: then the partition is read before anything is sent.
        """
        lease = self._lease
        topic = self._kafka.settings.topic(lease.topic)
        found = self._found.get(topic) or self._read(topic)
        if found is None or found.tail is None:
            return None
        return found.tail.seen(lease.relay, lease.known_as)

    def send_block(self, block: RelayBlock) -> None:
        """Send what Kafka does not hold of the block, in one transaction."""
        topic = self._kafka.settings.topic(block.topic)
        if not block.events:
            self._passed[block.place] = block.last_sequence
            return
        if self._producer is None:
            self._producer = KafkaProducer(
                self._kafka, self._lease, self._limit(topic).max_bytes, self._ended
            )
        held = self._held(topic, block)
        records = list(encoded(block.events, lambda event: _record(event, block)))
        self._refuse(topic, records)
        left = [each for each in records if held is None or each[0].sequence > held.sequence]
        if left:
            self._producer.send(topic, self._lease.partition, left)
            self._found[topic] = replace(self._found[topic], tail=Tail.of(left[-1][1]))
        self._passed[block.place] = block.last_sequence

    def close(self) -> None:
        """End it: what is not committed never will be."""
        producer, self._producer = self._producer, None
        self._found.clear()
        if producer is not None:
            producer.close()

    def abort(self) -> None:
        """End what is waited for: each wait is cut into slices of at most a second."""
        self._ended.set()

    def _held(self, topic: str, block: RelayBlock) -> Tail | None:
        """The last record that counts for this block."""
        where = f"the Kafka topic {topic} partition {block.partition}"
        found = self._found.get(topic) or self._read(topic)
        if found is None:
            raise SinkUnavailable(
                f"another program has an open transaction in {where}", retry_after=_RETRY_SECONDS
            )
        self._require_told(topic, block, found, where)
        self._found[topic] = found
        held = present(found.tail, block, where)
        self._require_all(block, found, held, where)
        return held

    def _require_told(self, topic: str, block: RelayBlock, found: KafkaEnd, where: str) -> None:
        """SinkMisconfigured when the partition cannot tell whether an open block was sent.

        It can when it still has everything that came after this process began the block.
        """
        place = (topic, block.partition)
        this = (block.relay, block.known_as, block.history, block.first_sequence)
        if not block.reopened:
            self._noted[place] = this, found.end
        elif found.tail is None and found.first > 0:
            begun, end = self._noted.get(place, ((), 0))
            if begun != this or found.first > end:
                raise _emptied(where, block)

    def _require_all(
        self, block: RelayBlock, found: KafkaEnd, held: Tail | None, where: str
    ) -> None:
        """SinkBehind when the partition ends before what was sent, and retention did not do it."""
        is_older = found.tail is not None and found.tail.history < block.history
        if is_older or (found.tail is None and found.first > 0):
            return
        last = max(self._passed.get(block.place, 0), 0 if held is None else held.sequence)
        if last < last_before(block):
            raise SinkBehind(
                block,
                SinkEnd(block.history, last),
                where,
                resend=self._kafka.settings.resend,
                skip=lambda _, end: self._passed.update({block.place: end.sequence}),
            )

    def _read(self, topic: str) -> KafkaEnd | None:
        partition = self._lease.partition
        return last_record(self._kafka, self._admin, topic, partition, self._ended)

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
