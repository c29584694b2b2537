"""One block of one leased partition: recorded, read, committed.  A lane sends it (`lanes`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ops.relay.gaps import SinkGap
from ops.relay.misfits import misfits
from ops.relay.places import PassedPlaces
from ops.sinks.base import EventRefused, RelayBlock, Sink, SinkPaused, SinkUnavailable
from ops.sinks.ends import SinkBehind
from ops.sinks.routing import Routing
from penstock import database, subscriptions
from penstock.database import sessions
from penstock.errors import BelowLowSequence, LogBehind, PenstockError, error_text, is_interruption
from penstock.publishing.rows import MAX_ATTEMPTS
from penstock.records import Event, Lease
from penstock.subscriptions import stream
from penstock.subscriptions.dead_letters import bring_letters
from penstock.subscriptions.stream import Membership

if TYPE_CHECKING:
    from ops.relay.cold_blocks import ColdEvents
    from penstock.archive.targets import Target
    from penstock.database import Connection

log = logging.getLogger(__name__)

_REASON = 1_000  # characters that the reason of a pause may have
#: So many events of what a sink has lost are read at a time, whatever their size.
_PIECE = 50


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a block waits after a failed attempt: doubled each time, with jitter, bounded."""

    base_seconds: float = 1.0
    max_seconds: float = 300.0


DEFAULT_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True)
class Rules:
    """How a relay treats its blocks, whatever the sink is.

    Below the low sequence the events come from the archive ``targets``. With ``max_attempts`` the
    events of a block that has failed so often are dead letters, whatever the reason was.
    ``routing`` says which events are sent, and where to.
    """

    backoff: Backoff = DEFAULT_BACKOFF
    targets: tuple[Target, ...] = ()
    max_attempts: int | None = None
    routing: Routing = field(default_factory=Routing)


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
    #: How many events the relay's rules have left out.
    left_out: int = 0


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
    #: This process has recorded the block, and has given nothing of it to the sink yet.
    is_fresh: bool = False


def _require_onward(lease: Lease, opened: Opened, begun: dict[int, Begun]) -> Opened:
    """LogBehind when this block was begun before and is not the one that is still open.

    A block that this process has recorded and not given to its sink is a new one for the sink.
    """
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
        if is_same and known.is_fresh:
            return replace(opened, reopened=False)
    begun[lease.partition_id] = Begun(
        lease.lease_epoch, *opened.place, is_fresh=not opened.reopened
    )
    return opened


def given(lease: Lease, begun: dict[int, Begun]) -> None:
    """The block that was begun last is now given to the sink."""
    known = begun.get(lease.partition_id)
    if known is not None and known.is_fresh:
        begun[lease.partition_id] = replace(known, is_fresh=False)


def _put_back(lease: Lease, sent: int, first: int) -> LogBehind:
    return LogBehind(
        f"{lease.topic} partition {lease.partition} was sent up to sequence {sent} under "
        f"lease_epoch {lease.lease_epoch}, and the log has it begin at {first} again",
        hint="a restore lost commits: open the next history by `penstock restore reconcile`",
    )


def _end_within(events: Sequence[Event], last: int, max_bytes: int) -> int:
    """Up to where events have so many bytes of payload: as the database cuts, but at least one."""
    size = 0
    for number, event in enumerate(events):
        size += len(event.payload)
        if size > max_bytes and number:
            return event.sequence - 1
    return last


def exhausted(block: RelayBlock, attempt: int, limit: int | None) -> dict[int, str]:
    """The events whose block has had as many attempts as they may have, and the reason of each.

    The limit is the relay's or that of the event's publisher, whichever is lower.
    """
    if attempt == 1:  # every limit is at least one, so no header has to be decoded
        return {}
    reason = f"not delivered in {attempt - 1} attempts"
    if limit is not None and limit < attempt:
        return {event.sequence: reason for event in block.events}
    own = ((event.sequence, event.headers.get(MAX_ATTEMPTS)) for event in block.events)
    return {sequence: reason for sequence, most in own if type(most) is int and most < attempt}


