"""Failing events on every engine: counted when handed out, then dead or parked in one call.

S16: no event is both dead and pending, none is in neither.  F16: a poison event, also one that
kills its process, ends in the dead letters, and others flow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import (
    BackwardCommit,
    BelowLowSequence,
    BeyondHighWatermark,
    InvalidArgument,
    StaleLease,
    SubscriptionNotFound,
    TooManyParked,
)
from penstock.publishing.publish import publish
from penstock.records import Event, Lease
from penstock.subscriptions import dead_letters, stream
from penstock.subscriptions.stream import Membership
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.failure_kit import Handled, Killed, Steps, keyed, put, retry, survivors
from tests.contract.kit import count, open_transaction
from tests.contract.stream_guards import NO_FENCE, NO_LIMIT
from tests.contract.stream_kit import Guard, end_lease, without
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled, member_with_lease, stored

NOT_COUNTED: Guard = {
    "postgres": ("begin_attempt", "CASE WHEN uncounted < 0 THEN 0 ELSE 1 END", "0"),
    "mysql": ("begin_attempt", "IF(uncounted < 0, 0, 1)", "0"),
}
NOT_PASSED: Guard = {
    "postgres": ("give_up", 'PERFORM "commit"(', "PERFORM jsonb_build_array("),
    "mysql": ("give_up", "CALL move_positions(", "DO JSON_ARRAY("),
}
NOT_STORED: Guard = {
    "postgres": ("give_up", "PERFORM store_letters(", "PERFORM jsonb_build_array("),
    "mysql": ("give_up", "CALL store_letters(", "DO JSON_ARRAY("),
}
NO_DEATHS: Guard = {
    "postgres": ("suspects", "h.change = 'expired'", "h.change = 'seek'"),
    "mysql": ("suspects", "h.`change` = 'expired'", "h.`change` = 'seek'"),
}
ALL_COPIED: Guard = {
    "postgres": ("store_letters", "IF stored <> cardinality(sequences) THEN", "IF false THEN"),
    "mysql": ("store_letters", "IF copied <> JSON_LENGTH(sequences) THEN", "IF FALSE THEN"),
}
TWO_AT_MOST: Guard = {
    "postgres": ("store_letters", "most CONSTANT integer := 10000;", "most CONSTANT integer := 2;"),
    "mysql": ("store_letters", "DECLARE most INT DEFAULT 10000;", "DECLARE most INT DEFAULT 2;"),
}


def kills(name: str) -> Handled:
    """A handler that one event kills."""

    def bad(event: Event) -> None:
        if event.payload.decode() == name:
            raise Killed(name)

    return Handled(bad)


def raises(name: str) -> Handled:
    """A handler that raises at one event."""

    def bad(event: Event) -> None:
        if event.payload.decode() == name:
            raise ValueError(f"no {name}")

    return Handled(bad)


def _places(own: Any, sequences: range) -> dict[int, str]:
    """Where each event is: pending, dead, both or passed."""
    position = stored(own)
    dead = {each.sequence for each in dead_letters.dead_letters(own, SUBSCRIPTION)}
    words = {(True, True): "both", (True, False): "pending", (False, True): "dead"}
    return {each: words.get((each > position, each in dead), "passed") for each in sequences}


def test_a_stream_in_order_leaves_no_row(db: ContractDatabase) -> None:
    """The good case pays nothing, also after a hand-over."""
    own = keyed(db, "a1 b1 a2")
    handle = Handled()
    first = Steps(db, own, "one", handle)
    first.run()
    first.leave()
    put(own, "b2 a3")
    second = Steps(db, own, "two", handle)
    assert dead_letters.suspects(own, second.member, [second.lease]) == {}
    second.run()
    assert handle.done == ["a1", "b1", "a2", "b2", "a3"]
    assert (count(db, "attempts"), count(db, "dead_letters")) == (0, 0)


def _crash_loop(db: ContractDatabase) -> tuple[Handled, Any]:
    own = keyed(db, "a1 b1 a2 b2 a3 b3 a4")
    retry(own, max_attempts=3)
    handle = kills("b2")
    survivors(db, own, handle)
    return handle, own


@proves("S16")
@proves("F16", how="by the calls")
def test_a_crash_loop_ends_in_the_dead_letters(db: ContractDatabase) -> None:
    """F16, S16.  Guard: the attempt is counted before the handler has the event.

    It is handed out once more than allowed: the first crash was of a whole batch.
    """
    handle, own = _crash_loop(db)
    assert handle.given["b2"] == 4
    (letter,) = dead_letters.dead_letters(own, SUBSCRIPTION)
    assert (letter.sequence, letter.key, letter.state, letter.attempts) == (4, "b", "dead", 3)
    assert letter.reason == "its consumer died"
    whole = dead_letters.dead_letter(own, SUBSCRIPTION, letter.id)
    assert whole is not None
    assert (whole.payload, whole.letter) == (b"b2", letter)
    assert sorted(set(handle.done)) == ["a1", "a2", "a3", "a4", "b1", "b3"]
    assert _places(own, range(1, 8)) == {n: "dead" if n == 4 else "passed" for n in range(1, 8)}


@proves("S16", guard="counted at hand-out, deaths known")
@pytest.mark.parametrize("guard", [NOT_COUNTED, NO_DEATHS], ids=["not counted", "no deaths"])
def test_without_it_the_loop_goes_on(db: ContractDatabase, guard: Guard) -> None:
    """Mutants: the count does not rise; nobody knows that a holder died."""
    without(db, guard)
    handle, own = _crash_loop(db)
    assert handle.given["b2"] == 7
    assert dead_letters.dead_letters(own, SUBSCRIPTION) == []
    assert stored(own) <= 3


def test_attempts_and_their_reason_survive_the_consumer(db: ContractDatabase) -> None:
    """And only as long as the event stands after the position, and nobody sought back."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    assert dead_letters.suspects(own, member, [lease]) == {}
    assert dead_letters.begin_attempt(own, member, lease, 1, uncounted=1, reason="no b") == 2
    assert dead_letters.begin_attempt(own, member, lease, 1) == 3
    end_lease(db, "a")
    member, lease = member_with_lease(own, "b")
    (found,) = dead_letters.suspects(own, member, [lease]).values()
    assert (found.died, found.sequence, found.attempts, found.reason) == (True, 1, 3, "no b")
    assert dead_letters.begin_attempt(own, member, lease, 1) == 4
    stream.leave(own, member)
    member, lease = member_with_lease(own, "c")
    (found,) = dead_letters.suspects(own, member, [lease]).values()
    assert (found.sequence, found.attempts) == (1, 4)
    stream.commit(own, member, [(lease, 1)])
    assert dead_letters.suspects(own, member, [lease]) == {}
    assert dead_letters.begin_attempt(own, member, lease, 2) == 1
    assert count(db, "attempts") == 1
    stream.seek(own, SUBSCRIPTION, lease.topic, 0, 2)
    (lease,) = stream.check_in(own, member)
    assert dead_letters.suspects(own, member, [lease]) == {}
    assert dead_letters.begin_attempt(own, member, lease, 2) == 1


