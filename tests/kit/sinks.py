"""Sinks for tests: one in front of another, and one that is used without a relay."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from ops.relay.block import DEFAULT_BACKOFF, Backoff, BlockResult, BlockWork, InHand, Rules
from ops.relay.relay import Relay
from ops.sinks.base import Channel, RelayBlock, Sink, SinkLease
from ops.sinks.ends import SinkBehind
from penstock.archive.targets import Target
from penstock.errors import SinkError, is_interruption
from penstock.log.restores import Seen
from penstock.records import Lease
from penstock.subscriptions.stream import Membership

#: The id of the database that the blocks come from.
INSTALLATION = "aaaaaaaa-0000-0000-0000-000000000000"


class InFront:
    """A sink in front of another one.  What it does with a channel's calls is overridden."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.name = sink.name
        self.max_block_events = sink.max_block_events
        self.max_block_bytes = sink.max_block_bytes

    def preflight(self, topic: str, partitions: int) -> None:
        """As the sink."""
        self.sink.preflight(topic, partitions)

    def open(self, lease: SinkLease) -> Channel:
        """A channel that asks this sink."""
        return _InFront(self, self.sink.open(lease))

    def seen(self, channel: Channel) -> Seen | None:
        """As the sink."""
        return channel.seen()

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """As the sink."""
        channel.send_block(block)

    def abort(self, channel: Channel) -> None:
        """As the sink."""
        channel.abort()

    def close(self) -> None:
        """As the sink."""
        self.sink.close()


class _InFront:
    def __init__(self, front: InFront, channel: Channel) -> None:
        self._front = front
        self._channel = channel

    def seen(self) -> Seen | None:
        return self._front.seen(self._channel)

    def send_block(self, block: RelayBlock) -> None:
        self._front.send_block(self._channel, block)

    def close(self) -> None:
        self._channel.close()

    def abort(self) -> None:
        self._front.abort(self._channel)


class Alone:
    """A sink without a relay: each block goes to the channel of its lease.

    As a relay does, it closes a channel after an error. What it does not have itself, the sink has.
    """

    def __init__(self, sink: Any) -> None:
        self.sink = sink
        self.max_block_events = sink.max_block_events
        self._channels: dict[SinkLease, Channel] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sink, name)

    def seen(self, relay: str, topic: str, known_as: str, partition: int) -> Seen | None:
        """What a channel of this partition has seen."""
        channel: Channel = self.sink.open(
            SinkLease(relay, topic, known_as, partition, 1, 1, INSTALLATION)
        )
        try:
            return channel.seen()
        finally:
            channel.close()

    def send_block(self, block: RelayBlock) -> None:
        """Send it."""
        lease = SinkLease(
            block.relay,
            block.topic,
            block.known_as,
            block.partition,
            block.history,
            block.lease_epoch,
            INSTALLATION,
        )
        if lease not in self._channels:
            self._channels[lease] = self.sink.open(lease)
        try:
            self._channels[lease].send_block(block)
        except SinkBehind:  # its channel goes on when it has what is missing
            raise
        except BaseException:
            self._channels.pop(lease).close()
            raise

    def close(self) -> None:
        """Close the channels and the sink."""
        while self._channels:
            self._channels.popitem()[1].close()
        self.sink.close()


def relay_once(
    connection: Any,
    member: Membership,
    lease: Lease,
    sink: Sink,
    backoff: Backoff = DEFAULT_BACKOFF,
    *,
    targets: Sequence[Target] = (),
    max_attempts: int | None = None,
) -> BlockResult | None:
    """One attempt at a block, in this thread."""
    work = BlockWork(connection, member, lease, Rules(backoff, tuple(targets), max_attempts))
    hand = work.open(sink)
    if hand is None:
        return None
    ended = work.read(hand)
    with closing(Alone(sink)) as alone:
        while ended is None:
            assert hand.block is not None
            try:
                alone.send_block(hand.part or hand.block)
            except SinkBehind as behind:
                ended = _bridged(work, hand, behind)
            except BaseException as error:
                if is_interruption(error):
                    raise
                ended = None if work.refused(hand, error) else work.failed(hand, error)
            else:
                if hand.part is None:
                    return work.commit(hand, sink)
            hand.part = None
            if hand.parts:
                work.read_part(hand, sink)
    return ended


def _bridged(work: BlockWork, hand: InHand, behind: SinkBehind) -> BlockResult | None:
    try:
        work.bridge(hand, behind)
    except SinkError as error:
        return work.failed(hand, error)
    if hand.skip is not None:
        hand.skip()
        hand.skip = None
    return None


def turn(relay: Relay, connection: Any) -> int:
    """One turn of a relay, and what it began: at most a block of each partition."""
    relay._lanes.end_others(relay.keeper.leases())
    return _finished(relay, connection) + relay.turn(connection) + _finished(relay, connection)


def _finished(relay: Relay, connection: Any) -> int:
    done = 0
    while relay._lanes.busy:
        relay._lanes.wait()
        done += sum(relay._settle(connection, lane) for lane in relay._lanes.finished())
    return done
