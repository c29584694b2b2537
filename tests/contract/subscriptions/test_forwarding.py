"""Dead letters that go on to a topic: every burial, and what a topic does not take."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import database, log, subscriptions
from penstock.doctor.letters import examine_letters
from penstock.errors import InUse, InvalidArgument, TopicNotFound
from penstock.publishing.publish import publish
from penstock.records import Event
from penstock.subscriptions import dead_letters, forwarding, queue, stream
from penstock.subscriptions.dead_letters import DeadLetter
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.failure_kit import keyed, retry
from tests.contract.kit import count, open_transaction
from tests.contract.stream_kit import Guard, without
from tests.kit import queue as kit
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.queue import QUEUE
from tests.kit.stream import STREAM, SUBSCRIPTION, member_with_lease

DEAD = "tests/dead"
HOSPITAL = "hospital"

#: The burial leaves the copy to somebody who comes later.
LATER: Guard = {
    "postgres": ("store_letters", "IF NOT behind THEN", "IF false THEN"),
    "mysql": ("store_letters", "IF NOT behind THEN", "IF FALSE THEN"),
}
HOPS: Guard = {
    "postgres": ("forward_problem", "letter_hops(forward_problem.headers) >= 8", "false"),
    "mysql": ("forward_problem", "letter_hops(headers) >= 8", "FALSE"),
}
CIRCLE: Guard = {
    "postgres": ("refuse_circle", "IF back IS NOT NULL THEN", "IF false THEN"),
    "mysql": ("refuse_circle", "IF back IS NOT NULL THEN", "IF FALSE THEN"),
}
NAMED: Guard = {
    "postgres": ("drop_topics", "PERFORM refuse_forwarding(topic_ids);", ""),
    "mysql": ("drop_topics", "CALL refuse_forwarding(topic_ids);", ""),
}


def _events(own: Any, address: str = DEAD) -> list[Event]:
    drain(own)
    found: list[Event] = []
    for partition in range(len(log.high_watermarks(own, address))):
        found += log.fetch(own, address, partition, 1, 100)
    return found


def _letters(own: Any, subscription: str = SUBSCRIPTION) -> list[DeadLetter]:
    return dead_letters.dead_letters(own, subscription)


def _given_up(own: Any, *, park: bool = False, **event: Any) -> None:
    """The next event of a stream's first partition is buried by who holds it."""
    member, lease = member_with_lease(own, "a")
    ((_, (first, *_)),) = stream.poll(own, member, [lease])
    dead_letters.give_up(
        own, member, lease, first.sequence, "no such customer", attempts=3, park=park
    )
    stream.leave(own, member)


def _stream(db: ContractDatabase, to: str = DEAD) -> Any:
    """A stream of keyed events whose letters go on to a topic."""
    own = keyed(db, "a1 a2")
    topic(own, 2, to)
    forwarding.set_dead_letters_to(own, SUBSCRIPTION, to)
    return own


def _queue(db: ContractDatabase, **settings: Any) -> Any:
    own = db.connect()
    kit.filled(own, 1, **settings)
    topic(own, 2, DEAD)
    forwarding.set_dead_letters_to(own, QUEUE, DEAD)
    return own


def _by_attempts(db: ContractDatabase) -> tuple[Any, str]:
    own = _stream(db)
    _given_up(own)
    return own, SUBSCRIPTION


def _by_parking(db: ContractDatabase) -> tuple[Any, str]:
    own = _stream(db)
    _given_up(own, park=True)
    return own, SUBSCRIPTION


def _by_a_relay(db: ContractDatabase) -> tuple[Any, str]:
    own = _stream(db)
    member, lease = member_with_lease(own, "relay")
    for _ in range(2):  # the second one changes nothing
        database.call(
            own, "dead_letter", subscription=SUBSCRIPTION, consumer="relay",
            partition_id=lease.partition_id, lease_epoch=lease.lease_epoch, sequence=1, reason="no",
        )  # fmt: skip
    stream.leave(own, member)
    return own, SUBSCRIPTION


def _redriven(db: ContractDatabase, attempts: int) -> tuple[Any, str]:
    """The letter was given up, is redriven, and dies again: by a failure, or of its attempts."""
    own = keyed(db, "a1")
    topic(own, 2, DEAD)
    retry(own, max_attempts=1)
    _given_up(own)
    dead_letters.redrive(own, SUBSCRIPTION)
    forwarding.set_dead_letters_to(own, SUBSCRIPTION, DEAD)
    member, lease = member_with_lease(own, "b")
    (letter,) = dead_letters.poll_redriven(own, member, [lease])
    if attempts == 1:
        dead_letters.fail_redriven(own, member, letter, "again")
    else:
        assert dead_letters.poll_redriven(own, member, [lease]) == []
    return own, SUBSCRIPTION


