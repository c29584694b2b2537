"""Parked keys and redrive on every engine: each key in order, each letter once."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import database
from penstock.errors import NotRedriven
from penstock.records import Event, Lease
from penstock.subscriptions import dead_letters, stream
from penstock.subscriptions.stream import Membership
from tests.contract.databases import ContractDatabase
from tests.contract.failure_kit import Handled, Killed, Steps, keyed, put, retry, survivors
from tests.contract.kit import count, open_transaction
from tests.contract.stream_kit import Guard, end_lease, without
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, filled, member_with_lease, stored

ONLY_HEADS: Guard = {
    "postgres": ("poll_redriven", "AND NOT (d.parked AND EXISTS (", "AND NOT (false AND EXISTS ("),
    "mysql": ("poll_redriven", "AND NOT (d.parked AND EXISTS (", "AND NOT (FALSE AND EXISTS ("),
}
KEY_GOES_ON: Guard = {
    "postgres": ("finish_redriven", "AND w.redriven_at IS NULL AND w.key", "AND false AND w.key"),
    "mysql": ("finish_redriven", "WHERE w.redriven_at IS NULL;", "WHERE FALSE;"),
}
BEHIND_A_REDRIVEN: Guard = {
    "postgres": ("store_letters", "CASE WHEN behind AND", "CASE WHEN false AND"),
    "mysql": ("store_letters", "IF(behind AND", "IF(FALSE AND"),
}
ONCE: Guard = {
    "postgres": ("finish_redriven", "IF finished <> COALESCE", "IF false AND 0 <> COALESCE"),
    "mysql": ("finish_redriven", "IF finished <> COALESCE", "IF FALSE AND 0 <> COALESCE"),
}
REDRIVEN_ONCE: Guard = {
    "postgres": ("lock_letters", "AND d.redriven_at IS NULL", ""),
    "mysql": ("lock_letters", "AND d.redriven_at IS NULL\n    FOR UPDATE", "FOR UPDATE"),
}
STILL_REDRIVEN: Guard = {
    "postgres": ("finish_redriven", "AND d.redriven_at IS NOT NULL", ""),
    "mysql": ("finish_redriven", "partition_id AND d.redriven_at IS NOT NULL;", "partition_id;"),
}
COUNTED: Guard = {
    "postgres": ("poll_redriven", "SET attempts = d.attempts + 1", "SET attempts = d.attempts"),
    "mysql": ("poll_redriven", "SET d.attempts = d.attempts + 1", "SET d.attempts = d.attempts"),
}
LEASED: Guard = {
    "postgres": ("find_active", "OR redriven_letters(l.subscription_id, l.partition_id) > 0", ""),
    "mysql": ("survey", "OR redriven_letters(owner_id, n.partition_id) > 0", ""),
}


class Switch:
    """A handler's fault that somebody mends."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def __call__(self, event: Event) -> None:
        """Raise as long as the event's name is among the bad ones."""
        if event.payload.decode() in self.names:
            raise ValueError("no such customer")


def _ids(own: Any) -> dict[str, int]:
    """The letters' ids by what they are called."""
    found = {}
    for each in dead_letters.dead_letters(own, SUBSCRIPTION):
        whole = dead_letters.dead_letter(own, SUBSCRIPTION, each.id)
        assert whole is not None
        found[whole.payload.decode()] = each.id
    return dict(sorted(found.items()))


def _states(own: Any) -> dict[int, str]:
    return {
        each.sequence: each.state for each in reversed(dead_letters.dead_letters(own, SUBSCRIPTION))
    }


def _parked(db: ContractDatabase) -> tuple[Any, Steps, Switch]:
    """Of a and b the first a is bad; the others of its key are parked after it."""
    own = keyed(db, "a1 b1 a2 b2 -1 a3 b3")
    retry(own, max_attempts=2, exhausted="park_key")
    bad = Switch("a1", "-1")
    consumer = Steps(db, own, "one", Handled(bad))
    consumer.run()
    return own, consumer, bad


@proves("parked keys")
def test_later_events_of_the_key_wait_and_others_flow(db: ContractDatabase) -> None:
    """One without a key is a dead letter as ever; nothing is handled a second time."""
    own, consumer, _ = _parked(db)
    assert consumer.handle.done == ["b1", "b2", "b3"]
    assert _states(own) == {1: "parked", 3: "parked", 5: "dead", 6: "parked"}
    assert stored(own) == 7
    by_sequence = {each.sequence: each for each in dead_letters.dead_letters(own, SUBSCRIPTION)}
    assert (by_sequence[1].attempts, by_sequence[1].reason) == (2, "no such customer")
    assert (by_sequence[3].attempts, by_sequence[3].reason[:12]) == (0, "waits behind")


