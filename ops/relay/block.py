"""One block of one leased partition: recorded, read, sent, committed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ops.relay.gaps import SinkGap
from ops.sinks.base import EventRefused, RelayBlock, Sink, SinkPaused, SinkUnavailable
from ops.sinks.ends import SinkBehind
from penstock import database, subscriptions
from penstock.database import sessions
from penstock.errors import BelowLowSequence, LogBehind, PenstockError, error_text, is_interruption
from penstock.publishing.rows import MAX_ATTEMPTS
from penstock.records import Event, Lease
from penstock.subscriptions import stream
from penstock.subscriptions.dead_letters import bring_letters
from penstock.subscriptions.stream import Membership

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ops.relay.channels import Channels
    from ops.relay.cold_blocks import ColdEvents
    from penstock.archive.targets import Target
    from penstock.database import Connection

log = logging.getLogger(__name__)

_REASON = 1_000  # characters that the reason of a pause may have


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a block waits after a failed attempt: doubled each time, with jitter, bounded."""

    base_seconds: float = 1.0
    max_seconds: float = 300.0


DEFAULT_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True)
class BlockResult:
    """The result of one attempt at a block.

    With ``retry_after`` the block is still open and is tried again after that many seconds.
    """

    events: int
    last_sequence: int
    dead_letters: int = 0
    retry_after: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """The last block of a partition that a relay has begun to send, and under which lease.

    Within one lease each block follows the one before. A block that does not was opened in a log
    that has been put back, whatever connection leads there. ``went_back`` then stays set until the
    lease ends.
    """

    lease_epoch: int
    block_id: int
    first_sequence: int
    last_sequence: int
    went_back: bool = False


def relay_once(
    connection: Connection,
    member: Membership,
    lease: Lease,
    channels: Channels,
    backoff: Backoff = DEFAULT_BACKOFF,
    *,
    begun: dict[int, Begun] | None = None,
    targets: Sequence[Target] = (),
) -> BlockResult | None:
    """Send the open block of a leased partition, or its next block.  None when there is none.

    After an error the partition's channel is closed.

    StaleLease when the lease was lost: its new holder goes on with the same block.
    LogBehind when the log was put back since the last block of ``begun``, which the caller keeps
    for each partition, or while this one was sent. Below the low sequence the events come from the
    archive ``targets``; BelowLowSequence when there are none.
    """
    work = _Work(connection, member, lease, tuple(targets))
    opened = work.open(channels.sink)
    if opened is None:
        return None
    if begun is not None:
        _require_onward(lease, opened, begun)
    dead = 0
    while True:
        block: RelayBlock | None = None
        try:
            block = work.read(opened)
            _refuse_exhausted(block, opened.attempt)
            work.send(opened, block, channels)
            break
        except BaseException as error:  # every failure is counted, or it would repeat unseen
            channels.drop(lease)
            if is_interruption(error):
                raise
            if block is None and database.is_unavailable(error):
                raise  # without the database, no failure can be counted
            # Refusing an event that is not in the block would repeat for ever, so it is a failure.
            if block and isinstance(error, EventRefused) and _holds(block, error.sequence):
                work.dead_letter(opened, block, error)
                dead += 1
                # A sink that stores event by event may hold the events before the refused one.
                opened = replace(opened, reopened=True)
                continue
            wait = work.failed(opened, error, backoff)
            return BlockResult(0, opened.last_sequence, dead, wait, error_text(error))
    work.commit(opened, channels.sink)
    return BlockResult(len(block.events), opened.last_sequence, dead)


def _require_onward(lease: Lease, opened: _Opened, begun: dict[int, Begun]) -> None:
    """LogBehind when this block was begun before and is not the one that is still open."""
    known = begun.get(lease.partition_id)
    if known is not None and known.lease_epoch == lease.lease_epoch:
        is_same = opened.reopened and opened.place == (
            known.block_id,
            known.first_sequence,
            known.last_sequence,
        )
        if known.went_back or not (is_same or opened.first_sequence > known.last_sequence):
            begun[lease.partition_id] = replace(known, went_back=True)
            raise _put_back(lease, known.last_sequence, opened.first_sequence)
    begun[lease.partition_id] = Begun(lease.lease_epoch, *opened.place)


def _put_back(lease: Lease, sent: int, first: int) -> LogBehind:
    return LogBehind(
        f"{lease.topic} partition {lease.partition} was sent up to sequence {sent} under "
        f"lease_epoch {lease.lease_epoch}, and the log has it begin at {first} again",
        hint="a restore lost commits: open the next history by `penstock restore reconcile`",
    )


def _refuse_exhausted(block: RelayBlock, attempt: int) -> None:
    """EventRefused for an event whose block has had more attempts than its publisher allows."""
    if attempt == 1:  # every limit is at least one, so no header has to be decoded
        return
    for event in block.events:
        limit = event.headers.get(MAX_ATTEMPTS)
        if type(limit) is int and limit < attempt:
            raise EventRefused(event.sequence, f"not delivered in {attempt - 1} attempts")