@proves("S16 after a death")
def test_a_group_is_on_record_and_counts_for_nobody(db: ContractDatabase) -> None:
    """Neither before a count nor after one; what was not counted before still counts."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    group = dead_letters.GROUP
    assert dead_letters.begin_attempt(own, member, lease, 1, uncounted=group) == 0
    assert dead_letters.begin_attempt(own, member, lease, 1, uncounted=group) == 0
    (found,) = dead_letters.suspects(own, member, [lease]).values()
    assert (found.died, found.sequence, found.attempts) == (False, 1, 0)
    assert dead_letters.begin_attempt(own, member, lease, 1, uncounted=1) == 2
    assert dead_letters.begin_attempt(own, member, lease, 1, uncounted=group) == 2
    assert dead_letters.begin_attempt(own, member, lease, 1) == 3
    stream.commit(own, member, [(lease, 1)])
    assert dead_letters.begin_attempt(own, member, lease, 2, uncounted=group) == 0
    assert dead_letters.begin_attempt(own, member, lease, 2) == 1


def test_after_a_crash_one_is_careful_until_somebody_commits(db: ContractDatabase) -> None:
    """A holder in between that has done nothing does not hide the crash."""
    own = db.connect()
    filled(own)
    member_with_lease(own, "a")
    end_lease(db, "a")
    member, lease = member_with_lease(own, "b")
    assert dead_letters.suspects(own, member, [lease])[lease.partition_id].died
    stream.leave(own, member)
    member, lease = member_with_lease(own, "c")
    assert dead_letters.suspects(own, member, [lease])[lease.partition_id].died
    stream.commit(own, member, [(lease, 1)])
    assert dead_letters.suspects(own, member, [lease]) == {}
    assert dead_letters.suspects(own, member, []) == {}


@proves("F16", how="by the calls")
def test_a_handler_that_raises_is_given_up_in_its_own_process(db: ContractDatabase) -> None:
    """The reason is what it said last; the uncounted first failure counts."""
    own = keyed(db, "a1 b1 a2")
    retry(own, max_attempts=3)
    handle = raises("b1")
    Steps(db, own, "one", handle).run()
    assert handle.given["b1"] == 3
    assert handle.done == ["a1", "a2"]
    (letter,) = dead_letters.dead_letters(own, SUBSCRIPTION)
    assert (letter.attempts, letter.reason) == (3, "no b1")


def _given_up(db: ContractDatabase) -> tuple[Any, Membership, Lease]:
    own = db.connect()
    filled(own, events=3)
    member, lease = member_with_lease(own, "a")
    dead_letters.give_up(own, member, lease, 1, "bad", attempts=1)
    return own, member, lease


@proves("S16")
@proves("S24 of failures")
def test_dead_and_passed_are_one(db: ContractDatabase) -> None:
    """S16.  Guard: the letter and the position are of one transaction."""
    own, member, lease = _given_up(db)
    assert _places(own, range(1, 4)) == {1: "dead", 2: "pending", 3: "pending"}
    with open_transaction(db) as other:
        dead_letters.give_up(other, member, lease, 2, "bad", attempts=1)
        other.rollback()
    assert _places(own, range(1, 4)) == {1: "dead", 2: "pending", 3: "pending"}
    dead_letters.give_up(own, member, lease, 2, "bad", attempts=1)
    with pytest.raises(BackwardCommit):  # S24: the second time changes nothing
        dead_letters.give_up(own, member, lease, 2, "worse", attempts=9)
    newest = dead_letters.dead_letters(own, SUBSCRIPTION)[0]
    assert (newest.sequence, newest.reason, newest.attempts) == (2, "bad", 1)
    assert _places(own, range(1, 4)) == {1: "dead", 2: "dead", 3: "pending"}


@proves("S16", guard="position and copy in one call")
@pytest.mark.parametrize(
    ("guard", "where"), [(NOT_PASSED, "both"), (NOT_STORED, "passed")], ids=["both", "neither"]
)
def test_as_two_they_are_both_or_neither(db: ContractDatabase, guard: Guard, where: str) -> None:
    """Mutants: one of the two is left to another transaction, which never comes."""
    without(db, guard)
    own, _, _ = _given_up(db)
    assert _places(own, range(1, 2)) == {1: where}


@proves("S16")
def test_what_the_log_does_not_hold_is_not_passed_over(db: ContractDatabase) -> None:
    """Guard: as many copies as sequences; else an event would be in neither."""
    own = db.connect()
    filled(own, events=3)
    member, lease = member_with_lease(own, "a")
    db.run("DELETE FROM penstock.events")
    with pytest.raises(BelowLowSequence):
        dead_letters.give_up(own, member, lease, 1, "bad", attempts=1)
    assert _places(own, range(1, 2)) == {1: "pending"}
    without(db, ALL_COPIED)
    dead_letters.give_up(own, member, lease, 1, "bad", attempts=1)
    assert _places(own, range(1, 2)) == {1: "passed"}


def _zombie_calls(own: Any, member: Membership, lease: Lease) -> dict[str, Callable[[], object]]:
    letter = dead_letters.Redriven(1, lease, None, 1, parked=False)  # type: ignore[arg-type]
    return {
        "begin_attempt": lambda: dead_letters.begin_attempt(own, member, lease, 1),
        "give_up": lambda: dead_letters.give_up(own, member, lease, 1, "bad", attempts=1),
        "commit_parking": lambda: dead_letters.commit_parking(
            own, member, lease, 2, after=0, sequences=[2]
        ),
        "finish_redriven": lambda: dead_letters.finish_redriven(own, member, letter),
        "fail_redriven": lambda: dead_letters.fail_redriven(own, member, letter, "bad"),
    }


def test_a_zombie_changes_nothing(db: ContractDatabase) -> None:
    """D7.  Guard: hold_leases in each call that writes; without it a zombie writes too."""
    own = keyed(db, "a1 a2 a3")
    member, lease = member_with_lease(own, "a")
    end_lease(db, "a")
    member_with_lease(own, "b")
    for call in _zombie_calls(own, member, lease).values():
        with pytest.raises(StaleLease):
            call()
    assert dead_letters.poll_redriven(own, member, [lease]) == []
    assert dead_letters.suspects(own, member, [lease]) == {}
    assert (count(db, "attempts"), count(db, "dead_letters"), stored(own)) == (0, 0, 0)
    without(db, NO_FENCE)
    without(db, NO_LIMIT)
    _zombie_calls(own, member, lease)["begin_attempt"]()
    _zombie_calls(own, member, lease)["give_up"]()
    assert (count(db, "dead_letters"), stored(own)) == (1, 1)


def test_bad_input(db: ContractDatabase) -> None:
    """Typed errors before anything is written."""
    own = keyed(db, "a1 a2 a3")
    member, lease = member_with_lease(own, "a")
    for sequence in (0, 2, 4, -1):
        with pytest.raises(BackwardCommit):
            dead_letters.begin_attempt(own, member, lease, sequence)
    with pytest.raises(BackwardCommit):
        dead_letters.give_up(own, member, lease, 2, "bad", attempts=1)
    for position, sequences in ((2, []), (2, [3]), (2, [0]), (2, [1, 1])):
        with pytest.raises(InvalidArgument):
            dead_letters.commit_parking(own, member, lease, position, after=0, sequences=sequences)
    with pytest.raises(BeyondHighWatermark):
        dead_letters.commit_parking(own, member, lease, 4, after=0, sequences=[1])
    with pytest.raises(BackwardCommit):
        dead_letters.commit_parking(own, member, lease, 3, after=1, sequences=[2])
    with pytest.raises(SubscriptionNotFound):
        dead_letters.redrive(own, "nobody")
    with pytest.raises(InvalidArgument):
        dead_letters.redrive(own, SUBSCRIPTION, ["1"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument):
        dead_letters.dead_letters(own, SUBSCRIPTION, state="gone")
    with open_transaction(db) as other:
        with pytest.raises(InvalidArgument, match="transaction"):
            dead_letters.begin_attempt(other, member, lease, 1)
        with pytest.raises(InvalidArgument, match="transaction"):
            dead_letters.poll_redriven(other, member, [lease])
    assert (count(db, "attempts"), count(db, "dead_letters"), stored(own)) == (0, 0, 0)
    dead_letters.give_up(own, member, lease, 1, "a\0b" + "é" * 3_000, attempts=0)
    (letter,) = dead_letters.dead_letters(own, SUBSCRIPTION)
    assert (letter.reason[:3], len(letter.reason), letter.attempts) == ("a\ufffdb", 2_000, 1)


def test_parked_events_are_bounded(db: ContractDatabase) -> None:
    """Guard: their number; beyond it the partition stands still, and nothing is passed."""
    own = keyed(db, "a1 a2 a3 a4")
    without(db, TWO_AT_MOST)
    member, lease = member_with_lease(own, "a")
    assert dead_letters.give_up(own, member, lease, 1, "bad", attempts=1, park=True)
    dead_letters.commit_parking(own, member, lease, 2, after=1, sequences=[2])
    with pytest.raises(TooManyParked):
        dead_letters.commit_parking(own, member, lease, 4, after=2, sequences=[3, 4])
    assert _places(own, range(1, 5)) == {1: "dead", 2: "dead", 3: "pending", 4: "pending"}


def test_an_unsubscribed_one_leaves_nothing(db: ContractDatabase) -> None:
    """Its dead letters and attempts go with it; another one's stay."""
    own, member, lease = _given_up(db)
    dead_letters.begin_attempt(own, member, lease, 2)
    stream.subscribe(own, "other", [lease.topic])
    db.run(
        "INSERT INTO penstock.attempts (subscription_id, partition_id, sequence, history, attempts,"
        " reason) SELECT id, 1, 1, 1, 1, '' FROM penstock.subscriptions WHERE name = 'other'"
    )
    stream.unsubscribe(own, SUBSCRIPTION)
    assert (count(db, "attempts"), count(db, "dead_letters")) == (1, 0)


def test_a_topic_takes_its_letters_along(db: ContractDatabase) -> None:
    """Nobody could list or redrive them any more; those of other topics stay."""
    own, member, lease = _given_up(db)
    dead_letters.begin_attempt(own, member, lease, 2)
    topic(own, 1, "tests/other")
    publish(own, "tests/other", b"x")
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, ["tests/other"])
    (other,) = [each for each in stream.check_in(own, member) if each.topic == "tests/other"]
    dead_letters.give_up(own, member, other, 1, "bad", attempts=1)
    names.delete_topic(own, lease.topic, with_subscriptions=True)
    assert [each.topic for each in dead_letters.dead_letters(own, SUBSCRIPTION)] == ["tests/other"]
    assert (count(db, "attempts"), count(db, "dead_letters")) == (0, 1)