def _redriven(db: ContractDatabase) -> list[str]:
    """New events of the key come before, and while it is redriven, and one fails once more."""
    own, consumer, bad = _parked(db)
    put(own, "a4 b4")
    consumer.run()
    bad.names = {"a2"}
    ids = _ids(own)
    assert dead_letters.redrive(own, SUBSCRIPTION, [ids["a3"]]) == 4
    consumer.redriven()
    put(own, "a5 b5")
    consumer.run()
    bad.names.clear()
    dead_letters.redrive(own, SUBSCRIPTION, [ids["a2"]])
    consumer.redriven()
    put(own, "a6")
    consumer.run()
    put(own, "a7")
    consumer.run()
    return [name for name in consumer.handle.done if name[0] == "a"]


@proves("parked keys")
def test_redrive_replays_a_key_in_order(db: ContractDatabase) -> None:
    """Before any later event of it; what fails again stops the key again."""
    assert _redriven(db) == ["a1", "a2", "a3", "a4", "a5", "a6", "a7"]
    assert _states(db.connect()) == {5: "dead"}


@proves("parked keys", guard="first events only")
def test_without_it_the_key_is_not_replayed_in_order(db: ContractDatabase) -> None:
    """Mutant: all of a key at once, also what was given back with the one that failed."""
    without(db, ONLY_HEADS)
    without(db, STILL_REDRIVEN)
    assert _redriven(db) != ["a1", "a2", "a3", "a4", "a5", "a6", "a7"]


def _overlapping(db: ContractDatabase) -> dict[int, str]:
    """A redrive neither sees what a holder is about to park nor waits for it."""
    own, other = keyed(db, "a1 a2"), db.connect()
    member, lease = member_with_lease(own, "a")
    dead_letters.give_up(own, member, lease, 1, "bad", attempts=1, park=True)
    with open_transaction(db) as parking:
        dead_letters.commit_parking(parking, member, lease, 2, after=1, sequences=[2])
        assert dead_letters.redrive(other, SUBSCRIPTION) == 1
        parking.commit()
    (first,) = dead_letters.poll_redriven(own, member, [lease])
    dead_letters.finish_redriven(own, member, first)
    return _states(own)


@proves("parked keys")
def test_what_is_parked_during_a_redrive_follows(db: ContractDatabase) -> None:
    """Guard: the next of a key is redriven when the one before it is finished."""
    assert _overlapping(db) == {2: "redriven"}


@proves("parked keys", guard="the next follows")
def test_without_it_the_key_stops(db: ContractDatabase) -> None:
    """Mutant."""
    without(db, KEY_GOES_ON)
    assert _overlapping(db) == {2: "parked"}


def _dropped_under_its_holder(db: ContractDatabase) -> list[str]:
    own, consumer, _ = _parked(db)
    dead_letters.drop(own, SUBSCRIPTION, _ids(own).values())
    put(own, "a4 a5")
    consumer.batch()
    consumer.run()
    return consumer.handle.done[3:]


@proves("parked keys")
def test_a_key_that_was_dropped_is_not_parked_for_ever(db: ContractDatabase) -> None:
    """Guard: what is parked with nothing before it is redriven at once; its holder did not know."""
    assert _dropped_under_its_holder(db) == ["a4", "a5"]


@proves("parked keys", guard="nobody is left behind")
def test_without_it_nobody_frees_the_key(db: ContractDatabase) -> None:
    """Mutant."""
    without(db, BEHIND_A_REDRIVEN)
    assert _dropped_under_its_holder(db) == []


def test_a_parked_letter_that_was_given_back_is_not_finished(db: ContractDatabase) -> None:
    """Guard: only redriven letters are; nor does the attempt redrive its key."""
    own, consumer, _ = _parked(db)
    ids = _ids(own)
    dead_letters.redrive(own, SUBSCRIPTION, [ids["a1"]])
    (letter,) = dead_letters.poll_redriven(own, consumer.member, [consumer.lease])
    dead_letters.fail_redriven(own, consumer.member, letter, "worse")
    with pytest.raises(NotRedriven):
        dead_letters.finish_redriven(own, consumer.member, letter)
    assert _states(own) == {1: "parked", 3: "parked", 5: "dead", 6: "parked"}


