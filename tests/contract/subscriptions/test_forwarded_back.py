"""Copies of dead letters that are taken back to their subscription, or elsewhere; and who may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

import penstock
from penstock import database
from penstock.errors import (
    InvalidArgument,
    NotRedriven,
    StaleReceipt,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.publishing.publish import publish
from penstock.subscriptions import dead_letters, forwarding, queue, stream
from penstock.subscriptions.queue import Delivery
from penstock.topics import rights
from tests.contract.databases import ContractDatabase
from tests.contract.failure_kit import keyed
from tests.contract.kit import count, open_transaction
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import OPEN, OURS, THEIRS, as_login, tenants_of, three_topics
from tests.kit import queue as kit
from tests.kit.log import drain, read, topic
from tests.kit.proof import proves
from tests.kit.queue import QUEUE, TOPIC
from tests.kit.stream import SUBSCRIPTION, member_with_lease

DEAD, OTHER = "tests/dead", "tests/other"
HOSPITAL = "hospital"

MARKED: Guard = {
    "postgres": (
        "forward_letters",
        "forwarded_as = CASE WHEN j.problem IS NULL THEN j.copy_id END",
        "forwarded_as = NULL",
    ),
    "mysql": ("forward_letter", "d.forwarded_as = copy_id", "d.forwarded_as = NULL"),
}
#: Whoever has named the topic is asked no more.
RIGHTS: Guard = {
    "postgres": ("may_forward", "principal_may(may_forward.who, target, 'publish')", "true"),
    "mysql": ("may_forward", "principal_may(who, target_id, 'publish')", "TRUE"),
}
#: As RIGHTS, of the topic of the event.
CONSUMED: Guard = {
    "postgres": ("forward_problem", "NOT principal_may(", "false AND NOT principal_may("),
    "mysql": ("forward_problem", "WHEN NOT may_consume", "WHEN FALSE"),
}
WALLS: Guard = {
    "postgres": ("set_dead_letters_to", "lock_topic(topic, 'publish')", "lock_topic(topic, 'any')"),
    "mysql": ("set_dead_letters_to", "lock_topic(topic, 'publish',", "lock_topic(topic, 'any',"),
}
LETTER_LOCKED: Guard = {
    "postgres": ("lock_letters", "FOR UPDATE);", ");"),
    "mysql": ("lock_letters", "FOR UPDATE;", ";"),
}


def _read_by_a_queue(own: Any) -> None:
    """The topic of dead letters has a queue, and another one is there to move to."""
    topic(own, 1, DEAD)
    topic(own, 1, OTHER)
    queue.subscribe(own, HOSPITAL, [DEAD])


def _buried(db: ContractDatabase) -> Any:
    """A queue's only event, after two deliveries, is a letter, and its copy lies in DEAD."""
    own = db.connect()
    kit.filled(own, 1, max_deliveries=2, max_failures=9)
    queue.subscribe(own, "bystander", [TOPIC])
    _read_by_a_queue(own)
    forwarding.set_dead_letters_to(own, QUEUE, DEAD)
    _die(own)
    return own


def _die(own: Any) -> None:
    for _ in range(2):
        queue.reject(own, QUEUE, kit.receipts(kit.receive(own)), delay_seconds=0, reason="no")


def _copies(own: Any, max_events: int = 10) -> list[Delivery]:
    drain(own)
    kit.pass_time(own, 1)
    return queue.receive(own, HOSPITAL, max_events)


def _move(own: Any, copies: list[Delivery], **more: Any) -> int:
    return forwarding.move(own, HOSPITAL, kit.receipts(copies), **more)


@proves("dead letters that go on")
def test_a_letter_goes_back_to_its_subscription_alone(db: ContractDatabase) -> None:
    """No event is published; the copy is acknowledged; the event is handed out as new."""
    own = _buried(db)
    assert _move(own, _copies(own)) == 1
    assert queue.statistics(own, HOSPITAL).size == 0
    assert dead_letters.dead_letters(own, QUEUE) == []
    (again,) = kit.receive(own)
    assert (again.event.payload, again.deliveries) == (b"1", 1)
    assert queue.statistics(own, "bystander").size == 1
    assert len(read(own, name=TOPIC)) == 1
    queue.acknowledge(own, QUEUE, [again.receipt])
    assert queue.statistics(own, QUEUE) == queue.QueueStatistics(0, 0, 0, 0, 0)