def _by_failing_again(db: ContractDatabase) -> tuple[Any, str]:
    return _redriven(db, 1)


def _by_crashing_again(db: ContractDatabase) -> tuple[Any, str]:
    return _redriven(db, 2)


def _by_rejecting(db: ContractDatabase) -> tuple[Any, str]:
    own = _queue(db, max_failures=1)
    queue.reject(own, QUEUE, kit.receipts(kit.receive(own)), reason="no")
    return own, QUEUE


def _by_putting_back(db: ContractDatabase) -> tuple[Any, str]:
    own = _queue(db, max_deliveries=1)
    queue.extend(own, QUEUE, kit.receipts(kit.receive(own)), 0)
    return own, QUEUE


def _by_silence(db: ContractDatabase) -> tuple[Any, str]:
    own = _queue(db, max_deliveries=1)
    kit.receive(own)
    kit.pass_time(own, 100)
    assert kit.receive(own) == []
    return own, QUEUE


BURIALS = (
    _by_attempts, _by_parking, _by_a_relay, _by_failing_again, _by_crashing_again, _by_rejecting,
    _by_putting_back, _by_silence,
)  # fmt: skip


@proves("dead letters that go on")
@pytest.mark.parametrize("burial", BURIALS)
def test_every_burial_publishes_the_event(
    db: ContractDatabase, burial: Callable[[ContractDatabase], tuple[Any, str]]
) -> None:
    """Once, with reason, counts and origin; the letter stays and says where its copy went."""
    own, subscription = burial(db)
    (letter,) = _letters(own, subscription)
    (copy,) = _events(own)
    assert (letter.forwarded_to, letter.forwarded_as) == (DEAD, copy.event_id)
    assert letter.not_forwarded is None
    assert (copy.key, copy.type) == (letter.key, letter.type)
    assert copy.event_id != letter.event_id
    whole = dead_letters.dead_letter(own, subscription, letter.id)
    assert whole is not None
    assert copy.payload == whole.payload
    said = {
        name.removeprefix("penstock-letter-"): value
        for name, value in copy.headers.items()
        if name.startswith("penstock-letter-")
    }
    assert said == {
        "reason": letter.reason, "attempts": said["attempts"], "deliveries": letter.attempts,
        "subscription": subscription, "topic": letter.topic,
        "topic-id": said["topic-id"], "partition": letter.partition, "sequence": letter.sequence,
        "history": letter.history, "event-id": str(letter.event_id), "hops": 1,
    }  # fmt: skip
    assert 1 <= said["attempts"] <= letter.attempts
    ((topic_id,),) = db.run(f"SELECT id FROM penstock.topics WHERE address = '{letter.topic}'")
    assert topic_id == said["topic-id"]


#: Where a row gets into dead_letters, and what forwards it from there; None: it has not died there.
PLACES = {
    "dead_letters/attempts.sql": ("bring_letter", None),  # give_up or dead_letter follows
    "dead_letters/inner/store.sql": ("store_letters", "forward_letters"),
    "queue/inner/pieces.sql": ("bury_pieces", "forward_letters"),
    "relay/failures.sql": ("dead_letter", "forward_letters"),
    "restore/inner/counters.sql": ("raise_letter_ids", None),  # a row that is gone at once
}


@proves("dead letters that go on")
@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_no_burial_is_forgotten(dialect: str) -> None:
    """Every place that writes into dead_letters is in PLACES, and does what stands there."""
    room = Path(__file__).parents[3] / "sql" / dialect
    found: dict[str, str] = {}
    for file in sorted(room.rglob("*.sql")):
        for block in re.split(r"^-- name: ", file.read_text(), flags=re.MULTILINE)[1:]:
            name = block.split()[0]
            if "INSERT INTO dead_letters" in block:
                found[str(file.relative_to(room))] = name
                wanted, forwards = PLACES[str(file.relative_to(room))]
                assert name == wanted or "counters" in file.name
                assert bool(forwards) == bool(re.search(r"forward_(letters|buried)\(", block)), name
    assert set(found) == {each for each in PLACES if (room / each).exists() and each in found}
    again = (room / "dead_letters/inner/redrive.sql").read_text()
    assert "forward_letters(" in again, "return_letters makes letters dead again"


def _is_full(db: ContractDatabase, own: Any) -> None:
    database.call(own, "set_backpressure", topic=DEAD, max_events=1, max_bytes=None)
    publish(own, DEAD, b"waits")


def _is_small(db: ContractDatabase, own: Any) -> None:
    db.run(f"UPDATE penstock.topics SET max_payload_bytes = 1 WHERE address = '{DEAD}'")


def _is_gone(db: ContractDatabase, own: Any) -> None:
    db.run("UPDATE penstock.subscriptions SET dead_letters_to = 999")


