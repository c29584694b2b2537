"""What waits to be published, in lanes: plain events, and those with claims.

Plain events of many accounts go together.  Accounts take turns by what they publish, in bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from consumers.gateway.pool import Principal
from consumers.gateway.turns import Turn, Turns
from penstock.publishing.rows import Row
from penstock.records import Message

#: Of a batch.
MOST_EVENTS = 1_000
MOST_BYTES = 4_194_304
#: Nor has it events of more accounts than that.
MOST_ACCOUNTS = 64
#: A line of a batch is a topic of an account by a key.  Each is looked up, and its right.
MOST_LINES = 128
_MOST_LINE_BYTES = 65_536
#: Of an event, and of a line: what is sent with it beside its texts.
_EVENT_BYTES = 256
_LINE_BYTES = 128


class Outgoing(NamedTuple):
    """An event to publish, and the text that makes a repetition of it known as one.

    Events of one call may share the text.  They go together, and ``number`` counts them from 0.
    ``refused`` says why an event is not to be published.  It still comes with its call, because an
    earlier attempt may have published it.
    """

    message: Message
    claim: str | None = None
    number: int = 0
    refused: Exception | None = None


@dataclass(slots=True, eq=False)
class Unpublished:
    outgoing: Outgoing
    row: Row
    published: asyncio.Future[UUID]
    #: It goes in the batch of the one before.
    is_joined: bool = False
    #: It was left out of a batch of several accounts.
    is_left_out: bool = False
    size: int = field(init=False)

    def __post_init__(self) -> None:
        made = self.row
        texts = (made.key, made.headers, made.type, made.content_type)
        own = sum(len(each.encode()) for each in texts if each)
        self.size = len(made.payload) + own + _EVENT_BYTES


@dataclass(slots=True)
class _Line:
    """What waits of one account and key."""

    waiting: deque[Unpublished] = field(default_factory=deque)
    size: int = 0


class PublishLane:
    """What waits to be sent in one way; accounts take turns."""

    def __init__(self, at_a_time: int, most_accounts: int, *, by_time: bool = False) -> None:
        self.turns = Turns(at_a_time)
        #: Turns cost what they take.  Whoever sends charges it.
        self.by_time = by_time
        #: So many accounts share a transaction at most.
        self.most_accounts = most_accounts
        #: Of each account, what waits by the key that was shown.
        self.lines: dict[str, OrderedDict[Principal, _Line]] = {}

    def size_of(self, account_id: str) -> int:
        present = self.lines.get(account_id)
        return sum(each.size for each in present.values()) if present else 0

    def wait(self, principal: Principal, given: list[Unpublished]) -> None:
        lines = self.lines.setdefault(principal.account_id, OrderedDict())
        if principal not in lines:
            lines[principal] = _Line()
            self.turns.wait(principal.account_id)
        line = lines[principal]
        line.waiting.extend(given)
        line.size += sum(each.size for each in given)

    def next_group(self) -> tuple[list[Turn], list[Part]]:
        """What goes together next, of accounts in turn; nothing when no place is free."""
        turns: list[Turn] = []
        parts: list[Part] = []
        left = _Left()
        turn = self.turns.begin()
        while turn is not None:
            part = self._part(turn, left)
            if part[1] or not turns:
                turns.append(turn)
                parts.append(part)
            else:
                self.turns.end(turn)  # what it has next is for the next group
            is_more = left and len(parts) < self.most_accounts
            turn = self.turns.join() if is_more else None
        return turns, parts

    def _part(self, turn: Turn, left: _Left) -> Part:
        lines = self.lines[turn.account]
        principal, line = lines.popitem(last=False)
        batch = left.taken(principal, line)
        if line.waiting:
            lines[principal] = line  # at the end: the other keys of the account come first
            self.turns.wait(turn.account)
        elif not lines:
            del self.lines[turn.account]
        if not self.by_time:
            self.turns.charge(turn, sum(each.size for each in batch))
        return principal, batch


@dataclass(slots=True)
class _Left:
    """How much more has room in a batch."""

    events: int = MOST_EVENTS
    size: int = MOST_BYTES
    line_bytes: int = _MOST_LINE_BYTES
    lines: set[tuple[Principal, str]] = field(default_factory=set)
    is_full: bool = False

    def __bool__(self) -> bool:
        return not self.is_full

    def taken(self, principal: Principal, line: _Line) -> list[Unpublished]:
        """The first ones of a line that have room; what is joined is not torn apart.

        What has no room in any batch goes by itself.
        """
        batch: list[Unpublished] = []
        while line.waiting and self:
            call = _first_call(line.waiting)
            wanted = [each for each in call if not each.published.cancelled()]
            if self._has_room(principal, wanted):
                batch += wanted
            else:
                self.is_full = True
                if self.lines:
                    break
                batch += wanted
            for each in call:
                line.waiting.popleft()
                line.size -= each.size
        return batch

    def _has_room(self, principal: Principal, wanted: list[Unpublished]) -> bool:
        """Takes the room, if there is as much."""
        new = {(principal, each.row.topic) for each in wanted} - self.lines
        events = self.events - len(wanted)
        size = self.size - sum(each.size for each in wanted)
        line_bytes = self.line_bytes - sum(len(topic.encode()) + _LINE_BYTES for _, topic in new)
        if min(events, size, line_bytes, MOST_LINES - len(self.lines) - len(new)) < 0:
            return False
        self.events, self.size, self.line_bytes = events, size, line_bytes
        self.lines |= new
        self.is_full = not (events and size)
        return True


def _first_call(waiting: deque[Unpublished]) -> list[Unpublished]:
    """The first one and those that are joined to it."""
    call = [waiting[0]]
    for each in islice(waiting, 1, None):
        if not each.is_joined:
            break
        call.append(each)
    return call


#: What goes together of one account.
Part = tuple[Principal, list[Unpublished]]