def test_deliveries_go_on_counting_where_asked(db: ContractDatabase) -> None:
    """They are carried in the letter, and count for no limit: it gets its deliveries anew."""
    own = _buried(db)
    _move(own, _copies(own), keep_deliveries=True)
    seen = []
    for _ in range(2):
        (again,) = kit.receive(own)
        seen.append(again.deliveries)
        queue.reject(own, QUEUE, [again.receipt], delay_seconds=0)
    assert seen == [3, 4]
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    assert letter.attempts == 4
    (copy,) = _copies(own)
    assert copy.event.headers["penstock-letter-deliveries"] == 4
    assert copy.event.headers["penstock-letter-attempts"] == 2
    assert dead_letters.redrive(own, QUEUE, keep_deliveries=True) == 1
    (peeked,) = queue.peek(own, QUEUE)
    assert peeked.deliveries == 4


def test_a_letter_of_a_stream_goes_to_who_holds_its_partition(db: ContractDatabase) -> None:
    """As redrive does: of a parked key all of it, in order."""
    own = keyed(db, "a1 a2")
    _read_by_a_queue(own)
    forwarding.set_dead_letters_to(own, SUBSCRIPTION, DEAD)
    member, lease = member_with_lease(own, "a")
    dead_letters.give_up(own, member, lease, 1, "no", attempts=1, park=True)
    dead_letters.commit_parking(own, member, lease, 2, after=1, sequences=[2])
    assert _move(own, _copies(own)) == 1
    (first,) = dead_letters.poll_redriven(own, member, [lease])
    dead_letters.fail_redriven(own, member, first, "again")
    (copy,) = _copies(own)
    assert copy.event.headers["penstock-letter-reason"] == "again"
    _move(own, [copy])
    for name in (b"a1", b"a2"):
        (letter,) = dead_letters.poll_redriven(own, member, [lease])
        assert letter.event.payload == name
        dead_letters.finish_redriven(own, member, letter)


@proves("dead letters that go on")
def test_only_a_move_elsewhere_publishes(db: ContractDatabase) -> None:
    """The letter stays and says where the copy is now, from where it can still go back."""
    own = _buried(db)
    with pytest.raises(TopicNotFound):
        _move(own, _copies(own), to="tests/none")
    kit.pass_time(own, 100)
    assert _move(own, _copies(own), to=OTHER) == 1
    drain(own)
    (moved,) = read(own, name=OTHER)
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    assert (letter.forwarded_to, letter.forwarded_as) == (OTHER, moved.event_id)
    assert moved.payload == b"1"
    queue.subscribe(own, "second", [OTHER])
    (copy,) = queue.receive(own, "second")
    assert forwarding.move(own, "second", [copy.receipt], to=TOPIC) == 1
    assert len(kit.receive(own)) == 1
    assert len(read(own, name=TOPIC)) == 1


def test_what_cannot_go_back_is_refused_and_keeps_its_receipt(db: ContractDatabase) -> None:
    """An event that is no copy, a copy whose letter was dropped, a receipt that is not good."""
    own = _buried(db)
    publish(own, DEAD, b"not a letter")
    good, alone = sorted(_copies(own), key=lambda each: each.event.payload)
    with pytest.raises(NotRedriven):
        _move(own, [good, alone])
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    dead_letters.drop(own, QUEUE, [letter.id])
    with pytest.raises(NotRedriven):
        _move(own, [good])
    assert _move(own, [good, alone], to=OTHER) == 2
    with pytest.raises(StaleReceipt):
        _move(own, [good])
    drain(own)
    assert len(read(own, name=OTHER)) == 2


def test_a_letter_that_was_redriven_only_loses_its_copy(db: ContractDatabase) -> None:
    """By its number meanwhile: nothing is doubled, and nobody is left with a stale copy."""
    own = _buried(db)
    copies = _copies(own)
    assert dead_letters.redrive(own, QUEUE) == 1
    assert _move(own, copies) == 1
    assert len(kit.receive(own, 10)) == 1
    assert queue.statistics(own, HOSPITAL).size == 0


def _redriven_at_once(db: ContractDatabase) -> int:
    """A redrive is open while a move wants the same letter.  Returns how often the event comes."""
    own = _buried(db)
    copies = _copies(own)
    with ThreadPoolExecutor(1) as pool:
        with open_transaction(db) as first:
            assert dead_letters.redrive(first, QUEUE) == 1
            mine = db.connect()
            second = pool.submit(_move, mine, copies)
            db.wait_until_blocked(mine)
            first.commit()
        assert second.result() == 1
        mine.close()
    return len(kit.receive(own, 10))