def _is_its_own(db: ContractDatabase, own: Any) -> None:
    db.run(
        "UPDATE penstock.subscriptions SET dead_letters_to ="
        f" (SELECT t.id FROM penstock.topics AS t WHERE t.address = '{STREAM}')"
    )


def _nothing(db: ContractDatabase, own: Any) -> None:
    pass


@proves("dead letters that go on")
@pytest.mark.parametrize(
    ("obstacle", "headers", "reason"),
    [
        (_is_full, None, "nobody gives events their sequences"),
        (_is_small, None, "the limit is 1"),
        (_is_gone, None, "the topic was deleted"),
        (_is_its_own, None, "round in a circle"),
        (_nothing, {"much": "x" * 65_400}, "the limit is 65536"),
        (_nothing, {"penstock-letter-hops": 8}, "forwarded 8 times already"),
    ],
)
def test_a_burial_never_fails_because_of_its_topic(
    db: ContractDatabase, obstacle: Any, headers: Any, reason: str
) -> None:
    """The letter stays with the reason, in the list, the counts and the doctor's finding."""
    own = db.connect()
    topic(own, 1, STREAM)
    topic(own, 2, DEAD)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    forwarding.set_dead_letters_to(own, SUBSCRIPTION, DEAD)
    publish(own, STREAM, b"bad", headers=headers)
    drain(own)
    obstacle(db, own)
    _given_up(own)
    (letter,) = _letters(own)
    assert (letter.state, letter.forwarded_as) == ("dead", None)
    assert reason in str(letter.not_forwarded)
    (counted,) = dead_letters.counts(own, SUBSCRIPTION)
    assert (counted.dead, counted.forwarded, counted.not_forwarded, counted.left) == (1, 0, 1, 1)
    (found,) = examine_letters(own)
    assert "not taken by the topic" in found.what
    assert [each for each in _events(own) if each.payload == b"bad"] == []


@pytest.mark.parametrize(
    "headers",
    [
        '{"n": 1e400, "penstock-letter-x": 1}',
        '{"x": "' + " " * 3_000 + '}  y"}',
        '{"x": 1 } ',
        "{ }",
    ],
)
def test_a_burial_never_fails_because_of_headers(db: ContractDatabase, headers: str) -> None:
    """A number that MySQL cannot read, and long blanks; what can be kept is."""
    own = _stream(db)
    db.run(f"UPDATE penstock.events SET headers = '{headers}'")
    _given_up(own)
    (letter,) = _letters(own)
    assert letter.forwarded_to == DEAD or letter.not_forwarded
    if '"x"' in headers:
        (copy,) = _events(own)
        assert copy.headers["x"] == json.loads(headers)["x"]


def _round(db: ContractDatabase) -> int:
    """How often a letter goes round where a circle was made behind our back."""
    own = db.connect()
    topic(own, 1, "tests/one")
    topic(own, 1, "tests/two")
    for name, source in (("first", "tests/one"), ("second", "tests/two")):
        queue.subscribe(own, name, [source])
        queue.configure(own, name, max_failures=1)
    forwarding.set_dead_letters_to(own, "first", "tests/two")
    db.run("UPDATE penstock.subscriptions SET dead_letters_by = 'postgres'")
    ((first, second),) = [[row[0] for row in db.run("SELECT id FROM penstock.topics ORDER BY id")]]
    del second
    db.run(
        "UPDATE penstock.subscriptions SET dead_letters_by = 'postgres',"
        f" dead_letters_to = {first} WHERE name = 'second'"
    )
    publish(own, "tests/one", b"bad")
    rounds = 0
    while rounds < 12:
        drain(own)
        kit.pass_time(own, 1)
        name = ("first", "second")[rounds % 2]
        if not (found := queue.receive(own, name)):
            break
        queue.reject(own, name, kit.receipts(found), reason="no")
        rounds += 1
    return rounds


def test_a_circle_ends_after_eight_hops(db: ContractDatabase) -> None:
    """Guard: the hops in the headers, counted at each burial."""
    assert _round(db) == 9


@proves("dead letters that go on", guard="the hops")
def test_without_the_hops_it_goes_on(db: ContractDatabase) -> None:
    """Mutant: nothing ends it."""
    without(db, HOPS)
    assert _round(db) == 12