def _holds(block: RelayBlock, sequence: int) -> bool:
    return any(event.sequence == sequence for event in block.events)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A row of `open_block`."""

    block_id: int
    first_sequence: int
    last_sequence: int
    reopened: bool
    attempt: int
    topic: str
    known_as: str
    is_cold: bool = False

    @property
    def place(self) -> tuple[int, int, int]:
        """What tells this block from every other block of this log."""
        return self.block_id, self.first_sequence, self.last_sequence


@dataclass(frozen=True, slots=True)
class _Work:
    """The calls of a relay on one lease.  Each is fenced and runs in its own transaction."""

    connection: Connection
    member: Membership
    lease: Lease
    targets: tuple[Target, ...] = ()

    def open(self, sink: Sink) -> _Opened | None:
        try:
            return self._open_hot(sink)
        except BelowLowSequence:
            if not self.targets:
                raise
            end = self._cold().end_of_block(sink.max_block_events, sink.max_block_bytes)
            return self._open_cold(end)

    def _open_hot(self, sink: Sink) -> _Opened | None:
        rows = database.call(
            self.connection,
            "open_block",
            **self._fence(),
            max_events=sink.max_block_events,
            max_bytes=sink.max_block_bytes,
        )
        return _Opened(*rows[0]) if rows else None

    def _open_cold(self, last_sequence: int) -> _Opened:
        rows = database.call(
            self.connection, "open_cold_block", **self._fence(), up_to=last_sequence
        )
        return replace(_Opened(*rows[0]), is_cold=True)

    def _cold(self) -> ColdEvents:
        # Imported here: only a relay that reads the archive needs Arrow.
        from ops.relay.cold_blocks import ColdEvents

        return ColdEvents(self.connection, self.lease, self.targets)

    def read(self, opened: _Opened) -> RelayBlock:
        lease = self.lease
        place = opened.first_sequence, opened.last_sequence
        if opened.is_cold:
            events = self._cold().between(self.member.subscription, *place)
        else:
            rows = database.call_events(
                self.connection,
                "read_block",
                subscription=self.member.subscription,
                partition_id=lease.partition_id,
                first_sequence=place[0],
                last_sequence=place[1],
            )
            events = Event.from_rows(opened.topic, lease.partition, lease.history, rows)
        return RelayBlock(
            relay=self.member.subscription,
            topic=opened.topic,
            known_as=opened.known_as,
            partition=lease.partition,
            history=lease.history,
            lease_epoch=lease.lease_epoch,
            first_sequence=opened.first_sequence,
            last_sequence=opened.last_sequence,
            reopened=opened.reopened,
            events=tuple(events),
        )

    def send(self, opened: _Opened, block: RelayBlock, channels: Channels) -> None:
        """Send a block, and before it what the sink has lost, if it says so and may get it."""
        lease = self.lease
        channel = channels.of(lease, opened.known_as)
        try:
            channel.send_block(block)
        except SinkBehind as behind:
            subscription = self.member.subscription
            lost = range(behind.after + 1, opened.first_sequence)
            gap = SinkGap.of(self.connection, subscription, lease, lost)

            def read(first: int, last: int, is_cold: bool) -> RelayBlock:
                self.open(channels.sink)  # StaleLease when somebody else has the partition now
                part = replace(opened, first_sequence=first, last_sequence=last, is_cold=is_cold)
                return self.read(replace(part, reopened=True))

            gap.close(lease, channel, behind, read)
            channel.send_block(block)

    def commit(self, opened: _Opened, sink: Sink) -> None:
        """Move the position, if the block is still recorded.

        Through a pooler the connection outlives a restore of the database. If the log was put back
        while the block was sent, it may now hold other events under the same sequences.
        """
        connection, before = self.connection, opened.first_sequence - 1
        with sessions.of_connection(connection).transaction(connection):
            last = opened.last_sequence
            present = self._open_cold(last) if opened.is_cold else self._open_hot(sink)
            if present is None or not present.reopened or present.place != opened.place:
                raise _put_back(self.lease, opened.last_sequence, opened.first_sequence)
            positions = [(self.lease, opened.last_sequence)]
            stream.commit(connection, self.member, positions, after=[before])

    def dead_letter(self, opened: _Opened, block: RelayBlock, refused: EventRefused) -> None:
        log.error("%s partition %s: %s", self.lease.topic, self.lease.partition, refused)
        with sessions.of_connection(self.connection).transaction(self.connection):
            if opened.is_cold:
                brought = [each for each in block.events if each.sequence == refused.sequence]
                bring_letters(self.connection, self.member, self.lease, brought)
            database.call(
                self.connection,
                "dead_letter",
                **self._fence(),
                sequence=refused.sequence,
                reason=refused.reason,
            )

    def failed(self, opened: _Opened, error: BaseException, backoff: Backoff) -> float:
        if not isinstance(error, PenstockError):
            log.error("a block failed with an unexpected error", exc_info=error)
        rows = database.call(
            self.connection,
            "relay_failure",
            **self._fence(),
            block_id=opened.block_id,
            error=error_text(error),
            base_seconds=backoff.base_seconds,
            max_seconds=backoff.max_seconds,
        )
        if isinstance(error, SinkPaused):
            reason = f"the sink asked for it: {error.message}"
            subscriptions.pause(self.connection, self.member.subscription, reason[:_REASON])
        told = error.retry_after if isinstance(error, SinkUnavailable) else None
        return float(rows[0][0]) if told is None else told

    def _fence(self) -> dict[str, Any]:
        return {
            "subscription": self.member.subscription,
            "consumer": self.member.consumer,
            "partition_id": self.lease.partition_id,
            "lease_epoch": self.lease.lease_epoch,
        }