@proves("dead letters that go on")
def test_a_redrive_against_a_move_is_one_redrive(db: ContractDatabase) -> None:
    """The move waits, then finds the letter with its subscription, and ends the copy."""
    assert _redriven_at_once(db) == 1


def _dropped_at_once(db: ContractDatabase) -> bool:
    """A drop is open while a move wants the letter.  Returns whether the copy is still there."""
    own = _buried(db)
    copies = _copies(own)
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    with ThreadPoolExecutor(1) as pool:
        with open_transaction(db) as first:
            dead_letters.drop(first, QUEUE, [letter.id])
            mine = db.connect()
            second = pool.submit(_move, mine, copies)
            db.wait_until_blocked(mine)
            first.commit()
        refused = isinstance(second.exception(), NotRedriven)
        mine.close()
    return refused and queue.statistics(own, HOSPITAL).size == 1


def test_a_drop_against_a_move_keeps_the_copy(db: ContractDatabase) -> None:
    """Guard: the letter is locked before it is looked at."""
    assert _dropped_at_once(db)


@proves("dead letters that go on", guard="the lock on the letter")
def test_without_the_lock_the_event_is_nowhere(db: ContractDatabase) -> None:
    """Mutant: the copy is acknowledged for a letter that is gone."""
    without(db, LETTER_LOCKED)
    assert not _dropped_at_once(db)


@proves("dead letters that go on", guard="the mark")
def test_without_the_mark_no_letter_goes_back(db: ContractDatabase) -> None:
    """Mutant: a letter that does not know its copy."""
    own = db.connect()
    without(db, MARKED)
    own.close()
    own = _buried(db)
    assert _move(own, _copies(own)) == 1
    assert kit.receive(own) == []


def _theirs(db: ContractDatabase, tenants: Any, *, is_set: bool = True) -> tuple[Any, str]:
    """A login that consumes OURS and publishes to THEIRS names that for its letters."""
    three_topics(tenants)
    login = tenants.login("consumer publisher")
    rights.grant_namespace(tenants.owner, "ours", login, "consume")
    rights.grant_namespace(tenants.owner, "theirs", login, "publish")
    if is_set:
        with as_login(tenants, login) as own:
            assert forwarding.set_dead_letters_to(own, "ours", THEIRS)
    return tenants.owner, login


def _bury(owner: Any) -> dead_letters.DeadLetter:
    member = stream.join(owner, "ours", "a")
    (lease,) = stream.check_in(owner, member)
    dead_letters.give_up(owner, member, lease, 1, "no", attempts=1)
    (letter,) = dead_letters.dead_letters(owner, "ours")
    return letter


def test_rights_are_checked_and_shown(db: ContractDatabase) -> None:
    """Consume on the source, publish on the topic, and the role that may publish at all."""
    with tenants_of(db) as tenants:
        owner, login = _theirs(db, tenants)
        rights.grant_namespace(owner, "theirs", tenants.login(), "consume")
        (shown,) = [each for each in rights.grants_of(owner) if each.topic]
        assert (shown.namespace, shown.login, shown.verb) == ("theirs", login, "publish")
        assert (shown.topic, shown.subscription) == (THEIRS, "ours")
        with as_login(tenants, login) as own:
            rights.revoke_namespace(owner, "theirs", login, "publish")
            assert forwarding.set_dead_letters_to(own, "ours", None)
            with pytest.raises(TopicNotFound):
                forwarding.set_dead_letters_to(own, "ours", THEIRS)
            rights.grant_namespace(owner, "theirs", login, "consume")
            with pytest.raises(TopicNotFound):
                forwarding.set_dead_letters_to(own, "ours", THEIRS)
            rights.revoke_namespace(owner, "ours", login, "consume", unrestrict=True)
            rights.grant_namespace(owner, "ours", tenants.login(), "consume")
            with pytest.raises(SubscriptionNotFound):
                forwarding.set_dead_letters_to(own, "ours", OPEN)
        with (
            as_login(tenants, tenants.login("consumer")) as own,
            pytest.raises(InvalidArgument, match="may not publish"),
        ):
            forwarding.set_dead_letters_to(own, "open", OURS)