@proves("dead letters that go on", guard="the walk when a topic is named")
def test_circles_are_refused_when_they_are_made(db: ContractDatabase) -> None:
    """Of its own topic, over others, by naming and by subscribing; nothing was changed."""
    own = _stream(db)
    topic(own, 1, "tests/last")
    stream.subscribe(own, "second", [DEAD])
    with pytest.raises(InvalidArgument, match="come back"):
        forwarding.set_dead_letters_to(own, "second", DEAD)
    with pytest.raises(InvalidArgument, match="come back"):
        forwarding.set_dead_letters_to(own, "second", STREAM)
    assert subscriptions.describe_subscription(own, "second").dead_letters_to is None
    assert forwarding.set_dead_letters_to(own, "second", "tests/last")
    assert not forwarding.set_dead_letters_to(own, "second", "tests/last")
    with pytest.raises(InvalidArgument, match="come back"):
        stream.subscribe(own, SUBSCRIPTION, ["tests/last"])
    names.create_topic(own, "tests/explicit", strategy="explicit")
    with pytest.raises(InvalidArgument, match="strategy"):
        forwarding.set_dead_letters_to(own, "second", "tests/explicit")
    with pytest.raises(TopicNotFound):
        forwarding.set_dead_letters_to(own, "second", "tests/none")
    without(db, CIRCLE)
    assert forwarding.set_dead_letters_to(own, "second", STREAM)


def test_its_topic_cannot_be_deleted_and_may_be_renamed(db: ContractDatabase) -> None:
    """Guard: refuse_forwarding.  It is kept by id: the name may change."""
    own = _stream(db)
    with pytest.raises(InUse, match=f'subscription "{SUBSCRIPTION}" publishes its dead letters'):
        names.delete_topic(own, DEAD)
    names.rename_topic(own, DEAD, "buried")
    _given_up(own)
    (letter,) = _letters(own)
    assert letter.forwarded_to == "tests/buried"
    (said,) = subscriptions.list_subscriptions(own)
    assert (said.dead_letters_to, said.dead_letters_origin) == ("tests/buried", "hand")
    assert forwarding.set_dead_letters_to(own, SUBSCRIPTION, None)
    names.delete_topic(own, "tests/buried")
    (letter,) = _letters(own)
    assert (letter.forwarded_to, letter.not_forwarded) == (None, "the topic was deleted")
    assert count(db, "letter_copies") == 0


@proves("dead letters that go on", guard="the deletion that is refused")
def test_without_that_the_topic_goes(db: ContractDatabase) -> None:
    """Mutant: the letters of the subscription have no place any more."""
    own = _stream(db)
    without(db, NAMED)
    names.delete_topic(own, DEAD)


@proves("dead letters that go on")
def test_the_topic_goes_while_a_burial_runs(db: ContractDatabase) -> None:
    """The burial counts all the same; its copy goes with the topic, and the letter says so."""
    own = _stream(db)
    member, lease = member_with_lease(own, "a")
    with ThreadPoolExecutor(1) as pool, closing(db.connect()) as other:
        with open_transaction(db) as worker:
            dead_letters.give_up(worker, member, lease, 1, "no such customer", attempts=1)
            with pytest.raises(InUse):
                names.delete_topic(own, DEAD)
            forwarding.set_dead_letters_to(own, SUBSCRIPTION, None)
            deletion = pool.submit(names.delete_topic, other, DEAD)
            if db.engine == "postgres":
                deletion.result()
            else:  # its DELETE waits for rows that are not committed
                db.wait_until_blocked(other)
            worker.commit()
        deletion.result()
    drain(own)
    (letter,) = _letters(own)
    assert letter.not_forwarded == "the topic was deleted"


def _half(db: ContractDatabase) -> tuple[int, int]:
    """Letters, and copies in the log, after a burial whose transaction was rolled back, and one."""
    own = _stream(db)
    member, lease = member_with_lease(own, "a")
    with open_transaction(db) as worker:
        dead_letters.give_up(worker, member, lease, 1, "no", attempts=1)
        worker.rollback()
    assert (_letters(own), _events(own)) == ([], [])
    dead_letters.give_up(own, member, lease, 1, "no", attempts=1)
    return len(_letters(own)), len(_events(own))


@proves("dead letters that go on")
def test_letter_and_copy_are_one_transaction(db: ContractDatabase) -> None:
    """Guard: both or none, whenever the burial ends."""
    assert _half(db) == (1, 1)


@proves("dead letters that go on", guard="the same transaction")
def test_without_that_the_copy_is_missing(db: ContractDatabase) -> None:
    """Mutant: a burial that leaves the copy to somebody later has a letter that nobody sees."""
    without(db, LATER)
    assert _half(db) == (1, 0)


def test_letters_that_only_wait_are_not_forwarded(db: ContractDatabase) -> None:
    """What is parked behind an earlier event of its key has not died."""
    own = _stream(db)
    _given_up(own, park=True)
    member, lease = member_with_lease(own, "b")
    dead_letters.commit_parking(own, member, lease, 2, after=1, sequences=[2])
    assert [each.state for each in _letters(own)] == ["parked", "parked"]
    assert [each.payload for each in _events(own)] == [b"a1"]
