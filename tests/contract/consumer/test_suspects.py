"""After a crash: which events are suspected, and what this must not cost other events."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from typing import Any

import pytest

from penstock import subscriptions
from penstock.consumer.stream.retrying import Retrier
from penstock.records import Event
from penstock.subscriptions import dead_letters
from tests.contract.databases import ContractDatabase
from tests.contract.poison_kit import Poisoned, letters_of, new_consumer
from tests.contract.stream_kit import end_lease
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    SUBSCRIPTION,
    filled,
    more,
    retry,
    running,
    slow_leases,
    stored,
)

#: What follows from the consumer alone.
ONE_ENGINE = pytest.mark.parametrize("db", ["postgres"], indirect=True)


def _dies_with(
    db: ContractDatabase,
    stack: ExitStack,
    died: list[str],
    name: str,
    *,
    killer: int = 2,
    done: set[int] | None = None,
) -> None:
    """Who is given this event of partition 0 comes no further, and loses its leases."""
    open_gate = threading.Event()

    def handle(event: Event) -> None:
        if (event.partition, event.sequence) == (0, killer):
            died.append(name)
            assert open_gate.wait(60)
        elif done is not None:
            done.add(event.sequence)

    consumer = new_consumer(db, handler=handle, consumer_id=name)
    stack.enter_context(running(consumer))
    stack.callback(open_gate.set)
    wait_until(lambda: died[-1:] == [name] or _is_done(db), "it dies or is done", 60)
    end_lease(db, name)


def _is_done(db: ContractDatabase) -> bool:
    with closing(db.connect()) as own:
        return all(each.lag_events == 0 for each in subscriptions.lag(own, SUBSCRIPTION))


def _ends_its_consumers(
    db: ContractDatabase, partitions: int = 1
) -> tuple[list[str], list[tuple[int, int, int]]]:
    """Who died, and the letters: a partition, a sequence and a number of attempts for each."""
    own, died = db.connect(), list[str]()
    filled(own, partitions, events=4)
    slow_leases(own)
    retry(own, max_attempts=2)
    with ExitStack() as stack:
        for name in "abcde":
            _dies_with(db, stack, died, name)
            if _is_done(db):
                break
        found = dead_letters.dead_letters(own, SUBSCRIPTION)
        return list(died), [(each.partition, each.sequence, each.attempts) for each in found]


@proves("S16 in streams")
@pytest.mark.parametrize("partitions", [1, 4])
def test_an_event_that_ends_its_consumer_is_counted(db: ContractDatabase, partitions: int) -> None:
    """S16. Guards: begin_attempt before it is handed out again; others are committed by then.

    The first two die with a batch and with a group: of which event, nobody can know.
    """
    assert _ends_its_consumers(db, partitions) == (["a", "b", "c", "d"], [(0, 2, 2)])


@proves("S16 in streams", guard="begin_attempt before the event is handed out")
def test_without_the_record_it_ends_them_all(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: nobody is careful after a consumer that died."""
    monkeypatch.setattr(Retrier, "prepared", lambda *_: True)
    assert _ends_its_consumers(db) == (["a", "b", "c", "d", "e"], [])