@proves("dead letters that go on", guard="rights when it is named")
def test_without_the_check_a_wall_has_a_door(db: ContractDatabase) -> None:
    """Mutant: a topic that the login may only read takes its letters."""
    with tenants_of(db) as tenants:
        owner, login = _theirs(db, tenants, is_set=False)
        rights.revoke_namespace(owner, "theirs", login, "publish", unrestrict=True)
        rights.grant_namespace(owner, "theirs", login, "read")
        without(db, WALLS)
        tenants.install()
        with as_login(tenants, login) as own:
            assert forwarding.set_dead_letters_to(own, "ours", THEIRS)


def _forbidden(db: ContractDatabase, *, mutant: bool = False) -> dead_letters.DeadLetter:
    """The right to publish is taken back before the burial."""
    with tenants_of(db) as tenants:
        owner, login = _theirs(db, tenants)
        rights.grant_namespace(owner, "theirs", tenants.login(), "consume")
        rights.revoke_namespace(owner, "theirs", login, "publish")
        if mutant:
            without(db, RIGHTS)
        letter = _bury(owner)
        if not mutant:
            penstock.delete_topic(owner, THEIRS, with_subscriptions=True)
        return letter


def test_a_right_that_was_taken_back_ends_it(db: ContractDatabase) -> None:
    """Guard: the right of who has named the topic, at each burial; its owner may delete it then."""
    assert "may no longer publish" in str(_forbidden(db).not_forwarded)


@proves("dead letters that go on", guard="and at each burial")
def test_without_that_it_goes_on(db: ContractDatabase) -> None:
    """Mutant."""
    assert _forbidden(db, mutant=True).forwarded_to == THEIRS


def _unread(db: ContractDatabase, *, mutant: bool = False) -> dead_letters.DeadLetter:
    """The right to consume is taken back before the burial."""
    with tenants_of(db) as tenants:
        owner, login = _theirs(db, tenants)
        rights.grant_namespace(owner, "ours", tenants.login(), "consume")
        rights.revoke_namespace(owner, "ours", login, "consume")
        if mutant:
            without(db, CONSUMED)
        return _bury(owner)


def test_who_may_not_consume_any_more_gets_no_letters(db: ContractDatabase) -> None:
    """Guard: the right of who has named the topic, to the event that died."""
    assert "may not consume" in str(_unread(db).not_forwarded)


@proves("dead letters that go on", guard="and at each burial")
def test_without_that_its_letters_leave_the_walls(db: ContractDatabase) -> None:
    """Mutant."""
    assert _unread(db, mutant=True).forwarded_to == THEIRS


def test_a_login_that_is_gone_forwards_nothing(db: ContractDatabase) -> None:
    """It was dropped, or has another name now."""
    with tenants_of(db) as tenants:
        owner, _ = _theirs(db, tenants)
        db.run("UPDATE penstock.subscriptions SET dead_letters_by = 'nobody'")
        assert "may no longer publish" in str(_bury(owner).not_forwarded)


def test_a_move_takes_nothing_from_whom_the_login_may_not_consume(db: ContractDatabase) -> None:
    """The owner of the topic reads copies; the letter is another tenant's."""
    with tenants_of(db) as tenants:
        owner, _ = _theirs(db, tenants)
        _bury(owner)
        reader = tenants.login("consumer")
        rights.grant_namespace(owner, "theirs", reader, "consume")
        queue.subscribe(owner, HOSPITAL, [THEIRS])
        copies = _copies(owner)
        copies = [each for each in copies if "penstock-letter-hops" in each.event.headers]
        with as_login(tenants, reader) as own, pytest.raises(NotRedriven):
            forwarding.move(own, HOSPITAL, kit.receipts(copies))
        assert len(copies) == 1
        assert forwarding.move(owner, HOSPITAL, kit.receipts(copies)) == 1


def test_who_does_not_name_a_topic_pays_nothing(db: ContractDatabase) -> None:
    """No row is written, and the calls that consumers make are the same."""
    own = keyed(db, "a1")
    member, lease = member_with_lease(own, "a")
    dead_letters.give_up(own, member, lease, 1, "no", attempts=1)
    assert count(db, "letter_copies") == 0
    with closing(db.connect()) as other:
        assert database.execute(other, "SELECT COUNT(*) FROM penstock.events") == [(1,)]