def _redriven_letter(db: ContractDatabase) -> tuple[Any, Membership, Lease]:
    own = db.connect()
    filled(own, events=1)
    member, lease = member_with_lease(own, "a")
    dead_letters.give_up(own, member, lease, 1, "bad", attempts=2)
    dead_letters.redrive(own, SUBSCRIPTION)
    return own, member, lease


def _handled_twice(db: ContractDatabase) -> int:
    """The answer to a COMMIT is lost, and the letter is handled again.  Returns the effects."""
    own, member, lease = _redriven_letter(db)
    database.execute(own, "CREATE TABLE effects (number INT)")
    (letter,) = dead_letters.poll_redriven(own, member, [lease])
    for _ in range(2):
        with open_transaction(db) as inside:
            database.execute(inside, "INSERT INTO effects VALUES (1)")
            try:
                dead_letters.finish_redriven(inside, member, letter)
            except NotRedriven:
                inside.rollback()
            inside.commit()
    ((effects,),) = database.execute(own, "SELECT COUNT(*) FROM effects")
    assert dead_letters.dead_letters(own, SUBSCRIPTION) == []
    return int(effects)


@proves("S16 of redriven letters")
def test_a_letter_takes_effect_once(db: ContractDatabase) -> None:
    """D6, S24.  Guard: who finishes one finds it."""
    assert _handled_twice(db) == 1


@proves("S16 of redriven letters", guard="who finishes one finds it")
def test_without_it_the_effect_doubles(db: ContractDatabase) -> None:
    """Mutant: a letter that is gone is finished again."""
    without(db, ONCE)
    assert _handled_twice(db) == 2


@proves("S24 of failures")
def test_each_call_twice_is_as_once(db: ContractDatabase) -> None:
    """S24: redrive, fail, drop."""
    own, member, lease = _redriven_letter(db)
    assert dead_letters.redrive(own, SUBSCRIPTION) == 0
    (letter,) = dead_letters.poll_redriven(own, member, [lease])
    assert (letter.attempts, letter.event.payload, letter.parked) == (3, b"1", False)
    for reason in ("worse", "worst"):
        dead_letters.fail_redriven(own, member, letter, reason)
    (dead,) = dead_letters.dead_letters(own, SUBSCRIPTION)
    assert (dead.state, dead.attempts, dead.reason) == ("dead", 3, "worse")
    with pytest.raises(NotRedriven):
        dead_letters.finish_redriven(own, member, letter)
    assert dead_letters.poll_redriven(own, member, [lease]) == []
    assert dead_letters.drop(own, SUBSCRIPTION, [dead.id, dead.id, 0]) == 1
    assert dead_letters.drop(own, SUBSCRIPTION, [dead.id]) == 0
    assert db.run("SELECT sequence, attempts, reason FROM penstock.dropped_letters") == [
        (1, 3, "worse")
    ]
    assert count(db, "dead_letters") == 0


def _crash_loop(db: ContractDatabase) -> int:
    """A redriven letter kills whoever handles it.  Returns how often it was handed out."""
    own = keyed(db, "a1")
    retry(own, max_attempts=3)
    bad = Switch("a1")
    first = Steps(db, own, "first", Handled(bad))
    first.run()
    first.leave()
    dead_letters.redrive(own, SUBSCRIPTION)

    def killed(event: Event) -> None:
        raise Killed

    handle = Handled(killed)
    survivors(db, own, handle, most=6)
    return handle.given["a1"]


@proves("S16 of redriven letters")
@proves("F16", how="by the calls")
def test_a_redriven_letter_that_kills_is_dead_again(db: ContractDatabase) -> None:
    """F16.  Guard: counted at hand-out; it gets as many attempts as a new event."""
    assert _crash_loop(db) == 3
    (dead,) = dead_letters.dead_letters(db.connect(), SUBSCRIPTION)
    assert (dead.state, dead.attempts) == ("dead", 6)
    assert dead.reason == "was handed out as often as it may be, and never finished"


@proves("S16 of redriven letters", guard="the count")
def test_without_the_count_it_kills_for_ever(db: ContractDatabase) -> None:
    """Mutant: the hand-out is not counted."""
    without(db, COUNTED)
    assert _crash_loop(db) == 6


