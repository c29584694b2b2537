"""Publishes that bring claims: a text that makes a repetition of a call known as one.

The events of one call may share a claim.  Then their ids follow one another, so that the claim has
to remember the first one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from consumers.gateway.lanes import Outgoing
from penstock.publishing.event_ids import uuid7, uuid7s
from penstock.publishing.recent_sends import Send

#: So many ids follow one another at most.
MOST_OF_A_CALL = 16


def following_ids(count: int) -> list[UUID]:
    """New event ids, of which each is one more than the one before."""
    first = uuid7().int // MOST_OF_A_CALL * MOST_OF_A_CALL
    return [UUID(int=first + place) for place in range(count)]


def calls_of(wanted: Sequence[Outgoing]) -> list[list[int]]:
    """The places of events that share a claim, call by call; all others are alone."""
    calls: list[list[int]] = []
    for place, each in enumerate(wanted):
        before = wanted[calls[-1][-1]] if calls else each
        if each.number > before.number and each.claim == before.claim:
            calls[-1].append(place)
        else:
            calls.append([place])
    return calls


class Claims:
    """What some events claim, and which of them have to be published."""

    def __init__(self, wanted: Sequence[Outgoing]) -> None:
        given = [each.message.event_id for each in wanted]
        new = iter(uuid7s(given.count(None)))
        self._ids = [each or next(new) for each in given]
        self._numbers = [each.number for each in wanted]
        self._calls = calls_of(wanted)
        firsts = [wanted[call[0]] for call in self._calls]
        self.sends = [
            Send(each.message.topic, each.claim or "", self._ids[call[0]])
            for each, call in zip(firsts, self._calls, strict=True)
        ]

    def fresh(self, originals: Sequence[UUID | None]) -> list[tuple[int, UUID]]:
        """The places of events whose claim no earlier one has, and their ids."""
        return [
            (place, self._ids[place])
            for call, original in zip(self._calls, originals, strict=True)
            for place in (call if original is None else ())
        ]

    def ids(self, originals: Sequence[UUID | None]) -> list[UUID]:
        """The ids of all: of a repetition, those of the first time."""
        found: list[UUID] = []
        for call, original in zip(self._calls, originals, strict=True):
            for place in call:
                behind = self._numbers[place] - self._numbers[call[0]]
                mine = self._ids[place]
                found.append(mine if original is None else UUID(int=original.int + behind))
        return found
