"""Moves of all that a queue has: each ends, and none holds up another."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.errors import InvalidArgument
from penstock.subscriptions import letter_moves, queue
from penstock.subscriptions.letter_moves import LetterMove
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit import queue as kit
from tests.kit.log import drain, topic
from tests.kit.proof import proves

DEAD, OTHER, THIRD = "tests/dead", "tests/other", "tests/third"
OF = {"hospital": DEAD, "ward": OTHER}
OWN_TOPIC: Guard = {
    "postgres": ("start_letter_move", "r.topic_id = target)", "false)"),
    "mysql": ("start_letter_move", "IF own > 0 THEN", "IF FALSE THEN"),
}
ENDS: Guard = {
    "postgres": ("note_letter_move", "m.moved + note_letter_move.moved >= m.expected", "false"),
    "mysql": ("note_letter_move", "COALESCE(left_over <= moved, FALSE)", "FALSE"),
}
ROOM: Guard = {
    "postgres": ("letter_move_room", "LEAST(one.expected - one.moved, 1000)", "1000"),
    "mysql": ("next_letter_move", "LEAST(left_over, IF(", "LEAST(1000, IF("),
}


@pytest.fixture
def own(db: ContractDatabase) -> Any:
    """Two queues, each with a topic of its own, and a topic that nobody reads."""
    found = db.connect()
    for each in (DEAD, OTHER, THIRD):
        topic(found, 1, each)
    for name, of in OF.items():
        queue.subscribe(found, name, [of])
    return found


def _fill(own: Any, name: str, count: int = 1) -> None:
    for _ in range(count):
        penstock.publish(own, OF[name], b"x")
    _sequence(own)


def _sequence(own: Any) -> None:
    drain(own)
    kit.pass_time_of(own, "queue_turns", 1)


def _told(own: Any, name: str) -> LetterMove:
    return letter_moves.moves(own, name)[0]


def test_a_move_into_the_queue_itself_is_refused(own: Any) -> None:
    """It would never end.  Guard: the look at the queue's topics in start_letter_move."""
    with pytest.raises(InvalidArgument, match="itself"):
        letter_moves.start(own, "hospital", to=DEAD)
    assert letter_moves.moves(own, "hospital") == []


@proves("a move of letters", guard="the end")
def test_without_that_it_begins(db: ContractDatabase, own: Any) -> None:
    """Mutant."""
    without(db, OWN_TOPIC)
    assert letter_moves.start(own, "hospital", to=DEAD)


def _to_and_fro(own: Any) -> list[tuple[str, int]]:
    """Each of two moves publishes what the other one takes: after a few sweeps."""
    for name, to in (("hospital", OTHER), ("ward", DEAD)):
        _fill(own, name)
        letter_moves.start(own, name, to=to)
    for _ in range(3):
        _sequence(own)
        letter_moves.work(own, most_batches=2)
    return [(_told(own, name).state, _told(own, name).moved) for name in OF]


@proves("a move of letters")
def test_two_moves_to_and_fro_end(own: Any) -> None:
    """Guard: as many as were there when it began."""
    assert _to_and_fro(own) == [("done", 1), ("done", 1)]


@proves("a move of letters", guard="the end")
def test_without_that_they_run_on(db: ContractDatabase, own: Any) -> None:
    """Mutant."""
    without(db, ENDS)
    without(db, ROOM)
    assert min(moved for _, moved in _to_and_fro(own)) > 1


def _beside_later_ones(own: Any) -> int:
    _fill(own, "hospital")
    letter_moves.start(own, "hospital", to=THIRD)
    _fill(own, "hospital", 2)
    letter_moves.work(own)
    return _told(own, "hospital").moved


def test_what_came_later_is_not_moved(own: Any) -> None:
    """Guard: the room of a move."""
    assert _beside_later_ones(own) == 1


@proves("a move of letters", guard="the end")
def test_without_that_it_is_moved_too(db: ContractDatabase, own: Any) -> None:
    """Mutant."""
    without(db, ROOM)
    assert _beside_later_ones(own) == 3


@proves("a move of letters")
def test_moves_have_turns(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: the next bit of a sweep is that of the next move.  Then each has another turn."""
    monkeypatch.setattr(letter_moves, "_AT_ONCE", 1)
    for name in OF:
        _fill(own, name, 3)
        letter_moves.start(own, name, to=THIRD)
    assert letter_moves.work(own, most_batches=2) == 2
    assert [_told(own, name).moved for name in OF] == [1, 1]
    assert letter_moves.work(own) == 4
    assert {_told(own, name).state for name in OF} == {"done"}
