"""Consumers that name topics get only their partitions, and every partition has a holder."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from penstock import subscriptions
from penstock.errors import (
    ControlCharacter,
    EmptySegment,
    InvalidArgument,
    InvalidName,
    PenstockError,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.kit import count
from tests.contract.stream_kit import (
    Guard,
    acquired,
    check_in_rounds,
    end_lease,
    pass_time,
    without,
)
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import SUBSCRIPTION, more

A, B, C = "tests/a", "tests/b", "tests/c"

EVERYBODY_TAKES_ALL: Guard = {
    "postgres": (
        "acquire", "AND (topic_ids IS NULL OR l.partition_id >> 16 = ANY (topic_ids))", ""
    ),
    "mysql": ("read_board", "JSON_CONTAINS(topic_ids, CAST(l.partition_id >> 16 AS CHAR))", "TRUE"),
}  # fmt: skip
SHARED_BY_ALL: Guard = {
    # As if who has not named the topic wanted a part of it.
    "postgres": ("quotas", "may_hold(c.subscription_id, c.id, topic_ids[1])", "true"),
    "mysql": ("find_standings", "may_hold(owner_id, c.id, of_topic)", "TRUE"),
}


def _busy(own: Any, partitions: int = 4) -> None:
    for name in (A, B, C):
        topic(own, partitions, name)
        publish_batch(own, [Message(name, b"x", partition=n) for n in range(partitions)])
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, [A, B, C])


def _held(own: Any) -> dict[str, list[str]]:
    """The topics of the partitions that each consumer holds."""
    found: dict[str, list[str]] = {}
    for cursor in subscriptions.leased_cursors(own):
        found.setdefault(cursor.holder, []).append(cursor.topic)
    return found


def _joined(own: Any) -> list[Membership]:
    return [
        stream.join(own, SUBSCRIPTION, "any"),
        stream.join(own, SUBSCRIPTION, "only a", topics=[A]),
        stream.join(own, SUBSCRIPTION, "b or c", topics=(C, B, C)),
    ]


@proves("a list of topics")
def test_all_is_held_and_nobody_holds_what_he_did_not_ask_for(db: ContractDatabase) -> None:
    """Guard: groups of topics that the same consumers take; then nothing moves."""
    own = db.connect()
    _busy(own)
    members = _joined(own)
    check_in_rounds(own, members)
    held = _held(own)
    assert subscriptions.unleased_cursors(own) == []
    assert held["only a"] == [A, A]
    assert set(held["b or c"]) <= {B, C}
    assert (len(held["any"]), len(held["b or c"])) == (6, 4)
    before = acquired(db)
    check_in_rounds(own, members, 3)
    assert (acquired(db), _held(own)) == (before, held)
    assert {each.consumer: each.topics for each in subscriptions.members(own)} == {
        "any": None, "only a": (A,), "b or c": (B, C),
    }  # fmt: skip


@proves("a list of topics")
def test_what_a_leaver_held_goes_to_who_may_hold_it(db: ContractDatabase) -> None:
    """And what nobody asks for is left until somebody does."""
    own = db.connect()
    _busy(own)
    members = _joined(own)
    check_in_rounds(own, members)
    stream.leave(own, members.pop(0))
    check_in_rounds(own, members)
    assert {consumer: len(held) for consumer, held in _held(own).items()} == {
        "only a": 4, "b or c": 8,
    }  # fmt: skip
    stream.leave(own, members.pop())
    check_in_rounds(own, members)
    assert _held(own) == {"only a": [A] * 4}
    assert {cursor.topic for cursor in subscriptions.unleased_cursors(own)} == {B, C}
    end_lease(db, "only a")
    again = stream.join(own, SUBSCRIPTION, "only a", topics=[B])
    check_in_rounds(own, [again])
    assert _held(own) == {"only a": [B] * 4}
    stream.leave(own, again)
    assert count(db, "consumer_topics") == 0


@proves("a list of topics")
def test_whatever_they_ask_for_is_shared_out(db: ContractDatabase) -> None:
    """Seeded lists, weights, joins and leaves: all that somebody takes is held by who takes it."""
    chance = random.Random(5)
    own = db.connect()
    _busy(own)
    lists: dict[str, list[str] | None] = {}
    members: dict[str, Membership] = {}
    for step in range(4):
        for number in range(2):
            name = f"c{step}{number}"
            lists[name] = chance.choice([None, chance.sample([A, B, C], chance.randint(1, 2))])
            weight = chance.choice([0.5, 1, 3])
            members[name] = stream.join(own, SUBSCRIPTION, name, weight, topics=lists[name])
        for name in chance.sample(sorted(members), len(members) // 3):
            stream.leave(own, members.pop(name))
        check_in_rounds(own, list(members.values()), 3)
        asked = {name: set(lists[name] or (A, B, C)) for name in members}
        assert all(set(held) <= asked[name] for name, held in _held(own).items()), step
        free = {cursor.topic for cursor in subscriptions.unleased_cursors(own)}
        assert free == {A, B, C}.difference(*asked.values()), step


def test_a_topic_that_is_added_is_not_in_the_list(db: ContractDatabase) -> None:
    """Partitions that a resize adds are."""
    own = db.connect()
    topic(own, 1, A)
    stream.subscribe(own, SUBSCRIPTION, [A])
    member = stream.join(own, SUBSCRIPTION, "only a", topics=[A])
    topic(own, 1, B)
    stream.subscribe(own, SUBSCRIPTION, [B])
    names.resize_topic(own, A, 2)
    more(own, partitions=2, name=A)
    more(own, name=B)
    check_in_rounds(own, [member])
    assert _held(own) == {"only a": [A, A]}


@proves("a list of topics", guard="topics in the acquisition, and in the quotas")
@pytest.mark.parametrize("guard", [EVERYBODY_TAKES_ALL, SHARED_BY_ALL], ids=["taken", "shared"])
def test_without_the_guards_it_is_not_so(db: ContractDatabase, guard: Guard) -> None:
    """Mutants: a consumer gets what it did not ask for, or its part of that is held by nobody.

    Which of the free partitions a consumer takes is random, so they play up to 20 times.
    """
    without(db, guard)
    own = db.connect()
    _busy(own)
    assert any(_goes_wrong(own) for _ in range(20))


def _goes_wrong(own: Any) -> bool:
    members = _joined(own)
    check_in_rounds(own, members)
    held = _held(own)
    wrong = set(held.get("only a", [])) - {A} | set(held.get("b or c", [])) - {B, C}
    is_wrong = bool(wrong or subscriptions.unleased_cursors(own))
    for each in members:
        stream.leave(own, each)
    return is_wrong


#: Every wrong list, and what it is told.
WRONG: list[tuple[Any, type[PenstockError]]] = [
    (A, InvalidArgument),
    (7, InvalidArgument),
    ([], InvalidArgument),
    ([A, 7], InvalidName),
    ([A, None], InvalidName),
    (["a"], InvalidName),
    (["tests//a"], EmptySegment),
    (["tests/a\n"], ControlCharacter),
    ([A, "tests/zzz"], TopicNotFound),
    ([A, "other/topic"], SubscriptionNotFound),
]


def test_a_wrong_list_is_refused(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed, by the program and by the database; nobody has joined."""
    own = db.connect()
    _busy(own, 1)
    topic(own, 1, "other/topic")
    for topics, error in WRONG:
        with pytest.raises(error):
            stream.join(own, SUBSCRIPTION, "x", topics=topics)
        if isinstance(topics, list):
            with monkeypatch.context() as unchecked:
                unchecked.setattr(stream, "_addresses", list)
                given: list[Any] = [None if each is None else str(each) for each in topics]
                with pytest.raises(error):
                    stream.join(own, SUBSCRIPTION, "x", topics=given)
    assert (count(db, "consumers"), count(db, "consumer_topics")) == (0, 0)