@dataclass(frozen=True, slots=True)
class Opened:
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


@dataclass(slots=True)
class InHand:
    """A block that was opened, as it is to be sent, and how many of its events are not in it."""

    opened: Opened
    block: RelayBlock | None = None
    dead_letters: int = 0
    left_out: int = 0
    #: What the sink has lost and gets before the block, and the part of it that is sent now.
    parts: list[tuple[int, int, bool]] = field(default_factory=list)
    part: RelayBlock | None = None
    is_part_cold: bool = False
    #: What lets the sink go on behind events that it is not to get. The lane calls it.
    skip: Callable[[], None] | None = None
    #: Where each place of the sink ended when a gap before the block was looked at last, and the
    #: place that gets what it has lost now.
    bridged: dict[str, int] = field(default_factory=dict)
    place: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of the block that could be sent."""
        return self.block is not None and not self.block.events


@dataclass(frozen=True, slots=True)
class BlockWork:
    """What a relay does in the database for one lease.  Each call is fenced, in its transaction.

    A block goes through ``open``, ``read``, the sink and ``commit``. A result that one of them
    returns is the end of this attempt.
    """

    connection: Connection
    member: Membership
    lease: Lease
    rules: Rules
    places: PassedPlaces = field(default_factory=PassedPlaces)

    def open(self, sink: Sink, begun: dict[int, Begun] | None = None) -> InHand | None:
        """The open block of the partition, or its next one.  None when there is nothing to send.

        StaleLease when the lease was lost: its new holder goes on with the same block.
        LogBehind when the log was put back since the last block of ``begun``, which the caller
        keeps. BelowLowSequence when only an archive has the events, and none is known.
        """
        try:
            opened = self._open_hot(sink)
        except BelowLowSequence:
            if not self.rules.targets:
                raise
            pacing = self.rules.routing.pacing
            most = pacing.block_events(sink.max_block_events)
            end = self._cold().end_of_block(most, pacing.block_bytes(sink.max_block_bytes))
            opened = self._open_cold(end)
        if opened is None:
            return None
        if begun is not None:
            opened = _require_onward(self.lease, opened, begun)
        return InHand(opened)

    def read(self, hand: InHand) -> BlockResult | None:
        """Read the block, without the events that are given up now.  A result: it failed."""
        hand.block = None
        try:
            whole = self._read(hand.opened)
            block = self._chosen(whole)
            given_up = misfits(self.connection, self.lease.topic, block, self.rules.routing)
            given_up |= exhausted(block, hand.opened.attempt, self.rules.max_attempts)
        except BaseException as error:  # every failure is counted, or it would repeat unseen
            # Without the database, no failure can be counted.
            if is_interruption(error) or database.is_unavailable(error):
                raise
            return self.failed(hand, error)
        hand.block = block
        hand.left_out = len(whole.events) - len(block.events)
        if given_up:
            self._dead_letter(hand, block, given_up)
        return None

    def refused(self, hand: InHand, error: BaseException) -> bool:
        """Whether the sink refused an event of what it got for ever: it is a dead letter now.

        The block, or the part of what comes before it, is to be sent without it. Refusing an event
        that is not in there would repeat for ever, so it is a failure.
        """
        block = hand.part or hand.block
        if block is None or not isinstance(error, EventRefused):
            return False
        if not any(event.sequence == error.sequence for event in block.events):
            return False
        reasons = {error.sequence: error.reason}
        if hand.part is None:
            self._dead_letter(hand, block, reasons)
        else:
            self._bury(block, reasons, is_cold=hand.is_part_cold)
            hand.dead_letters += 1
            place = block.first_sequence, block.last_sequence, hand.is_part_cold
            hand.parts.insert(0, place)  # read again, without it
        return True

    def bridge(self, hand: InHand, behind: SinkBehind) -> None:
        """Before the block the sink gets what it has lost. Raises ``behind`` when it may not."""
        if hand.bridged.get(behind.place) == behind.after:
            raise behind
        hand.bridged[behind.place] = behind.after
        hand.place = behind.place
        lost = range(behind.after + 1, hand.opened.first_sequence)
        gap = SinkGap.of(self.connection, self.member.subscription, self.lease, lost)
        if gap.is_put and not self.rules.routing.keeps_places:
            # Recorded, or it would be sent after the next loss.
            place = {"first_sequence": gap.first, "last_sequence": gap.last}
            database.call(self.connection, "leave_out", **self._fence(), **place)
        if gap.is_passed:
            hand.skip = behind.skip
        else:
            hand.parts = gap.parts(self.lease, behind)

    def read_part(self, hand: InHand, sink: Sink) -> None:
        """Read the next part of what the sink has lost, of at most as many bytes as a block has."""
        first, last, is_cold = hand.parts.pop(0)
        self.open(sink)  # StaleLease when somebody else has the partition now
        place = replace(hand.opened, is_cold=is_cold, reopened=True)
        part = replace(place, first_sequence=first, last_sequence=first - 1)
        events: list[Event] = []
        size = 0
        while part.last_sequence < last and size < sink.max_block_bytes:
            start = part.last_sequence + 1
            piece = self._read(
                replace(place, first_sequence=start, last_sequence=min(start + _PIECE - 1, last))
            )
            events += piece.events
            size += sum(len(each.payload) for each in piece.events)
            part = replace(part, last_sequence=piece.last_sequence)
        ends = _end_within(events, part.last_sequence, sink.max_block_bytes)
        if ends < last:
            hand.parts.insert(0, (ends + 1, last, is_cold))
        hand.is_part_cold = is_cold
        kept = tuple(each for each in events if each.sequence <= ends)
        whole = self._block(replace(part, last_sequence=ends), kept)
        hand.part = replace(self._chosen(whole), place=hand.place)

    def commit(self, hand: InHand, sink: Sink) -> BlockResult:
        """Move the position, if the block is still recorded.

        Through a pooler the connection outlives a restore of the database. If the log was put back
        while the block was sent, it may now hold other events under the same sequences.
        """
        opened, connection = hand.opened, self.connection
        assert hand.block is not None
        lease, routing = self.lease, self.rules.routing
        ends: Mapping[str, int] = {"": opened.last_sequence}
        with sessions.of_connection(connection).transaction(connection):
            last = opened.last_sequence
            present = self._open_cold(last) if opened.is_cold else self._open_hot(sink)
            if present is None or not present.reopened or present.place != opened.place:
                raise _put_back(self.lease, opened.last_sequence, opened.first_sequence)
            keeps_places = self.places.keeps(lease, routing, opened.first_sequence)
            if keeps_places:
                ends = self.places.note(
                    connection,
                    self.member,
                    lease,
                    routing,
                    hand.block.events,
                    left_out=hand.left_out,
                    up_to=last,
                )
            positions = [(lease, last)]
            stream.commit(connection, self.member, positions, after=[opened.first_sequence - 1])
            if not hand.block.events and not keeps_places:
                database.call(connection, "stay_put", **self._fence())
        self.places.passed(lease, ends)
        sent = len(hand.block.events)
        return BlockResult(sent, last, hand.dead_letters, left_out=hand.left_out)

    def failed(self, hand: InHand, error: BaseException) -> BlockResult:
        """Count the attempt, and say when the next one is due."""
        if not isinstance(error, PenstockError):
            log.error("a block failed with an unexpected error", exc_info=error)
        backoff, opened = self.rules.backoff, hand.opened
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
            self.pause(error)
        told = error.retry_after if isinstance(error, SinkUnavailable) else None
        # Who says "at once" is not asked in a loop.
        wait = float(rows[0][0]) if told is None else max(told, backoff.base_seconds)
        return BlockResult(0, opened.last_sequence, hand.dead_letters, wait, error_text(error))

    def pause(self, asked: SinkPaused) -> None:
        """Pause the subscription, because the sink has asked for it."""
        reason = f"the sink asked for it: {asked.message}"
        subscriptions.pause(self.connection, self.member.subscription, reason[:_REASON])

    def _open_hot(self, sink: Sink) -> Opened | None:
        pacing = self.rules.routing.pacing
        rows = database.call(
            self.connection,
            "open_block",
            **self._fence(),
            max_events=pacing.block_events(sink.max_block_events),
            max_bytes=pacing.block_bytes(sink.max_block_bytes),
        )
        return Opened(*rows[0]) if rows else None

    def _open_cold(self, last_sequence: int) -> Opened:
        rows = database.call(
            self.connection, "open_cold_block", **self._fence(), up_to=last_sequence
        )
        return replace(Opened(*rows[0]), is_cold=True)

    def _cold(self) -> ColdEvents:
        # Imported here: only a relay that reads the archive needs Arrow.
        from ops.relay.cold_blocks import ColdEvents

        return ColdEvents(self.connection, self.lease, self.rules.targets)

    def _read(self, opened: Opened) -> RelayBlock:
        lease = self.lease
        place = opened.first_sequence, opened.last_sequence
        if opened.is_cold:
            events = self._cold().between(self.member.subscription, *place, opened.topic)
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
        return self._block(opened, tuple(events))

    def _block(self, opened: Opened, events: tuple[Event, ...]) -> RelayBlock:
        lease = self.lease
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
            events=events,
        )

    def _chosen(self, whole: RelayBlock) -> RelayBlock:
        """A block without the events that the relay's rules leave out."""
        routing = self.rules.routing
        first = whole.first_sequence
        passed = self.places.of(self.connection, self.member, self.lease, routing, first)
        if not routing.keeps_places:
            return replace(whole, passed=passed)
        events = tuple(filter(routing.takes, whole.events))
        self.places.require_room(self.lease, routing, events)
        return replace(whole, events=events, passed=passed)

    def _dead_letter(self, hand: InHand, block: RelayBlock, reasons: dict[int, str]) -> None:
        """Give events up, and go on with the others."""
        self._bury(block, reasons, is_cold=hand.opened.is_cold)
        hand.dead_letters += len(reasons)
        # A sink that stores event by event may hold the events before a refused one.
        hand.opened = replace(hand.opened, reopened=True)
        left = tuple(each for each in block.events if each.sequence not in reasons)
        hand.block = replace(block, reopened=True, events=left)

    def _bury(self, block: RelayBlock, reasons: dict[int, str], *, is_cold: bool) -> None:
        name = f"{self.lease.topic} partition {self.lease.partition}"
        with sessions.of_connection(self.connection).transaction(self.connection):
            if is_cold:
                brought = [each for each in block.events if each.sequence in reasons]
                bring_letters(self.connection, self.member, self.lease, brought)
            for sequence, reason in reasons.items():
                log.error("%s, sequence %s is a dead letter: %s", name, sequence, reason)
                database.call(
                    self.connection,
                    "dead_letter",
                    **self._fence(),
                    sequence=sequence,
                    reason=reason,
                )

    def _fence(self) -> dict[str, Any]:
        return {
            "subscription": self.member.subscription,
            "consumer": self.member.consumer,
            "partition_id": self.lease.partition_id,
            "lease_epoch": self.lease.lease_epoch,
        }


def resolve_block(
    connection: Connection, relay: str, topic: str, partition: int, *, was_sent: bool
) -> int:
    """Say of an open block whether its sink has got it, when the sink cannot tell any more.

    Returns the new position. The partition's lease is taken from its holder.
    """
    rows = database.call(
        connection,
        "resolve_block",
        subscription=relay,
        topic=topic,
        partition=partition,
        was_sent=was_sent,
    )
    return int(rows[0][0])