def _attempts_after_redriving_twice(db: ContractDatabase) -> int:
    """Redriven again while it is handed out: that is no new allowance."""
    own, member, lease = _redriven_letter(db)
    retry(own, max_attempts=2)
    for _ in range(4):
        if not dead_letters.poll_redriven(own, member, [lease]):
            break
        if _states(own)[1] == "redriven":
            dead_letters.redrive(own, SUBSCRIPTION, list(_ids(own).values()))
    return dead_letters.dead_letters(own, SUBSCRIPTION)[0].attempts


@proves("S24 of failures")
def test_a_redrive_of_what_is_redriven_changes_nothing(db: ContractDatabase) -> None:
    """S24.  Guard: only letters that are not redriven are."""
    assert _attempts_after_redriving_twice(db) == 4


@proves("S24 of failures", guard="only what is not redriven")
def test_without_it_the_attempts_begin_anew(db: ContractDatabase) -> None:
    """Mutant."""
    without(db, REDRIVEN_ONCE)
    assert _attempts_after_redriving_twice(db) == 6


def _holders_of_a_drained_partition(db: ContractDatabase) -> int:
    own, member, _ = _redriven_letter(db)
    stream.leave(own, member)
    other = stream.join(own, SUBSCRIPTION, "b")
    return len(stream.check_in(own, other))


@proves("a holder for redriven letters")
def test_a_partition_with_redriven_letters_is_leased(db: ContractDatabase) -> None:
    """Guard: they count as backlog; else nobody would hold a partition that is read to its end."""
    assert _holders_of_a_drained_partition(db) == 1


@proves("a holder for redriven letters", guard="they count as backlog")
def test_without_it_nobody_gets_them(db: ContractDatabase) -> None:
    """Mutant."""
    without(db, LEASED)
    assert _holders_of_a_drained_partition(db) == 0


def test_the_log_does_not_wait_for_letters(db: ContractDatabase) -> None:
    """They are copies: what retention takes away is handed out all the same."""
    own, member, lease = _redriven_letter(db)
    assert stored(own) == 1
    db.run("DELETE FROM penstock.events")
    db.run("UPDATE penstock.partitions SET low_sequence = 2")
    (letter,) = dead_letters.poll_redriven(own, member, [lease])
    assert letter.event.payload == b"1"


def test_a_dropped_head_leaves_the_others_parked(db: ContractDatabase) -> None:
    """And a letter that is dropped while it is handled is not finished."""
    own, consumer, _ = _parked(db)
    ids = _ids(own)
    assert dead_letters.drop(own, SUBSCRIPTION, [ids["a1"]]) == 1
    assert consumer.redriven() == 0
    dead_letters.redrive(own, SUBSCRIPTION, [ids["a2"]])
    (letter,) = dead_letters.poll_redriven(own, consumer.member, [consumer.lease])
    dead_letters.drop(own, SUBSCRIPTION, [letter.letter_id])
    with pytest.raises(NotRedriven):
        dead_letters.finish_redriven(own, consumer.member, letter)
    assert _states(own) == {5: "dead", 6: "redriven"}


def test_letters_of_other_holders_are_not_handed_out(db: ContractDatabase) -> None:
    """Also not to the holder of before; a new one gets them, and the count goes on."""
    own, member, lease = _redriven_letter(db)
    assert len(dead_letters.poll_redriven(own, member, [lease])) == 1
    end_lease(db, "a")
    successor, taken = member_with_lease(own, "b")
    assert dead_letters.poll_redriven(own, member, [lease]) == []
    (letter,) = dead_letters.poll_redriven(own, successor, [taken])
    assert letter.attempts == 4


def test_lists_are_filtered_and_paged(db: ContractDatabase) -> None:
    """Newest first; a letter that is shown holds everything."""
    own, _, _ = _parked(db)
    every = dead_letters.dead_letters(own, SUBSCRIPTION)
    assert [each.sequence for each in every] == [6, 5, 3, 1]
    some = dead_letters.dead_letters(own, SUBSCRIPTION, 2, before_id=every[0].id)
    assert some == every[1:3]
    assert [each.key for each in dead_letters.dead_letters(own, SUBSCRIPTION, state="dead")] == [
        None
    ]
    assert len(dead_letters.dead_letters(own, SUBSCRIPTION, key="a")) == 3
    assert dead_letters.dead_letters(own, SUBSCRIPTION, topic="tests/other") == []
    assert dead_letters.dead_letters(own, SUBSCRIPTION, type="other") == []
    assert dead_letters.dead_letter(own, SUBSCRIPTION, 0) is None
    assert dead_letters.dead_letter(own, "other", every[0].id) is None
