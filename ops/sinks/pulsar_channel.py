"""The way into one Pulsar partition: an exclusive producer, and a look at what is there."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pulsar

from ops.cloudevents import to_properties
from ops.sinks.base import Block, SinkUnavailable
from penstock.records import Event

RELAY_PROPERTY = "penstock_relay"
#: More than a block can have (the database's own bound).
MOST_EVENTS = 100_000
READ_SECONDS = 15

_MESSAGE_OVERHEAD = 96  # what a message in a batch takes beside its properties
_PROPERTY_OVERHEAD = 8
_NO_BATCH_BYTES = 64 << 20
_NEVER_MS = 24 * 3600 * 1000
_DROPPED = -1


@dataclass(frozen=True, slots=True)
class Message:
    """An event with its properties and the room it takes on the way."""

    event: Event
    properties: dict[str, str]
    size: int

    @classmethod
    def of(cls, event: Event, relay: str) -> Message:
        """The event as it is sent."""
        properties = to_properties(event) | {RELAY_PROPERTY: relay}
        return cls(event, properties, wire_size(event, properties))


@dataclass(frozen=True, slots=True)
class Stored:
    """What the last message of a Pulsar partition says about itself."""

    relay: str
    source: str
    history: int
    sequence: int
    event_id: str


@dataclass(slots=True)
class Outcome:
    """What the broker answered to the messages of one batch."""

    answered: int = 0
    #: What was not stored: result by sequence.
    refused: dict[int, Any] = field(default_factory=dict)
    entries: set[tuple[int, int]] = field(default_factory=set)

    def take(self, answer: tuple[int, Any, Any]) -> bool:
        """Note one answer; whether the message is stored."""
        sequence, result, message_id = answer
        self.answered += 1
        if result != pulsar.Result.Ok:
            self.refused[sequence] = result
            return False
        self.entries.add((message_id.ledger_id(), message_id.entry_id()))
        return True

    @property
    def dropped(self) -> bool:
        """Whether the broker kept some of it out as a duplicate."""
        return any(ledger == _DROPPED for ledger, _ in self.entries)


class PulsarChannel:
    """The producer of one partition, as long as one lease lasts."""

    def __init__(self, client: Any, target: str, block: Block, *, batching: bool) -> None:
        self.target = target
        self.lease_epoch = block.lease_epoch
        self.checked = False
        self._client = client
        self._batching = batching
        self._producer = client.create_producer(
            target,
            producer_name=producer_name(block),
            # Without end: a message given up alone would let the ones behind it pass.
            send_timeout_millis=0,
            # Room for any recorded block, whatever made it: a full queue would refuse single
            # messages in the middle.
            max_pending_messages=MOST_EVENTS + 1,
            # Nothing but our own flush ends a batch.
            batching_enabled=batching,
            batching_max_messages=MOST_EVENTS + 1,
            batching_max_allowed_size_in_bytes=_NO_BATCH_BYTES,
            batching_max_publish_delay_ms=_NEVER_MS,
            compression_type=pulsar.CompressionType.LZ4,
            access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing,
        )
        #: The sequence id that the broker remembers of this producer's name: the lowest of its
        #: last batch, or -1.
        self.remembered = int(self._producer.last_sequence_id())

    def close(self) -> None:
        """What still waits in the producer is discarded, not sent behind our back."""
        with suppress(pulsar.PulsarException):
            self._producer.close()

    def stored(self) -> Stored | None:
        """The partition's last message, when a relay has sent it."""
        reader = self._client.create_reader(
            self.target, pulsar.MessageId.latest, start_message_id_inclusive=True
        )
        try:
            if not reader.has_message_available():
                return None
            found: Mapping[str, str] = reader.read_next(READ_SECONDS * 1000).properties()
        finally:
            reader.close()
        if RELAY_PROPERTY not in found:
            return None  # of another producer, from before this relay
        return Stored(
            found[RELAY_PROPERTY],
            found["ce_source"],
            int(found["ce_penstockhistory"]),
            int(found["ce_sequence"]),
            found["ce_id"],
        )

    def deliver(self, batch: Sequence[Message], timeout: float) -> Outcome:
        """Send the batch as one and wait for the broker's answers."""
        outcome = Outcome()
        # The client calls back on threads of its own, where nothing may raise: it only hands the
        # answers over.
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        sent = 0
        for message in batch:
            self._send(message, answers)
            sent += 1
            # What the client refuses at once it refuses alone: the next one would leave a gap.
            if not answers.empty() and not outcome.take(answers.get()):
                break
        if self._batching and outcome.refused:
            return outcome  # what was taken waits for a flush, and goes with the producer
        if self._batching:
            # A flush has no time limit: it waits on a thread of its own, until the producer is
            # closed at the latest.
            threading.Thread(target=self._flush, daemon=True).start()
        _collect(answers, sent, timeout, outcome)
        return outcome

    def _send(self, message: Message, answers: queue.SimpleQueue[Any]) -> None:
        event = message.event

        def hand_over(result: Any, message_id: Any) -> None:
            answers.put((event.sequence, result, message_id))

        self._producer.send_async(
            event.payload,
            hand_over,
            properties=message.properties,
            partition_key=event.key or None,
            sequence_id=event.sequence,
            event_timestamp=max(0, int(event.created_at.timestamp() * 1000)) or None,
        )

    def _flush(self) -> None:
        # What goes wrong reaches the callbacks; when nothing reaches them, the time limit speaks.
        with suppress(pulsar.PulsarException):
            self._producer.flush()


def producer_name(block: Block) -> str:
    """By this name the broker knows what it has already got from a relay."""
    return f"penstock/{block.relay}/{block.topic}/{block.partition}/{block.history}"


def wire_size(event: Event, properties: Mapping[str, str]) -> int:
    """At least as many bytes as the event takes in a batch before compression."""
    size = len(event.payload) + _MESSAGE_OVERHEAD + len((event.key or "").encode())
    for name, value in properties.items():
        size += len(name) + len(value.encode()) + _PROPERTY_OVERHEAD
    return size


def _collect(answers: queue.SimpleQueue[Any], count: int, timeout: float, outcome: Outcome) -> None:
    """Wait for the answers to so many messages, but not for what a refused one held back."""
    deadline = time.monotonic() + timeout
    while outcome.answered < count:
        try:
            outcome.take(answers.get(timeout=max(0.0, deadline - time.monotonic())))
        except queue.Empty:
            if outcome.refused:
                return
            raise SinkUnavailable(
                f"Pulsar did not confirm the events within {timeout:g} s"
            ) from None
