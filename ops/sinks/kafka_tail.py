"""Reads the last committed record of a relay in a Kafka partition.

The offsets before the end may be those of markers and of transactions that were given up, so it
steps back 8, 64, 512, ... offsets until there is a record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from ops.sinks.base import SinkMisconfigured, SinkUnavailable
from ops.sinks.kafka_admin import KafkaAdmin
from ops.sinks.kafka_client import ANSWER_SECONDS, KafkaClient, require_wanted
from ops.sinks.tail import Tail

#: So many records of others are looked through for one of a relay.
MOST_FOREIGN = 100_000

#: The name that the client asks for.
GROUP = "penstock-relay"

_STEP = 8
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class KafkaEnd:
    """What a partition says about its end."""

    #: The last record that a relay sent, if there is one.
    tail: Tail | None
    #: Its first offset: what came before was removed.
    first: int
    #: And the offset after its last one.
    end: int


def last_record(
    kafka: KafkaClient, admin: KafkaAdmin, topic: str, partition: int, ended: threading.Event
) -> KafkaEnd | None:
    """The last record that a relay sent, if there is one, and where the partition begins and ends.

    None while a transaction is open: behind it there could be committed records that nobody can
    see yet.
    """
    where = f"the Kafka topic {topic} partition {partition}"
    first, end, settled = admin.ends(topic, partition, ended)
    if not _settled(settled, end):
        return None
    with kafka.translated(f"reading {where}"):
        reader = Consumer(_reader(kafka))
        try:
            back = _STEP
            while first < end:
                start = max(first, end - back)
                tail = _last_of(reader, TopicPartition(topic, partition, start), where, ended)
                if tail is not None or start == first:
                    return KafkaEnd(tail, first, end)
                back *= _STEP
        finally:
            reader.close()
    return KafkaEnd(None, first, end)


def _settled(settled: int, end: int) -> bool:
    """Whether every transaction before the end has ended."""
    return settled >= end


def _last_of(reader: Any, place: TopicPartition, where: str, ended: threading.Event) -> Tail | None:
    """The last record of a relay from an offset on."""
    found, foreign = None, 0
    reader.assign([place])
    for message in _to_the_end(reader, where, ended):
        headers = {
            name: (text or b"").decode(errors="replace") for name, text in message.headers() or ()
        }
        tail = Tail.of(headers)
        found, foreign = tail or found, foreign + (tail is None)
    if found is None and foreign >= MOST_FOREIGN:
        raise SinkMisconfigured(
            f"the last {foreign} records of {where} are not of a relay",
            hint="give the relay a Kafka topic that nobody else writes to: another prefix",
        )
    return found


def _to_the_end(reader: Any, where: str, ended: threading.Event) -> Iterator[Any]:
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        require_wanted(ended)
        # The first is waited for; then what is there already, because a wait is for all of them.
        arrived = [reader.poll(1.0), *reader.consume(_AT_ONCE, 0)]
        for message in arrived:
            if message is None:  # a message without a payload counts as false
                continue
            error = message.error()
            if error is None:
                deadline = time.monotonic() + ANSWER_SECONDS
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise SinkUnavailable(f"{where} cannot be read back: {error.name()}")
    raise SinkUnavailable(f"{where} could not be read back within {ANSWER_SECONDS} s")


def _reader(kafka: KafkaClient) -> dict[str, Any]:
    return kafka.config(
        {
            # The client asks for a group; it is never joined and nothing is committed.
            "group.id": GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 5,
            "fetch.error.backoff.ms": 5,
        }
    )
