"""The access to one Pulsar partition: an exclusive producer, and its last message."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pulsar

from ops.sinks.base import RelayBlock, SinkUnavailable
from ops.sinks.tail import Tail, headers_of
from penstock.records import Event

#: More events than a block can have: the database limits it.
MOST_EVENTS = 100_000
READ_SECONDS = 15

_MESSAGE_OVERHEAD = 96  # what a message in a batch needs besides its properties
_PROPERTY_OVERHEAD = 8
_NO_BATCH_BYTES = 64 << 20
_NEVER_MS = 24 * 3600 * 1000
_DROPPED = -1
_SEQUENCE = itemgetter(0)


@dataclass(frozen=True, slots=True)
class PulsarMessage:
    """An event with its properties and its size on the wire."""

    event: Event
    properties: dict[str, str]
    size: int

    @classmethod
    def of(cls, event: Event, block: RelayBlock) -> PulsarMessage:
        """The event as it is sent in a block."""
        properties = headers_of(event, block)
        return cls(event, properties, wire_size(event, properties))


@dataclass(frozen=True, slots=True)
class PulsarOutcome:
    """What the broker answered to the messages of one batch."""

    #: What was not stored: the broker's result for each sequence.
    refused: dict[int, Any]
    #: Where the first and the last of the rest are stored.
    entries: frozenset[tuple[int, int]]

    @property
    def dropped(self) -> bool:
        """Whether the broker dropped it as duplicates."""
        return any(ledger == _DROPPED for ledger, _ in self.entries)


class _Answers:
    """Gathers the broker's answers on the client's threads, which must not raise."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, Any, Any]] = []
        self._expected = -1
        self._complete = threading.Event()
        self.refused = False
        self.ended = False

    def take(self, sequence: int, result: Any, message_id: Any) -> None:
        """One answer, on a thread of the client."""
        self._taken.append((sequence, result, message_id))
        if result != pulsar.Result.Ok:
            self.refused = True
        if len(self._taken) == self._expected:
            self._complete.set()

    def wait(self, count: int, timeout: float) -> bool:
        """Wait for this many answers.  False when they did not come in time."""
        self._expected = count
        # Checked after it was set: an answer in between is counted here or sets the event.
        return len(self._taken) >= count or self._complete.wait(timeout)

    def end(self) -> None:
        """Wait no longer."""
        self.ended = True
        self._complete.set()

    def outcome(self) -> PulsarOutcome:
        """What has come so far."""
        taken = sorted(self._taken, key=_SEQUENCE)
        stored = [message_id for _, result, message_id in taken if result == pulsar.Result.Ok]
        # A producer's entries follow each other, so if both ends are in one, all of them are.
        ends = stored[:1] + stored[-1:]
        return PulsarOutcome(
            {sequence: result for sequence, result, _ in taken if result != pulsar.Result.Ok},
            frozenset((each.ledger_id(), each.entry_id()) for each in ends),
        )


class PulsarProducer:
    """The producer of one partition, as long as one lease lasts."""

    def __init__(self, client: Any, target: str, block: RelayBlock, *, batching: bool) -> None:
        self.target = target
        #: Whether it was looked at what Pulsar holds since the producer was made.
        self.checked = False
        self._client = client
        self._batching = batching
        self._ended = False
        self._answers: _Answers | None = None
        self._producer = client.create_producer(
            target,
            producer_name=producer_name(block),
            # No time limit: if one message were given up, those after it would still be sent.
            send_timeout_millis=0,
            # Room for every possible block: a full queue would refuse single messages in the
            # middle.
            max_pending_messages=MOST_EVENTS + 1,
            # Only our own flush ends a batch.
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
        """Close the producer.  Messages that still wait in it are discarded, not sent later."""
        with suppress(pulsar.PulsarException):
            self._producer.close()

    def abort(self) -> None:
        """Wait for no answer any longer."""
        self._ended = True
        answers = self._answers
        if answers is not None:
            answers.end()

    def stored(self) -> Tail | None:
        """The partition's last message, if a relay sent it."""
        return last_stored(self._client, self.target)

    def deliver(self, batch: Sequence[PulsarMessage], timeout: float) -> PulsarOutcome:
        """Send the messages as one batch and wait for the broker's answers."""
        answers = self._answers = _Answers()
        if self._ended:
            answers.end()
        sent = 0
        for message in batch:
            self._send(message, answers)
            sent += 1
            # The client refuses a single message at once. Sending the next one would leave a gap.
            if answers.refused:
                break
        if self._batching and answers.refused:
            return answers.outcome()  # what was taken waits for a flush, and goes with the producer
        if self._batching:
            # A flush has no time limit. It waits on its own thread, at most until the producer is
            # closed.
            threading.Thread(target=self._flush, daemon=True).start()
        came = answers.wait(sent, timeout)
        if answers.ended:
            raise SinkUnavailable("the relay has ended the call to Pulsar")
        if not came and not answers.refused:
            raise SinkUnavailable(f"Pulsar did not confirm the events within {timeout:g} s")
        return answers.outcome()

    def _send(self, message: PulsarMessage, answers: _Answers) -> None:
        event = message.event
        self._producer.send_async(
            event.payload,
            functools.partial(answers.take, event.sequence),
            properties=message.properties,
            partition_key=event.key or None,
            sequence_id=event.sequence,
            event_timestamp=max(0, int(event.created_at.timestamp() * 1000)) or None,
        )

    def _flush(self) -> None:
        # The callbacks get every failure. If they get nothing at all, the time limit ends the wait.
        with suppress(pulsar.PulsarException):
            self._producer.flush()


def last_stored(client: Any, target: str) -> Tail | None:
    """The last message of a Pulsar partition, if a relay sent it."""
    reader = client.create_reader(target, pulsar.MessageId.latest, start_message_id_inclusive=True)
    try:
        if not reader.has_message_available():
            return None
        found: Mapping[str, str] = reader.read_next(READ_SECONDS * 1000).properties()
    finally:
        reader.close()
    return Tail.of(found)


def producer_name(block: RelayBlock) -> str:
    """The name by which the broker knows what it has already got from a relay."""
    return f"penstock/{block.relay}/{block.known_as}/{block.partition}/{block.history}"


def wire_size(event: Event, properties: Mapping[str, str]) -> int:
    """An upper bound of the bytes that the event needs in a batch before compression."""
    names, values = len("".join(properties)), len("".join(properties.values()).encode())
    own = len(event.payload) + _MESSAGE_OVERHEAD + len((event.key or "").encode())
    return own + names + values + _PROPERTY_OVERHEAD * len(properties)
