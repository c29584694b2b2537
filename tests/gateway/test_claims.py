"""Claims that the events of one call share."""

from __future__ import annotations

from consumers.gateway.answers import Refused
from consumers.gateway.claims import Claims, calls_of
from consumers.gateway.lanes import Outgoing
from penstock.errors import InvalidArgument
from penstock.records import Message

NO = InvalidArgument("no")


def outgoing(claim: str, number: int, refused: Exception | None = None) -> Outgoing:
    return Outgoing(Message("n/t", b"x"), claim, number, refused)


def test_calls_are_found_in_what_goes_together() -> None:
    """A repetition in the same batch begins anew, and so does a call whose first one is missing."""
    wanted = [
        outgoing(*each) for each in [("a", 0), ("a", 1), ("a", 0), ("a", 1), ("b", 2), ("b", 5)]
    ]
    assert calls_of(wanted) == [[0, 1], [2, 3], [4, 5]]
    assert calls_of([outgoing("g", 0), outgoing("g", 0)]) == [[0], [1]]


def test_a_repetition_has_the_ids_of_the_first_time() -> None:
    wanted = [outgoing("a", number) for number in (0, 2, 9)] + [outgoing("b", 0)]
    first, again = Claims(wanted), Claims(wanted)
    assert [place for place, _ in first.fresh([None, None])] == [0, 1, 2, 3]
    ids = [event_id for _, event_id in first.fresh([None, None])]
    assert {each.version for each in ids} == {7}
    assert len({*ids}) == 4
    assert first.results([None, None]) == ids
    remembered = first.sends[0].event_id
    assert [place for place, _ in again.fresh([remembered, None])] == [3]
    assert again.results([remembered, None])[:3] == ids[:3]


def test_a_repetition_says_what_the_first_time_published() -> None:
    """Whatever the second attempt would refuse, or not refuse any more."""
    first = Claims([outgoing("a", 1, NO), outgoing("a", 2), outgoing("a", 3, NO)])
    ((place, event_id),) = first.fresh([None])
    assert place == 1
    assert first.results([None]) == [NO, event_id, NO]
    again = Claims([outgoing("a", 1), outgoing("a", 2, NO), outgoing("a", 3, NO)])
    remembered = first.sends[0].event_id
    assert again.fresh([remembered]) == []
    before, published, refused = again.results([remembered])
    assert isinstance(before, Refused)
    assert (published, refused) == (event_id, NO)