def test_the_example_of_a_partition_that_changes_hands(db: ContractDatabase) -> None:
    """Boxy's state changes: P42 with events 101 to 105, second by second.

    The clock is virtual: what the protocol has stored is made older by as many seconds.
    """
    own = db.connect()
    topic(own, 43, A)
    publish_batch(own, [Message(A, str(n).encode(), partition=42) for n in range(1, 106)])
    drain(own)
    stream.subscribe(own, SUBSCRIPTION, [A], 1)
    stream.seek(own, SUBSCRIPTION, A, 42, 101)

    first = stream.join(own, SUBSCRIPTION, "A")  # t = 0 s: A grabs the lease
    (lease,) = stream.check_in(own, first)
    assert (lease.partition, lease.state, lease.position) == (42, "ACTIVE", 100)
    ((_, events),) = stream.poll(own, first, [lease])  # t = 0 to 2 s: 101 to 105 are in flight
    assert [event.sequence for event in events] == [101, 102, 103, 104, 105]
    pass_time(db, 2)
    stream.heartbeat(own, first)
    pass_time(db, 1)
    stream.commit(own, first, [(lease, 105)])  # t = 3 s: committed, and the lease given back
    assert stream.release(own, first, [lease]) == 1
    assert subscriptions.leased_cursors(own) == []
    assert subscriptions.unleased_cursors(own) == []
    assert stream.check_in(own, first) == []  # idle: nothing is unread
    pass_time(db, 1)
    publish_batch(own, [Message(A, b"106", partition=42)])  # t = 4 s: a new event arrives
    drain(own)
    (free,) = subscriptions.unleased_cursors(own)
    assert (free.partition, free.position, free.high_watermark) == (42, 105, 106)
    pass_time(db, 1)
    second = stream.join(own, SUBSCRIPTION, "B", weight=2)  # t = 5 s: B, with more room, grabs it
    (taken,) = stream.check_in(own, second)
    assert (taken.partition, taken.position) == (42, 105)
    assert taken.lease_epoch == lease.lease_epoch + 1
    assert stream.check_in(own, first) == []
    ((_, (event,)),) = stream.poll(own, second, [taken])
    assert event.payload == b"106"
    steps = db.run("SELECT at FROM penstock.lease_history ORDER BY id")
    _, acquired_by_a, released, acquired_by_b = (at for (at,) in steps)
    assert released - acquired_by_a >= timedelta(seconds=3)
    assert acquired_by_b - released >= timedelta(seconds=2)
