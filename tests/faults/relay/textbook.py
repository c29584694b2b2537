"""The relay to Kafka that documentation suggests: an idempotent producer, and then the position.

It is here to be caught: what was sent before the position was committed is sent again by a
successor, and a relay that wakes up late sends what others have sent.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Producer

from ops.sinks.kafka import open_sink
from penstock.consumer.stream.consumer import Batch, Consumer


def textbook_consumer(url: str, subscription: str, sink: str, batch_size: int) -> Consumer:
    """A consumer that sends what it polls and commits when the broker has confirmed it."""
    topic_of = open_sink(urlsplit(sink), environ={}).settings.topic
    producer: Any = Producer(
        {
            "bootstrap.servers": urlsplit(sink).netloc,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "log_level": 0,
        }
    )

    def send(batch: Batch) -> None:
        refused: list[Any] = []
        for event in batch.events:
            producer.produce(
                topic_of(batch.lease.topic),
                event.payload,
                partition=batch.lease.partition,
                headers={"ce_sequence": str(event.sequence)},
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
        if producer.flush(30) or refused:
            raise RuntimeError(f"not confirmed: {refused[:1]}")

    return Consumer(url, subscription, batch_handler=send, batch_size=batch_size, idle_seconds=0.05)
