"""What waits to be published, in lanes: plain events, and those with claims.

Plain events of many accounts go together.  Accounts take turns by what they publish, in bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from consumers.gateway.pool import Principal
from consumers.gateway.turns import Turn, Turns
from penstock.publishing.rows import Row
from penstock.records import Message

#: Of a batch.
MOST_EVENTS = 1_000
#: So many are joined at most: a batch of SQS.
_MOST_JOINED = 10
MOST_BYTES = 4_194_304
#: Nor has it events of more accounts than that: each has its right looked up.
MOST_ACCOUNTS = 64


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

    @property
    def size(self) -> int:
        return len(self.row.payload) + 256


@dataclass(slots=True)
class _Line:
    """What waits of one account and key."""

    waiting: deque[Unpublished] = field(default_factory=deque)
    size: int = 0


class PublishLane:
    """What waits with claims, or without them; accounts take turns."""

    def __init__(self, at_a_time: int, most_accounts: int) -> None:
        self.turns = Turns(at_a_time)
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
            turns.append(turn)
            parts.append(self._part(turn, left))
            is_more = left and len(parts) < self.most_accounts
            turn = self.turns.join() if is_more else None
        return turns, parts

    def _part(self, turn: Turn, left: _Left) -> Part:
        lines = self.lines[turn.account]
        principal, line = lines.popitem(last=False)
        batch = left.taken(line)
        if line.waiting:
            lines[principal] = line  # at the end: the other keys of the account come first
            self.turns.wait(turn.account)
        elif not lines:
            del self.lines[turn.account]
        self.turns.charge(turn, sum(each.size for each in batch))
        return principal, batch


@dataclass(slots=True)
class _Left:
    """How much more has room in a batch."""

    events: int = MOST_EVENTS
    size: int = MOST_BYTES

    def __bool__(self) -> bool:
        return self.events > _MOST_JOINED and self.size > 0

    def taken(self, line: _Line) -> list[Unpublished]:
        """The first ones of a line; what is joined is not torn apart."""
        batch: list[Unpublished] = []
        while line.waiting and (line.waiting[0].is_joined or self):
            one = line.waiting.popleft()
            line.size -= one.size
            if not one.published.cancelled():
                self.size -= one.size
                self.events -= 1
                batch.append(one)
        return batch


#: What goes together of one account.
Part = tuple[Principal, list[Unpublished]]
