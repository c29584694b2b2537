"""Publishes that bring claims: a text that makes a repetition of a call known as one.

The events of one call may share a claim.  Then their ids follow one another, so that the claim has
to remember one id alone.  Some events of a call may be refused, and another process or a later
attempt may refuse others.  So the id that is remembered also says which of them were published.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from consumers.gateway.answers import Refused
from consumers.gateway.lanes import Outgoing
from penstock.publishing.event_ids import uuid7s
from penstock.publishing.recent_sends import Send

#: So many events has a call at most.
MOST_OF_A_CALL = 10
#: Of an id, the lowest bits count the event in its call.  Above them, the remembered id has a bit
#: for each event that is published; the ids of events have none of these.
_NUMBER_BITS = 4
_OWN_BITS = _NUMBER_BITS + MOST_OF_A_CALL


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
        self._wanted = wanted
        self._calls = calls_of(wanted)
        self._new = [
            _remembered(made, [wanted[place] for place in call])
            for made, call in zip(uuid7s(len(self._calls)), self._calls, strict=True)
        ]
        firsts = [wanted[call[0]] for call in self._calls]
        self.sends = [
            Send(each.message.topic, each.claim or "", event_id)
            for each, event_id in zip(firsts, self._new, strict=True)
        ]

    def fresh(self, originals: Sequence[UUID | None]) -> list[tuple[int, UUID]]:
        """The places of events to publish, and their ids: no earlier one has their claim."""
        return [
            (place, event_id)
            for call, new, original in zip(self._calls, self._new, originals, strict=True)
            for place in (call if original is None else ())
            if (event_id := _event_id(new, self._wanted[place].number)) is not None
        ]

    def results(self, originals: Sequence[UUID | None]) -> list[UUID | Exception]:
        """The ids of all: of a repetition, those of the first time.  Else why there is none."""
        found: list[UUID | Exception] = []
        for call, new, original in zip(self._calls, self._new, originals, strict=True):
            for each in (self._wanted[place] for place in call):
                event_id = _event_id(original or new, each.number)
                found.append(event_id or each.refused or _refused_before())
        return found


def _remembered(made: UUID, call: Sequence[Outgoing]) -> UUID:
    """What the claim of a call remembers, out of a new id."""
    published = sum(1 << each.number for each in call if each.refused is None)
    return UUID(int=(made.int >> _OWN_BITS << _OWN_BITS) | published << _NUMBER_BITS)


def _event_id(remembered: UUID, number: int) -> UUID | None:
    """The id of an event of a call; None when it was refused."""
    if not remembered.int >> (_NUMBER_BITS + number) & 1:
        return None
    return UUID(int=(remembered.int >> _OWN_BITS << _OWN_BITS) | number)


def _refused_before() -> Refused:
    told = "an earlier attempt of this call refused this message; send it in another call"
    return Refused(503, told, {"Retry-After": "1"})
