"""The relay that documentation suggests: sequence ids, broker deduplication, the usual batching.

It is here to be caught: its blocks are not recorded, so a successor cuts its batches elsewhere, and
the broker, which remembers the lowest id of a batch, loses and doubles events.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pulsar

from ops.sinks.cloudevents import to_properties
from penstock.consumer.stream.consumer import Batch, Consumer

_CRASHES_AT = 3


def textbook_consumer(
    url: str, subscription: str, sink: str, batch_size: int, *, crash: bool = False
) -> Consumer:
    """A consumer that sends what it polls and commits when the broker has confirmed it.

    With ``crash`` it ends by SIGKILL when its third batch is confirmed and not committed.
    """
    parts = urlsplit(sink)
    assert "admin" in parse_qs(parts.query)
    client = pulsar.Client(
        f"{parts.scheme}://{parts.netloc}",
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
    )
    producers: dict[str, Any] = {}
    batches = itertools.count(1)

    def send(batch: Batch) -> None:
        lease = batch.lease
        target = (
            f"persistent:/{parts.path}/{lease.topic.replace('/', '.')}-partition-{lease.partition}"
        )
        if target not in producers:
            producers[target] = client.create_producer(
                target,
                producer_name=f"textbook-{lease.topic}-{lease.partition}",
                send_timeout_millis=0,
                max_pending_messages=100_000,
                batching_enabled=True,
                access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing,
            )
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for event in batch.events:
            producers[target].send_async(
                event.payload,
                lambda result, _: answers.put(result),
                properties=to_properties(event),
                sequence_id=event.sequence,
            )
        producers[target].flush()
        if {answers.get(timeout=30) for _ in batch.events} != {pulsar.Result.Ok}:
            raise RuntimeError("not confirmed")
        if crash and next(batches) == _CRASHES_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    return Consumer(url, subscription, batch_handler=send, batch_size=batch_size, idle_seconds=0.05)
