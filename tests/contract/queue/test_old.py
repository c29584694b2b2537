"""A queue that shall keep events for so long only: the sweep throws older ones away."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument, StaleReceipt
from penstock.subscriptions import queue
from penstock.upkeep.sweeping import sweep
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import merge_six
from tests.kit.log import Connection, drain, put
from tests.kit.proof import proves
from tests.kit.queue import (
    QUEUE,
    TOPIC,
    acknowledge,
    all_older,
    count,
    filled,
    more,
    mutated,
    pass_time,
    position,
    receive,
    rows,
    texts,
)


def _older(own: Connection, seconds: float) -> None:
    """All events are so much older, their copies too."""
    all_older(own, seconds)
    all_older(own, seconds, "queue_waiting")


def _recorded(own: Connection) -> list[tuple[int, int, str]]:
    return rows(
        own,
        "SELECT first_sequence, last_sequence, reason FROM penstock.queue_purges ORDER BY id, 1",
    )


@proves("D5 of events that are too old for a queue")
def test_what_was_not_dealt_ends(own: Connection) -> None:
    """Nothing younger ends, nothing ends without the setting, and it has a record."""
    filled(own, 5)
    _older(own, 100)
    more(own, 2, start=6)
    sweep(own)
    assert queue.statistics(own, QUEUE).size == 7
    queue.configure(own, QUEUE, retention_seconds=60)
    assert queue.describe(own, QUEUE).retention_seconds == 60
    sweep(own)
    assert queue.statistics(own, QUEUE).size == 2
    assert (position(own), _recorded(own)) == (5, [(1, 5, "retention_seconds")])
    assert texts(receive(own, 10)) == ["6", "7"]
    sweep(own)
    assert len(_recorded(own)) == 1


def _dealt(own: Connection) -> list[queue.Delivery]:
    """Of seven events one is in flight, one waits for a retry, one is done; the rest is dealt."""
    filled(own, 7, retention_seconds=60, first_backoff_seconds=500, longest_backoff_seconds=500)
    held = receive(own, 3, visibility_seconds=300)
    queue.reject(own, QUEUE, [held[1].receipt])
    acknowledge(own, held[2:])
    _older(own, 100)
    more(own, 1, start=8)
    sweep(own)
    return held


@proves("D5 of events that are too old for a queue")
def test_what_was_dealt_and_what_waits_end_and_what_is_in_flight_does_not(own: Connection) -> None:
    held = _dealt(own)
    assert queue.statistics(own, QUEUE).size == 2
    assert sorted(_recorded(own)) == [(2, 2, "retention_seconds"), (4, 7, "retention_seconds")]
    assert texts(receive(own, 10)) == ["8"]
    assert count(own, "queue_waiting") == 0
    acknowledge(own, held[:1])
    sweep(own)
    assert position(own) == 7


@proves("D5 of events that are too old for a queue")
def test_a_claim_that_is_over_ends(own: Connection) -> None:
    held = _dealt(own)
    pass_time(own, 400)
    sweep(own)
    assert queue.statistics(own, QUEUE).size == 1
    assert _recorded(own)[-1] == (1, 1, "retention_seconds")
    with pytest.raises(StaleReceipt):
        acknowledge(own, held[:1])
    assert queue.statistics(own, QUEUE).dead == 0


@proves("D5 of events that are too old for a queue")
def test_a_copy_that_is_in_the_window_again_ends(own: Connection) -> None:
    filled(own, 2, retention_seconds=60)
    held = receive(own, 1)
    queue.reject(own, QUEUE, [held[0].receipt], delay_seconds=0)
    acknowledge(own, receive(own, 1))
    _older(own, 100)
    sweep(own)
    assert (count(own, "queue_ranges"), count(own, "queue_waiting")) == (0, 0)
    assert queue.statistics(own, QUEUE).size == 0


@proves("D5 of events that are too old for a queue")
def test_what_waits_behind_its_key_ends_too(own: Connection) -> None:
    """And what is younger comes in its order; a key that somebody has is left alone."""
    filled(own, 0, retention_seconds=60)
    queue.configure(own, QUEUE, order="key")
    for number, key in enumerate("kkllmm", 1):
        put(own, str(number), key=key, name=TOPIC)
    drain(own)
    held = receive(own, 1, visibility_seconds=300)
    (second,) = receive(own, 1)
    queue.reject(own, QUEUE, [second.receipt], delay_seconds=500)
    _older(own, 100)
    for number, key in enumerate("klm", 7):
        put(own, str(number), key=key, name=TOPIC)
    drain(own)
    for _ in range(2):  # what waited behind a copy comes to its turn, and ends with the next sweep
        sweep(own)
    assert sorted(texts(receive(own, 10))) == ["8", "9"]
    acknowledge(own, held)
    sweep(own)
    assert texts(receive(own, 10)) == ["7"]
    assert {each[2] for each in _recorded(own)} == {"retention_seconds"}
    ended = sorted(n for low, high, _ in _recorded(own) for n in range(low, high + 1))
    assert ended == [2, 3, 4, 5, 6]


def _of_a_merged_chunk(db: ContractDatabase, own: Connection) -> list[str]:
    filled(own, 3, retention_seconds=60)
    _older(own, 100)
    more(own, 3, start=4)
    merge_six(db)
    sweep(own)
    return texts(receive(own, 10))


@proves("D5 of events that are too old for a queue")
def test_in_a_merged_chunk_each_event_has_its_age(db: ContractDatabase, own: Connection) -> None:
    assert _of_a_merged_chunk(db, own) == ["4", "5", "6"]


@proves("D5 of events that are too old for a queue", guard="the age of each event")
def test_without_their_ages_a_merged_chunk_has_that_of_its_last_event(
    db: ContractDatabase, own: Connection
) -> None:
    """Mutant: nothing of it ends before all of it is too old."""
    change = {
        "postgres": ("old_until", [("min(a.n) - 1", "min(0)")]),
        "mysql": ("old_until", [("IF is_merged THEN", "IF FALSE THEN")]),
    }
    mutated(db, change)
    assert _of_a_merged_chunk(db, own) == ["1", "2", "3", "4", "5", "6"]


def test_a_wrong_setting_is_refused(own: Connection) -> None:
    filled(own, 0)
    with pytest.raises(InvalidArgument):
        queue.configure(own, QUEUE, retention_seconds=-1)


#: What the sweep would do otherwise, and a test that says so.
_MUTANTS = {
    "nothing is thrown away": (
        ("sweep", [("PERFORM end_old(max_rows);", "")]),
        ("sweep", [("CALL end_old(max_rows);", "")]),
        test_what_was_not_dealt_ends,
    ),
    "without the setting all is": (
        ("end_old", [("q.retention_seconds > 0 AND", "q.retention_seconds >= 0 AND")]),
        (
            "end_old",
            [
                ("q.retention_seconds > 0 AND", "q.retention_seconds >= 0 AND"),
                ("IF seconds > 0 THEN", "IF seconds >= 0 THEN"),
            ],
        ),
        test_what_was_not_dealt_ends,
    ),
    "it leaves no record": (
        (
            "end_old_of",
            [("PERFORM record_old(queue.subscription_id, ended || COALESCE(passed, '{}'));", "")],
        ),
        ("end_old_of", [("CALL record_old(owner_id, ended);", "")]),
        test_what_was_not_dealt_ends,
    ),
    "what is in flight ends": (
        ("drop_below", [("AND r.token IS NULL", "")]),
        ("drop_below", [("AND r.token IS NULL", ""), ("WHERE r.token IS NULL", "WHERE TRUE")]),
        test_what_was_dealt_and_what_waits_end_and_what_is_in_flight_does_not,
    ),
    "claims that are over stay": (
        ("end_old_of", [("PERFORM end_claims(queue, floor_id, clock_timestamp());", "")]),
        ("end_old_of", [("CALL end_claims(owner_id, seen_floor, present, has_more);", "")]),
        test_a_claim_that_is_over_ends,
    ),
    "copies stay": (
        ("end_old_of", [("ended || drop_old_copies(queue, floor_id, before)", "ended")]),
        ("end_old_of", [("CALL drop_old_copies(owner_id, seen_floor, before_time, copies);", "")]),
        test_a_copy_that_is_in_the_window_again_ends,
    ),
}


@proves("D5 of events that are too old for a queue", guard="each guard of the claim")
@pytest.mark.parametrize("mutant", _MUTANTS)
def test_without_a_guard(db: ContractDatabase, own: Connection, mutant: str) -> None:
    """Mutants."""
    postgres, mysql, test = _MUTANTS[mutant]
    mutated(db, {"postgres": postgres, "mysql": mysql})
    with pytest.raises(AssertionError):
        test(own)
