"""Claims that the events of one call share."""

from __future__ import annotations

from uuid import UUID

from consumers.gateway.claims import Claims, calls_of, following_ids
from consumers.gateway.lanes import Outgoing
from penstock.records import Message


def outgoing(claim: str, number: int, event_id: UUID | None = None) -> Outgoing:
    return Outgoing(Message("n/t", b"x", event_id=event_id), claim, number)


def test_calls_are_found_in_what_goes_together() -> None:
    """A repetition in the same batch begins anew, and so does a call whose first one is missing."""
    wanted = [
        outgoing(*each) for each in [("a", 0), ("a", 1), ("a", 0), ("a", 1), ("b", 2), ("b", 5)]
    ]
    assert calls_of(wanted) == [[0, 1], [2, 3], [4, 5]]
    assert calls_of([outgoing("g", 0), outgoing("g", 0)]) == [[0], [1]]


def test_a_repetition_has_the_ids_of_the_first_time() -> None:
    ids = following_ids(3)
    assert [each.int - ids[0].int for each in ids] == [0, 1, 2]
    assert {each.version for each in ids} == {7}
    wanted = [outgoing("a", number, ids[number]) for number in (0, 2)] + [outgoing("b", 0)]
    claims, before = Claims(wanted), following_ids(3)
    assert claims.sends[0].event_id == ids[0]
    assert claims.fresh([None, before[0]]) == [(0, ids[0]), (1, ids[2])]
    assert claims.ids([before[0], None])[:2] == [before[0], before[2]]
