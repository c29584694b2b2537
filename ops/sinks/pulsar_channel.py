"""One partition of a Pulsar topic, for one lease: what it holds, and its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pulsar

from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
    encoded,
)
from ops.sinks.pulsar_producer import (
    MOST_EVENTS,
    PulsarMessage,
    PulsarProducer,
    last_stored,
)
from ops.sinks.tail import Tail, ahead, present
from penstock.log.restores import Seen

BATCH_BYTES = 4 << 20


class PulsarChannel:
    """Its producer is made for the first block, so a relay that only looks fences nobody."""

    def __init__(
        self,
        lease: SinkLease,
        client: Callable[[], Any],
        target: Callable[[str, int], str],
        *,
        batching: bool,
        limit: int,
        send_timeout: float,
    ) -> None:
        """``target`` names the Pulsar partition of an address's partition."""
        self.batching = batching
        self._lease = lease
        self._client = client
        self._target = target
        self._limit = limit
        self._send_timeout = send_timeout
        self._producer: PulsarProducer | None = None
        self._ended = False
        #: The end of a block that the broker may drop although the topic has nothing of it.
        self._may_be_gone = 0

    def seen(self) -> Seen | None:
        """The partition's last message, if this relay sent it."""
        lease = self._lease
        with _translated_errors():
            stored = last_stored(self._client(), self._target(lease.topic, lease.partition))
        return None if stored is None else stored.seen(lease.relay, lease.known_as)

    def send_block(self, block: RelayBlock) -> None:
        """Send the part of the block that Pulsar does not hold yet, and wait until it is stored."""
        messages = list(encoded(block.events, lambda event: PulsarMessage.of(event, block)))
        self._refuse_large(messages)
        if not messages:
            return
        with _translated_errors():
            producer = self._producer_for(block)
            after = self._held(producer, block, messages)
            left = [message for message in messages if message.event.sequence > after]
            for batch in self._batches(left):
                self._send(producer, block, batch)
            self._may_be_gone = 0

    def close(self) -> None:
        """Close the producer: what still waits in it is discarded."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def abort(self) -> None:
        """Wait for no answer to what was sent; other calls have a time limit in the client."""
        self._ended = True
        producer = self._producer
        if producer is not None:
            producer.abort()

    def _producer_for(self, block: RelayBlock) -> PulsarProducer:
        """The producer of the address under which the block was recorded."""
        target = self._target(block.topic, block.partition)
        if self._producer is None or self._producer.target != target:
            self.close()
            self._producer = PulsarProducer(self._client(), target, block, batching=self.batching)
        if self._ended:
            raise SinkUnavailable("the relay has ended the call to Pulsar")
        return self._producer

    def _held(
        self, producer: PulsarProducer, block: RelayBlock, messages: Sequence[PulsarMessage]
    ) -> int:
        """Up to which sequence Pulsar holds the block.

        It is checked for a lease's first block and for every repeated one.
        """
        if producer.checked and not block.reopened:
            return 0
        stored = _present(producer, block)
        held = 0 if stored is None else stored.sequence
        if producer.remembered > held and producer.remembered >= block.first_sequence:
            # The broker will drop events that are not in the topic any more. That is right only for
            # the batch that was sent last, when the topic keeps nothing because it has no readers.
            # What it remembers here was pushed, and perhaps never stored. So the batch is sent
            # again: the broker drops it only if it is stored, else it fails or is stored now.
            whole = self.batching and len(list(self._batches(messages))) == 1
            if not (block.reopened and whole) or producer.remembered != messages[0].event.sequence:
                finding = f"remembers sequence {producer.remembered}"
                raise ahead(_where(producer.target), block, finding)
            self._may_be_gone = block.last_sequence
        producer.checked = True
        return held

    def _refuse_large(self, messages: Sequence[PulsarMessage]) -> None:
        for message in messages:
            if message.size > self._limit:
                raise EventRefused(
                    message.event.sequence,
                    f"{message.size} bytes with its properties, the broker takes {self._limit}",
                )

    def _batches(self, messages: Sequence[PulsarMessage]) -> Iterator[list[PulsarMessage]]:
        """The batches of a block: nearly always one.  Where to cut depends on the content alone."""
        limit = min(BATCH_BYTES, self._limit)
        batch: list[PulsarMessage] = []
        size = 0
        for message in messages:
            if batch and (size + message.size > limit or len(batch) == MOST_EVENTS):
                yield batch
                batch, size = [], 0
            batch.append(message)
            size += message.size
        if batch:
            yield batch

    def _send(
        self, producer: PulsarProducer, block: RelayBlock, batch: Sequence[PulsarMessage]
    ) -> None:
        """One batch: all of it or nothing; without batching, up to the first that is refused."""
        outcome = producer.deliver(batch, self._send_timeout)
        if outcome.refused:
            self._refused(producer, block, batch, outcome.refused)
        elif outcome.dropped:
            if block.last_sequence != self._may_be_gone:
                _check_dropped(producer, block, batch)
        elif self.batching and len(outcome.entries) != 1:
            raise SinkMisconfigured(
                f"the Pulsar client cut a batch of {len(batch)} into {len(outcome.entries)}",
                hint="use another version of pulsar-client: a cut batch is not exactly once",
            )

    def _refused(
        self,
        producer: PulsarProducer,
        block: RelayBlock,
        batch: Sequence[PulsarMessage],
        refused: Mapping[int, Any],
    ) -> None:
        too_big = set(refused.values()) == {pulsar.Result.MessageTooBig}
        if too_big and (not self.batching or len(batch) == 1):
            raise EventRefused(min(refused), "larger than the broker takes")
        if not too_big or len(refused) != len(batch):
            answers = ", ".join(sorted({str(each) for each in refused.values()}))
            raise SinkUnavailable(f"Pulsar did not store the events: {answers}")
        # The whole batch was refused before it was sent: the limit is lower than it seemed.
        for message in batch:
            self._send(producer, block, [message])


def _present(producer: PulsarProducer, block: RelayBlock) -> Tail | None:
    """The last message of the partition, if it was sent in this log's present history."""
    return present(producer.stored(), block, _where(producer.target))


def _where(target: str) -> str:
    return f"the Pulsar partition {target}"


def _check_dropped(
    producer: PulsarProducer, block: RelayBlock, batch: Sequence[PulsarMessage]
) -> None:
    """The broker dropped the batch as a repeated one.  That is right only if its end is there."""
    stored = _present(producer, block)
    if stored is None or stored.sequence < batch[-1].event.sequence:
        raise ahead(_where(producer.target), block, "drops its events as duplicates")


@contextmanager
def _translated_errors() -> Iterator[None]:
    """The client's errors, as what they mean to a relay."""
    try:
        yield
    except pulsar.PulsarException as error:
        raise _translated(error) from error


def _translated(error: Any) -> SinkUnavailable | SinkMisconfigured:
    text = f"Pulsar: {type(error).__name__} ({error})"
    if isinstance(error, pulsar.AuthorizationError | pulsar.AuthenticationError):
        return SinkMisconfigured(text, hint="check the token and its right to produce and consume")
    if isinstance(error, pulsar.InvalidTopicName | pulsar.InvalidUrl | pulsar.TopicTerminated):
        return SinkMisconfigured(text, hint="check the Pulsar topic's name and the service URL")
    return SinkUnavailable(text)
