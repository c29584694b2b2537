"""The producer of one Kafka partition, for one lease: it fences the one before.

Its transactional id names relay, topic (under its permanent name) and partition, and neither a
history nor a process, so whoever opens it next ends what an older one has left open, and what that
one sends later is refused. It is thrown away after any error: the client does not number its
transactions on the broker (KIP-890), so the late end of one could end the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ops.sinks.base import SinkLease, SinkMisconfigured, SinkUnavailable
from ops.sinks.kafka_client import KafkaClient, require_wanted
from penstock.records import Event

#: An open transaction of a dead relay holds back readers of what is committed for as long, or until
#: its successor comes. The client wants to have delivered by then.
TRANSACTION_SECONDS = 30

#: An event, its headers, and an upper bound of its bytes.
Record = tuple[Event, dict[str, str], int]

_SLICE_SECONDS = 0.25
# A transaction that begins right after a commit meets the end of the one before, and the client
# then waits for a fixed 20 ms.
_SETTLE_SECONDS = 0.002
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_SMALLEST, _LARGEST = 1_000, 1_000_000_000
_BATCH_BYTES = 1_000_000


# What comes after a record that was refused or given up is not stored: the last record says up to
# where everything is there. So no record is given up for its age, either.
_WITHOUT_TRANSACTIONS: dict[str, Any] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "delivery.timeout.ms": 0,
}


class KafkaProducer:
    """The only writer of a partition; without transactions, one of its writers."""

    def __init__(
        self, kafka: KafkaClient, lease: SinkLease, max_bytes: int, ended: threading.Event
    ) -> None:
        """``ended`` is set when the relay waits for no answer any more."""
        self._kafka = kafka
        self._ended = ended
        self._exactly = kafka.settings.exactly
        self._empty = None if kafka.settings.tombstones else b""
        self._refused: KafkaError | None = None
        self._committed_at = 0.0
        # Two databases may have the same names, and then have different prefixes.
        name = f"{kafka.settings.prefix}/{lease.relay}/{lease.known_as}/{lease.partition}"
        own = _transactional(name) if self._exactly else _WITHOUT_TRANSACTIONS
        limit = min(max(max_bytes, _SMALLEST), _LARGEST)
        with kafka.translated(f"the producer of {name}"):
            self._producer: Any = Producer(
                kafka.config(
                    {
                        "acks": "all",
                        "compression.type": kafka.settings.compression,
                        "message.max.bytes": limit,
                        "batch.size": min(limit, _BATCH_BYTES),
                        # Room for every possible block: a full queue would refuse single records.
                        "queue.buffering.max.messages": 0,
                        "delivery.report.only.error": True,
                        "on_delivery": self._reported,
                        **own,
                    }
                )
            )
        if self._exactly:
            with kafka.translated(f"taking over {name}", self._producer):
                # Connected first: without a connection the client asks again only after 0.5 s.
                kafka.connect(self._producer, kafka.settings.topic(lease.topic), ended)
                self._waited(self._producer.init_transactions)

    def send(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Send the records, all or none; without transactions, in order up to an error."""
        doing = f"sending to {topic} partition {partition}"
        with self._kafka.translated(doing, self._producer):
            if self._exactly:
                self._settle()
                self._producer.begin_transaction()
            for event, headers, _ in records:
                self._producer.produce(
                    topic,
                    event.payload or self._empty,
                    key=event.key or None,
                    partition=partition,
                    timestamp=max(1, int(event.created_at.timestamp() * 1000)),
                    headers=headers,
                )
            self._deliver(topic)
            if self._exactly:
                self._waited(self._producer.commit_transaction)
                self._committed_at = time.monotonic()

    def close(self) -> None:
        """What waits in it is not sent later, and what was sent is not committed."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException):
                producer.purge(blocking=False)

    def _waited(self, call: Callable[[float], object]) -> None:
        """Wait for a call of the client, which can be called again when its time was too short."""
        deadline = time.monotonic() + TRANSACTION_SECONDS
        while True:
            require_wanted(self._ended)
            try:
                call(_SLICE_SECONDS)
                return
            except KafkaException as error:
                # At the end of its time it says what it waits for, not only that it has waited.
                if time.monotonic() > deadline or not error.args[0].retriable():
                    raise

    def _settle(self) -> None:
        left = self._committed_at + _SETTLE_SECONDS - time.monotonic()
        if left > 0:
            time.sleep(left)

    def _deliver(self, topic: str) -> None:
        """Wait until the brokers have all of it, or have refused some of it."""
        deadline = time.monotonic() + TRANSACTION_SECONDS
        while self._producer.flush(_SLICE_SECONDS) and self._refused is None:
            require_wanted(self._ended)
            if time.monotonic() > deadline:
                raise SinkUnavailable(
                    f"Kafka did not confirm the events within {TRANSACTION_SECONDS} s"
                )
        if self._refused is None:
            return
        if self._refused.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise SinkMisconfigured(
                f"the Kafka topic {topic} takes less than its max.message.bytes seemed to say",
                hint="restart the relay if the setting was changed, and give its login the right "
                "DESCRIBE_CONFIGS on the topic",
            )
        raise self._kafka.error(self._refused, f"sending to {topic}")

    def _reported(self, error: KafkaError | None, _: object) -> None:
        # What was purged was waiting when the transaction failed; its commit says why.
        if error is not None and error.code() not in _PURGED and self._refused is None:
            self._refused = error


def _transactional(name: str) -> dict[str, Any]:
    return {
        "transactional.id": f"penstock/{name}",
        "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
        "delivery.timeout.ms": TRANSACTION_SECONDS * 1000,
    }
