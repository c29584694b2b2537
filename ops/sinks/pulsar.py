"""Apache Pulsar, exactly once: one Penstock partition to one Pulsar partition, in recorded blocks.

Broker deduplication alone is not enough for batches: the broker remembers the lowest sequence id of
a batch, so a successor that cuts its batches elsewhere loses and doubles events.  Here a block is
one batch, recorded before it is sent, and a successor sends the very same batch again, which the
broker keeps or drops whole:

* no timer and no limit of the client cuts a batch; only a block above `BATCH_BYTES` is cut, always
  at the same places, and then each piece is kept or dropped whole;
* the producer's name holds relay, topic (under its permanent name), partition and history, so the
  broker knows a successor by it, and mistakes neither a restored log, whose sequences begin anew,
  nor another topic of the same address for the old one;
* producers are exclusive with fencing: the successor of a paused relay takes over at once
  (measured: 0.03 s; a shared name waits 5 s until the broker finds the old connection dead), and
  what the paused one sends later is refused, even after the broker has forgotten its sequence ids
  (`brokerDeduplicationProducerInactivityTimeoutMinutes`);
* for the same reason the sink reads the partition's last message before it sends a block again, and
  does not send what Pulsar holds already;
* a block that was open when a history began may have been sent under the producer name of the
  history before: the partition's last message tells that, too;
* when Pulsar holds later sequences than the block, or another event under one of its sequences, the
  relay stops with an error: the database has lost commits, or the subscription was created again or
  moved back, and going on would silently lose events.

With ``batching=False`` each event is its own message, which Key_Shared subscriptions need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pulsar

from ops.sinks.base import EventRefused, RelayBlock, SinkMisconfigured, SinkUnavailable, encoded
from ops.sinks.cloudevents import source
from ops.sinks.pulsar_admin import DEFAULT_MAX_MESSAGE_BYTES, PulsarAdmin
from ops.sinks.pulsar_channel import MOST_EVENTS, PulsarChannel, PulsarMessage, Stored, last_stored
from penstock.errors import SinkError
from penstock.log.restores import Seen

BATCH_BYTES = 4 << 20

_ENVELOPE_BYTES = 10_240  # how much of the broker's limit the protocol uses itself
_OPERATION_SECONDS = 15
_Key = tuple[str, str, str, int, int]


class PulsarSink:
    """Sends each partition of a topic to the partition of the same number of a Pulsar topic."""

    name = "pulsar"
    max_block_events = 5_000
    # The rest of a batch is properties: about half a kilobyte for each event.
    max_block_bytes = BATCH_BYTES // 2

    def __init__(
        self,
        service_url: str,
        *,
        admin_url: str,
        topic: str = "persistent://public/default/{topic}",
        topics: Mapping[str, str] | None = None,
        batching: bool = True,
        create: bool = False,
        token: str | None = None,
        send_timeout_seconds: float = 30,
        client_log: str = os.devnull,
    ) -> None:
        self.service_url = service_url
        self.batching = batching
        self._admin = PulsarAdmin(admin_url, token)
        self._template = topic
        self._topics = dict(topics or {})
        self._create = create
        self._token = token
        self._send_timeout = send_timeout_seconds
        self._client_log = client_log
        self._client: Any = None
        self._channels: dict[_Key, PulsarChannel] = {}
        self._limit = DEFAULT_MAX_MESSAGE_BYTES - _ENVELOPE_BYTES

    def pulsar_topic(self, topic: str) -> str:
        """The Pulsar topic of a Penstock topic.

        It is from `topics`, else from the pattern, with `/` as `.`.
        """
        return self._topics.get(topic) or self._template.format(topic=topic.replace("/", "."))

    def preflight(self, topic: str, partitions: int) -> None:
        """Check that the Pulsar topic has as many partitions and that the broker deduplicates.

        With ``create`` a missing topic is created this way.
        """
        target = self.pulsar_topic(topic)
        found = self._admin.partitions(target)
        if found is None:
            self._admin.require_namespace(target)
        if found is None and self._create:
            self._admin.create(target, partitions)
            found = self._admin.partitions(target)
        _require_partitions(target, found, partitions)
        if not self._admin.deduplicates(target):
            raise _deduplication_off(target)
        self._limit = self._admin.max_message_bytes() - _ENVELOPE_BYTES

    def seen(self, relay: str, topic: str, known_as: str, partition: int) -> Seen | None:
        """The partition's last message, if this relay sent it."""
        try:
            stored = last_stored(self._connected(), self._target(topic, partition))
        except pulsar.PulsarException as error:
            raise _translated(error) from error
        if stored is None or (stored.relay, stored.known_as) != (relay, known_as):
            return None
        return Seen(stored.sequence, stored.history)

    def send_block(self, block: RelayBlock) -> None:
        """Send the part of the block that Pulsar does not hold yet, and wait until it is stored."""
        messages = list(encoded(block.events, lambda event: PulsarMessage.of(event, block)))
        self._refuse_large(messages)
        if not messages:
            return
        key = (block.relay, block.topic, block.known_as, block.partition, block.history)
        try:
            channel = self._channel(key, block)
            after = self._held(channel, block, messages)
            left = [message for message in messages if message.event.sequence > after]
            for batch in self._batches(left):
                self._send(channel, block, batch)
        except pulsar.PulsarException as error:
            self._forget(key)
            raise _translated(error) from error
        except SinkError:
            self._forget(key)
            raise

    def close(self) -> None:
        """Close the client: its threads must not outlive the interpreter."""
        self._channels.clear()
        client, self._client = self._client, None
        if client is not None:
            with suppress(pulsar.PulsarException):
                client.close()

    def _channel(self, key: _Key, block: RelayBlock) -> PulsarChannel:
        known = self._channels.get(key)
        if known is not None and known.lease_epoch == block.lease_epoch:
            return known
        # A holder of a lease in between has fenced the older producer.
        self._forget(key)
        target = self._target(block.topic, block.partition)
        channel = PulsarChannel(self._connected(), target, block, batching=self.batching)
        self._channels[key] = channel
        return channel

    def _target(self, topic: str, partition: int) -> str:
        return f"{self.pulsar_topic(topic)}-partition-{partition}"

    def _forget(self, key: _Key) -> None:
        channel = self._channels.pop(key, None)
        if channel is not None:
            channel.close()

    def _connected(self) -> Any:
        if self._client is None:
            token = self._token
            self._client = pulsar.Client(
                self.service_url,
                authentication=None if token is None else pulsar.AuthenticationToken(token),
                operation_timeout_seconds=_OPERATION_SECONDS,
                logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, self._client_log),
            )
        return self._client

    def _held(
        self, channel: PulsarChannel, block: RelayBlock, messages: Sequence[PulsarMessage]
    ) -> int:
        """Up to which sequence Pulsar holds the block.

        It is checked for a lease's first block and for every repeated one.
        """
        if channel.checked and not block.reopened:
            return 0
        stored = _present(channel, block)
        held = 0 if stored is None else stored.sequence
        if channel.remembered > held and channel.remembered >= block.first_sequence:
            # The broker will drop events that are not in the topic any more. That is right only for
            # the batch that was sent last, when the topic keeps nothing because it has no readers.
            whole = self.batching and len(list(self._batches(messages))) == 1
            if not (block.reopened and whole) or channel.remembered != messages[0].event.sequence:
                raise _ahead(block, f"remembers sequence {channel.remembered}")
            held = block.last_sequence
        channel.checked = True
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
        self, channel: PulsarChannel, block: RelayBlock, batch: Sequence[PulsarMessage]
    ) -> None:
        """One batch: all of it or nothing; without batching, up to the first that is refused."""
        outcome = channel.deliver(batch, self._send_timeout)
        if outcome.refused:
            self._refused(channel, block, batch, outcome.refused)
        elif outcome.dropped:
            _check_dropped(channel, block, batch)
        elif self.batching and len(outcome.entries) != 1:
            raise SinkMisconfigured(
                f"the Pulsar client cut a batch of {len(batch)} into {len(outcome.entries)}",
                hint="use another version of pulsar-client: a cut batch is not exactly once",
            )

    def _refused(
        self,
        channel: PulsarChannel,
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
            self._send(channel, block, [message])


def _present(channel: PulsarChannel, block: RelayBlock) -> Stored | None:
    """The last message of the partition, if it was sent in this log's present history."""
    stored = channel.stored()
    if stored is None:
        return None
    if (stored.relay, stored.known_as) != (block.relay, block.known_as):
        if (stored.relay, stored.source) == (block.relay, source(block.topic)):
            return None  # from a topic that had the address before this one
        raise SinkMisconfigured(
            f"{channel.target} carries the events of {stored.source}, by the relay {stored.relay}",
            hint="give each relay and topic a Pulsar topic of its own",
        )
    if stored.history > block.history:
        raise _ahead(block, f"holds events of history {stored.history}")
    if stored.history < block.history:
        return stored if _began_before(stored, block) else None
    if stored.sequence > block.last_sequence:
        raise _ahead(block, f"holds sequence {stored.sequence}")
    for event in block.events:
        if event.sequence == stored.sequence and str(event.event_id) != stored.event_id:
            raise _ahead(block, f"holds another event of sequence {stored.sequence}")
    return stored


def _began_before(stored: Stored, block: RelayBlock) -> bool:
    """Whether the block was open when its history began, and sent under the one before.

    The record of an open block and the sequences in it are restored together. If one of these
    sequences is the event that Pulsar holds last, then neither the block nor what comes before that
    event was lost.
    """
    return block.reopened and any(
        event.sequence == stored.sequence and str(event.event_id) == stored.event_id
        for event in block.events
    )


def _check_dropped(
    channel: PulsarChannel, block: RelayBlock, batch: Sequence[PulsarMessage]
) -> None:
    """The broker dropped the batch as a repeated one.  That is right only if its end is there."""
    stored = _present(channel, block)
    if stored is None or stored.sequence < batch[-1].event.sequence:
        raise _ahead(block, "drops its events as duplicates")


def _require_partitions(target: str, found: int | None, wanted: int) -> None:
    if found is None:
        raise SinkMisconfigured(
            f"the Pulsar topic {target} does not exist",
            hint=f"run: pulsar-admin topics create-partitioned-topic -p {wanted} {target}",
        )
    if found == 0:
        raise SinkMisconfigured(
            f"the Pulsar topic {target} has no partitions",
            hint="name another Pulsar topic for the relay",
        )
    if found != wanted:
        raise SinkMisconfigured(
            f"the Pulsar topic {target} has {found} partitions instead of {wanted}",
            hint=f"run: pulsar-admin topics update-partitioned-topic -p {wanted} {target}"
            if found < wanted
            else "name another Pulsar topic for the relay",
        )


def _deduplication_off(target: str) -> SinkMisconfigured:
    namespace = target.split("://", 1)[-1].rsplit("/", 1)[0]
    return SinkMisconfigured(
        f"deduplication is off for the Pulsar topic {target}: a repeated block would be doubled",
        hint=f"run: pulsar-admin namespaces set-deduplication --enable {namespace} "
        f"(or pulsar-admin topicPolicies set-deduplication --enable {target}, "
        "or set brokerDeduplicationEnabled=true in broker.conf)",
    )


def _ahead(block: RelayBlock, finding: str) -> SinkMisconfigured:
    return SinkMisconfigured(
        f"the Pulsar partition of {block.topic} partition {block.partition} {finding}, but the "
        f"relay {block.relay} is at {block.first_sequence} to {block.last_sequence}",
        hint="the database was restored to an older state, or the subscription was created again "
        "or moved back: reconcile the restore, or relay under another name to another Pulsar topic",
    )


def _translated(error: Any) -> SinkUnavailable | SinkMisconfigured:
    text = f"Pulsar: {type(error).__name__} ({error})"
    if isinstance(error, pulsar.AuthorizationError | pulsar.AuthenticationError):
        return SinkMisconfigured(text, hint="check the token and its right to produce and consume")
    if isinstance(error, pulsar.InvalidTopicName | pulsar.InvalidUrl | pulsar.TopicTerminated):
        return SinkMisconfigured(text, hint="check the Pulsar topic's name and the service URL")
    return SinkUnavailable(text)