@proves("S16 in streams", guard="what others have done is committed first")
def test_what_is_not_committed_is_counted_too(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: an event of another partition was handled, and goes with the one that kills.

    Each is alone here: what one death counts as a group is not given up after the next.
    """
    monkeypatch.setattr("penstock.consumer.stream.in_flight.SUSPECT_GROUP", 1)
    monkeypatch.setattr(Retrier, "keep_what_is_done", lambda *_: None)
    assert len(_ends_its_consumers(db, 4)[1]) > 1


@proves("S16 in streams", guard="what was counted is committed when it is done")
@ONE_ENGINE
@pytest.mark.parametrize("guarded", [True, False])
def test_what_was_counted_is_committed_before_others_go_on(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Who is ended by an event that nobody suspects is not to leave an innocent one counted.

    Guard: keep_what_is_done after a suspect.  Mutant: only before the next suspect.
    """
    own, died, stood = db.connect(), list[str](), list[int]()
    filled(own, partitions=6, events=0)
    more(own, partitions=1, events=1)
    slow_leases(own)
    if not guarded:
        monkeypatch.setattr(Retrier, "keep_what_is_done", lambda *_: None)

    def handle(event: Event) -> None:
        if event.partition == 0 or stood:
            stood.append(stored(db.connect()))

    with ExitStack() as stack:
        _dies_with(db, stack, died, "a", killer=1)
        more(own, partitions=6, events=3, start=2)
        # One at a time: the others have more to do when the only suspect is done.
        options = {"batch_size": 1, "commit_every_events": 100}
        new_consumer(db, handler=handle, consumer_id="b", **options).run_until_idle()
    assert (stood[0], stood[1]) == (0, 1 if guarded else 0)


def _ends_them_in_a_group(
    db: ContractDatabase, killer: int, most: int
) -> tuple[int, list[tuple[int, str, int]], set[int]]:
    """How many died of an event, the letters, and what was handled of 120 events."""
    own, died, done = db.connect(), list[str](), set[int]()
    filled(own, partitions=1, events=120)
    slow_leases(own)
    retry(own, max_attempts=most)
    with ExitStack() as stack:
        for name in "abcdef":
            _dies_with(db, stack, died, name, killer=killer, done=done)
            if _is_done(db):
                break
        return len(died), letters_of(own), done


@proves("S16 in streams")
@pytest.mark.parametrize(("killer", "most"), [(53, 1), (51, 2)])
def test_a_group_costs_one_death_more(db: ContractDatabase, killer: int, most: int) -> None:
    """S16: inside a group, and where one begins; all others are handled.

    Guards: the record of a group; it counts for none of its events.
    """
    others = set(range(1, 121)) - {killer}
    found = _ends_them_in_a_group(db, killer, most)
    assert found == (most + 2, [(killer, "dead", most)], others)


@proves("S16 in streams", guard="the record of a group")
@ONE_ENGINE
def test_without_the_record_of_a_group_it_ends_them_all(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the next consumer hands out the same group."""
    monkeypatch.setattr(Retrier, "_begin_group", lambda *_: None)
    deaths, letters, _ = _ends_them_in_a_group(db, 53, 1)
    assert (deaths, letters) == (6, [])


@proves("S16 in streams", guard="that it counts for none of its events")
@ONE_ENGINE
def test_a_group_that_is_counted_takes_an_innocent_event_along(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the record of a group is an attempt of its first event."""
    monkeypatch.setattr(dead_letters, "GROUP", 0)
    _, letters, _ = _ends_them_in_a_group(db, 53, 1)
    assert letters[0] == (51, "dead", 1)


def _recovered(
    db: ContractDatabase, poison: Poisoned, events: int = 120, **options: Any
) -> list[int]:
    """After a death a consumer handles all that there is.  Returns at which attempts began."""
    own, begun, first = db.connect(), list[int](), dead_letters.begin_attempt
    filled(own, partitions=1, events=events)
    slow_leases(own)
    retry(own, max_attempts=2)

    def noted(*given: Any, **more: Any) -> int:
        begun.append(given[3])
        return first(*given, **more)

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patched:
        _dies_with(db, stack, [], "a")
        patched.setattr(dead_letters, "begin_attempt", noted)
        # No unit comes back because of the time that it takes.
        options |= {"consumer_id": "b", "commit_every_seconds": 600}
        stack.enter_context(running(new_consumer(db, **options)))
        wait_until(lambda: _is_done(db), "all are done with", 60)
    assert poison.seen[None] == [n for n in range(1, events + 1) if n not in poison.sequences]
    return begun


@proves("S16 after a death")
def test_a_death_costs_a_call_for_a_group(db: ContractDatabase) -> None:
    """And none for each event.  Guard: suspects in order go out in groups."""
    poison = Poisoned()
    assert _recovered(db, poison, batch_handler=poison.by_batch) == [1, 51, 101]
    assert set(poison.tried.values()) == {1}


@proves("S16 after a death", guard="groups only in order")
@ONE_ENGINE
def test_side_by_side_each_of_them_is_counted(db: ContractDatabase) -> None:
    """Nobody could know in which of the groups under way the bad one is."""
    poison = Poisoned()
    found = _recovered(db, poison, events=30, handler=poison.by_event, concurrency=3)
    assert found == list(range(1, 31))


@proves("S16 in streams")
@ONE_ENGINE
@pytest.mark.parametrize(
    ("way", "sequence", "begun", "tried"),
    [
        ("by_event", 51, [1, 51, 51, 52, 102], 2),
        ("by_event", 60, [1, 51, 60, 61, 111], 2),
        # Halves of the group, in the end the event alone, and twice as many again.
        ("by_batch", 60, [1, *[51] * 4, *[57] * 3, *[60] * 4, 61, 62, 64, 68, 76, 92], 9),
    ],
)
def test_what_raises_in_a_group_is_alone_in_it(
    db: ContractDatabase, way: str, sequence: int, begun: list[int], tried: int
) -> None:
    """It is tried as often as allowed, also where its group began; after it groups go on."""
    poison = Poisoned(sequence)
    name = "batch_handler" if way == "by_batch" else "handler"
    found = _recovered(db, poison, **{name: getattr(poison, way)})
    assert found == begun
    assert letters_of(db.connect()) == [(sequence, "dead", 2)]
    assert poison.tried[sequence] == tried


def _handled_behind_a_death(db: ContractDatabase, together: int) -> int:
    """How many suspects of four partitions were handled at once; each waits for so many."""
    own, changed, counts = db.connect(), threading.Condition(), [0, 0]
    filled(own, partitions=4, events=4)
    slow_leases(own)

    def handle(_: Event) -> None:
        with changed:
            counts[0] += 1
            counts[1] = max(counts)
            changed.notify_all()
            assert changed.wait_for(lambda: counts[1] >= together, 30)
            counts[0] -= 1

    with ExitStack() as stack:
        _dies_with(db, stack, [], "a")
        stack.enter_context(
            running(new_consumer(db, handler=handle, consumer_id="b", concurrency=4))
        )
        wait_until(lambda: _is_done(db), "all are handled", 60)
    return counts[1]


def test_of_those_that_may_end_their_consumer_one_is_under_way(db: ContractDatabase) -> None:
    """S16, L7. Guard: Retrier._careful_under_way; else all would be counted for one's death."""
    assert _handled_behind_a_death(db, 1) == 1


@proves("S16 in streams", guard="one suspect at a time")
def test_without_their_turns_they_are_side_by_side(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: two that wait for each other meet."""
    monkeypatch.setattr(Retrier, "_careful_under_way", lambda _: False)
    assert _handled_behind_a_death(db, 2) >= 2
