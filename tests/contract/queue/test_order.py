"""A queue that keeps the order of keys: one event of a key at a time, and other keys flow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from penstock import database
from penstock.doctor.findings import Limits
from penstock.doctor.queues import examine_queues
from penstock.errors import InvalidArgument, StaleReceipt
from penstock.log import histories
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import dead_letters, queue
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain, topic
from tests.kit.proof import proves
from tests.kit.queue import (
    QUEUE,
    TOPIC,
    acknowledge,
    count,
    mutated,
    pass_time,
    pass_time_of,
    position,
    receipts,
    receive,
    texts,
)


def _publish(own: Connection, *events: str) -> None:
    """Events like a1 or b2, whose letter is the key; one like -1 has none."""
    publish_batch(
        own,
        [
            Message(TOPIC, each.encode(), partition=0, key=None if each[0] == "-" else each[0])
            for each in events
        ],
    )
    drain(own)


def _ordered(own: Connection, *events: str, **settings: float) -> None:
    topic(own, name=TOPIC)
    queue.subscribe(own, QUEUE, [TOPIC])
    queue.configure(own, QUEUE, order="key", **settings)
    _publish(own, *events)


def _until_empty(own: Connection) -> list[str]:
    """All that comes, each finished before the next."""
    found: list[str] = []
    while more := receive(own):
        found += texts(more)
        acknowledge(own, more)
    return found


@proves("D4 in queues")
def test_one_event_of_a_key_at_a_time_in_order(own: Connection) -> None:
    _ordered(own, "a1", "a2", "b1", "-1", "a3", "b2", "-2")
    held = receive(own, 10)
    assert texts(held) == ["a1", "b1", "-1", "-2"]
    assert receive(own, 10) == []
    acknowledge(own, held[:1])
    (second,) = receive(own, 10)
    acknowledge(own, [second, held[1]])
    assert texts([second]) + texts(receive(own, 10)) == ["a2", "a3", "b2"]
    _publish(own, "a4", "c1")
    assert texts(receive(own, 10)) == ["c1"]


@pytest.mark.parametrize(
    "how",
    [
        *("reject", "a body"),
        *(pytest.param(how, marks=pytest.mark.long) for how in ("expire", "release", "put back")),
    ],
)
def test_what_comes_again_keeps_its_key_waiting(own: Connection, how: str) -> None:
    """While it waits for a retry, and while it is handed out again; others flow."""
    _ordered(own, "a1", "a2", "b1", first_backoff_seconds=50, jitter=0)
    (first, _) = receive(own, 2, visibility_seconds=50)
    if how == "reject":
        queue.reject(own, QUEUE, [first.receipt])
    elif how == "release":
        queue.release(own, QUEUE, [first.receipt])
    elif how in ("put back", "a body"):
        body = b"a1" if how == "a body" else None
        queue.extend(own, QUEUE, [first.receipt], 0, body=body)
    _publish(own, "a3", "c1")
    found = receive(own, 10, visibility_seconds=50)
    assert set(texts(found)) <= {"a1", "c1"}, "a2 waits"
    pass_time(own, 100)
    again = _until_empty(own)
    assert [text for text in again if text[0] == "a"] == ["a1", "a2", "a3"]
    assert len(again) == 5
    assert count(own, "queue_keys") == 0


def _reads_of_the_log(db: ContractDatabase, own: Connection) -> int:
    """How often an event is looked up while 40 of 40 keys are received, each a claim of its own."""
    _ordered(own, *(f"{chr(0x100 + number)}{number}" for number in range(40)))
    with closing(db.connect(autocommit=False)) as other:
        binds = {"subscription": QUEUE, "max_events": 40, "visibility_seconds": 50}
        assert len(database.call(other, "receive", **binds)) == 40
        (read,) = database.execute(
            other,
            "SELECT sum(s.idx_tup_fetch)::bigint FROM pg_stat_xact_user_tables AS s"
            " JOIN penstock.slices AS l ON l.parent = 'events' AND l.slice = s.relname",
        )
        return int(read[0])


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_events_are_read_once_however_many_claims_they_are(
    db: ContractDatabase, own: Connection
) -> None:
    """Once for the dealer, which looks at the keys, and once to be handed out."""
    assert _reads_of_the_log(db, own) <= 100


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_each_claim_would_read_all_of_them(db: ContractDatabase, own: Connection) -> None:
    """Mutant: one query with a join by ranges, and what was read is not kept for it."""
    each_event = "generate_series(n.first_sequence, n.last_sequence) AS sequence"
    changes = [
        ("found AS MATERIALIZED (", "found AS NOT MATERIALIZED ("),
        (
            "AND f.sequence = g.sequence",
            "AND f.sequence BETWEEN g.first_sequence AND g.last_sequence",
        ),
        (f"(\n        SELECT n.*, {each_event} FROM given AS n\n    ) AS g", "given AS g"),
    ]
    mutated(db, {"postgres": ("read_claims", changes)})
    assert _reads_of_the_log(db, own) > 1_000


def test_what_is_published_later_waits(own: Connection) -> None:
    _ordered(own, "a1")
    (first,) = receive(own)
    _publish(own, "a2", "b1")
    assert texts(receive(own, 10)) == ["b1"]
    acknowledge(own, [first])
    assert texts(receive(own, 10)) == ["a2"]


def test_the_order_of_each_key_whatever_fails(own: Connection) -> None:
    _ordered(own, "a1", "a2", "b1", "a3", "b2", jitter=0, first_backoff_seconds=1)
    (a, b) = receive(own, 2)
    queue.reject(own, QUEUE, [a.receipt], delay_seconds=10)
    acknowledge(own, [b])
    assert _until_empty(own) == ["b2"]
    pass_time(own, 10)
    assert _until_empty(own) == ["a1", "a2", "a3"]


def test_a_dead_letter_lets_the_later_ones_go_on(own: Connection) -> None:
    """As in stream mode without park_key; redriven it comes next, while no other is out."""
    _ordered(own, "a1", "a2", "a3", "a4", max_failures=1)
    (first,) = receive(own)
    queue.reject(own, QUEUE, [first.receipt])
    (second,) = receive(own, 10)
    assert texts([second]) == ["a2"]
    assert queue.redrive(own, QUEUE) == 1
    assert receive(own, 10) == [], "a2 is out"
    seen = [each.state for each in queue.peek(own, QUEUE)]
    assert seen == ["behind", "in_flight", "behind", "behind"]
    acknowledge(own, [second])
    assert _until_empty(own) == ["a1", "a3", "a4"]
    assert dead_letters.dead_letters(own, QUEUE) == []


def test_redriven_letters_of_a_key_come_in_order(own: Connection) -> None:
    _ordered(own, "a1", "a2", "b1", "-1", max_failures=1)
    for _ in range(4):
        queue.reject(own, QUEUE, receipts(receive(own)))
    assert queue.redrive(own, QUEUE) == 4
    found = receive(own, 10)
    assert sorted(texts(found)) == ["-1", "a1", "b1"]
    acknowledge(own, found)
    assert _until_empty(own) == ["a2"]


def test_one_that_dies_of_its_deliveries_frees_its_key(own: Connection) -> None:
    _ordered(own, "a1", "a2", max_deliveries=1)
    receive(own, visibility_seconds=5)
    pass_time(own, 5)
    assert texts(receive(own)) == ["a2"]
    assert len(dead_letters.dead_letters(own, QUEUE)) == 1


def test_counts_a_look_and_the_position(own: Connection) -> None:
    """What waits behind its key is ready to be counted, and retention waits for it."""
    _ordered(own, "a1", "a2", "b1", "a3")
    (first, other) = receive(own, 10)
    assert queue.statistics(own, QUEUE) == queue.QueueStatistics(4, 2, 2, 0, 0)
    seen = [(each.event.payload, each.state) for each in queue.peek(own, QUEUE)]
    behind = [payload for payload, state in seen if state == "behind"]
    assert (len(seen), behind) == (4, [b"a2", b"a3"])
    queue.reject(own, QUEUE, [first.receipt], delay_seconds=1000)
    acknowledge(own, [other])
    assert receive(own) == []
    assert queue.statistics(own, QUEUE) == queue.QueueStatistics(3, 2, 0, 1, 0)
    assert position(own) == 1


def test_the_window_has_its_limit(own: Connection) -> None:
    """What waits behind a key counts: a key with many events cannot fill the database."""
    _ordered(own, *(f"a{number}" for number in range(20)), "b1", max_in_flight=5)
    (first,) = receive(own, 10)
    assert receive(own, 10) == []
    assert count(own, "queue_keys") == 5
    assert queue.pointers(own, QUEUE) == [queue.QueuePointers(TOPIC, 0, 6, 1, 1, 4)]
    (finding,) = examine_queues(own, Limits())
    assert "1 events are in flight and 4 wait behind their key" in finding.what
    acknowledge(own, [first])
    assert len(_until_empty(own)) == 20


def test_purge_delete_and_another_topic(own: Connection) -> None:
    _ordered(own, "a1", "a2", "b1")
    receive(own)
    assert queue.purge(own, QUEUE) == 3
    assert count(own, "queue_keys") == count(own, "queue_ranges") == 0
    _publish(own, "a3", "a4")
    assert texts(receive(own, 10)) == ["a3"]
    names.delete_topic(own, TOPIC, with_subscriptions=True)
    assert count(own, "queue_keys") == 0


def test_the_order_is_chosen_before_the_first_receive(own: Connection) -> None:
    """Guards: set_order.  Of what was dealt before, nobody knows the keys."""
    _ordered(own, "a1", "a2")
    assert queue.describe(own, QUEUE).order == "key"
    queue.configure(own, QUEUE, order="key", max_failures=2)
    for wrong in ("none", "partition", 3):
        with pytest.raises(InvalidArgument):
            queue.configure(own, QUEUE, order=wrong)
    queue.subscribe(own, "plain", [TOPIC])
    (held,) = queue.receive(own, "plain", 1)
    with pytest.raises(InvalidArgument, match="in hand"):
        queue.configure(own, "plain", order="key")
    queue.acknowledge(own, "plain", [held.receipt])


def _lost_and_published(db: ContractDatabase, own: Connection) -> list[str]:
    """A restore loses the first events of two keys, and new ones get their sequences."""
    _ordered(own, "a1", "b1", max_failures=1)
    _publish(own, "a2", "b2", "c1")
    (a, b, c) = receive(own, 10)
    queue.reject(own, QUEUE, [a.receipt])
    (second,) = receive(own, 1)
    assert texts([second, c]) == ["a2", "c1"]
    queue.redrive(own, QUEUE)
    receive(own)
    db.run("DELETE FROM penstock.chunks WHERE first_sequence = 3")
    db.run("DELETE FROM penstock.events WHERE payload IN ('a2', 'b2', 'c1')")
    histories.reconcile(own, "the last commits were lost")
    _publish(own, "c7", "b9", "d8")
    with pytest.raises(StaleReceipt):
        acknowledge(own, [second])
    found = receive(own, 10)
    acknowledge(own, [b, *found])
    return texts(found) + _until_empty(own)


@proves("D4 in queues")
def test_a_restore_forgets_who_waited_for_what_is_lost(
    db: ContractDatabase, own: Connection
) -> None:
    """The redriven a1 waited behind the lost a2."""
    assert sorted(_lost_and_published(db, own)) == ["a1", "b9", "c7", "d8"]


@proves("D4 in queues", guard="the end of a turn")
def test_without_that_they_wait_for_ever(db: ContractDatabase, own: Connection) -> None:
    """Mutant: cut_back_keys looks at nothing again."""
    mutated(
        db,
        {
            "postgres": ("cut_back_keys", [("SET state = 'unsure'", "SET state = 'behind'")]),
            "mysql": ("cut_back_keys", [("SET k.state = 'unsure'", "SET k.state = 'behind'")]),
        },
    )
    with pytest.raises(AssertionError):
        assert sorted(_lost_and_published(db, own)) == ["a1", "b9", "c7", "d8"]


def _dealt_while_it_is_finished(db: ContractDatabase, own: Connection, end: str) -> list[str]:
    """What comes when the next of a key is dealt while somebody finishes the first one."""
    _ordered(own, "a1")
    (first,) = receive(own, visibility_seconds=100)
    with closing(db.connect(autocommit=False)) as other:
        queue.acknowledge(other, QUEUE, [first.receipt])
        _publish(own, "a2", "b1")
        pass_time_of(own, "queue_turns", 1)
        assert texts(queue.receive(own, QUEUE, 10)) == ["b1"], "other keys flow"
        (other.commit if end == "commit" else other.rollback)()
    return texts(receive(own, 10))


@proves("D4 in queues")
def test_the_next_one_comes_when_its_first_was_just_being_finished(
    db: ContractDatabase, own: Connection
) -> None:
    """Guard: unsure.  Who finishes the first one does not see what is dealt meanwhile."""
    assert _dealt_while_it_is_finished(db, own, "commit") == ["a2"]


@proves("D4 in queues")
def test_a_key_with_many_events_stops_no_other(db: ContractDatabase, own: Connection) -> None:
    """Guard: the limit of settle_keys is over keys.  The first of one key is being finished."""
    _ordered(own, "a1", "b1")
    (a, b) = receive(own, 2, visibility_seconds=100)
    with closing(db.connect(autocommit=False)) as slow, closing(db.connect(False)) as other:
        queue.acknowledge(slow, QUEUE, [a.receipt])
        queue.acknowledge(other, QUEUE, [b.receipt])
        _publish(own, *(f"a{number}" for number in range(2, 1200)), "b2")
        pass_time_of(own, "queue_turns", 1)
        assert queue.receive(own, QUEUE, 10) == []
        other.commit()
        pass_time_of(own, "queue_turns", 1)
        assert texts(queue.receive(own, QUEUE, 10)) == ["b2"]
        slow.commit()
    assert texts(receive(own, 10)) == ["a2"]


@proves("D4 in queues", guard="all keys are looked at")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_without_looking_at_all_keys_it_does(db: ContractDatabase, own: Connection) -> None:
    """Mutant: only some of the events are looked at."""
    lowest = "u.sequence = (SELECT min(o.sequence) FROM queue_keys AS o WHERE o.state = 'unsure')"
    db.without_guard("settle_keys", "u.state = 'unsure'", f"u.state = 'unsure' AND {lowest}")
    with pytest.raises(AssertionError):
        test_a_key_with_many_events_stops_no_other(db, own)


def test_it_waits_on_when_that_was_undone(db: ContractDatabase, own: Connection) -> None:
    assert _dealt_while_it_is_finished(db, own, "rollback") == []
    pass_time(own, 100)
    assert [text for text in _until_empty(own) if text != "b1"] == ["a1", "a2"]


#: Guards of the order, of each dialect: function, old and new texts.
MUTANTS = {
    "look again": {
        "postgres": ("deal_keys", [("THEN 'unsure'", "THEN 'behind'")]),
        "mysql": ("deal_keys", [("THEN 'unsure'", "THEN 'behind'")]),
    },
    "the lock": {
        "postgres": ("deal_keys", [("        FOR UPDATE OF k SKIP LOCKED\n", "")]),
        "mysql": ("hold_first", [("    FOR UPDATE SKIP LOCKED;", ";")]),
    },
    "behind": {
        "postgres": ("deal_keys", [
            ("WHEN h.key_digest IS NOT NULL THEN 'behind'", "WHEN false THEN 'behind'"),
            ("WHEN p.key_digest IS NOT NULL THEN 'unsure'", "WHEN false THEN 'unsure'")]),
        "mysql": ("deal_keys", [
            ("WHEN h.digest IS NOT NULL THEN 'behind'", "WHEN FALSE THEN 'behind'"),
            ("WHEN p.digest IS NOT NULL THEN 'unsure'", "WHEN FALSE THEN 'unsure'")]),
    },
    "a copy": {
        "postgres": ("carry_keys", [("SET waiting_id = c.waiting_id", "SET waiting_id = 0")]),
        "mysql": ("carry_keys", [("SET k.waiting_id = c.waiting_id", "SET k.waiting_id = 0")]),
    },
    "the position": {
        "postgres": ("move_floors", [("""queue."order" = 'key'""", "false")]),
        "mysql": ("move_floors", [("k.state IN ('behind', 'unsure')", "FALSE")]),
    },
    "the limit": {
        "postgres": ("events_behind", [("""queue."order" = 'none'""", "true")]),
        "mysql": ("events_behind", [("k.state IN ('behind', 'unsure')", "FALSE")]),
    },
    "their end": {
        "postgres": ("acknowledge", [("""IF ended."order" = 'key' THEN""", "IF false THEN")]),
        "mysql": ("acknowledge", [("IF kept_order = 'key' THEN", "IF FALSE THEN")]),
    },
    "a dead one": {
        "postgres": ("bury_pieces", [("PERFORM finish_keys(queue, pieces);", "")]),
        "mysql": ("bury_pieces", [("CALL finish_keys(owner_id, pieces);", "DO 0;")]),
    },
}  # fmt: skip


@proves("D4 in queues", guard="the second look")
def test_without_a_second_look_it_never_comes(db: ContractDatabase, own: Connection) -> None:
    """Mutant: who just finishes the first one is believed to see what is dealt."""
    mutated(db, MUTANTS["look again"])
    assert _dealt_while_it_is_finished(db, own, "commit") == []


def _finished_while_it_is_dealt(db: ContractDatabase, own: Connection) -> list[str]:
    """What comes when the first of a key is finished while the next one is dealt."""
    _ordered(own, "a1", "b1")
    (first, _) = receive(own, 2, visibility_seconds=100)
    _publish(own, "a2")
    with closing(db.connect(autocommit=False)) as dealer, closing(db.connect()) as mine:
        pass_time(own, 1)
        database.call(dealer, "receive", subscription=QUEUE, max_events=1, visibility_seconds=None)
        done = threading.Thread(target=queue.acknowledge, args=(mine, QUEUE, [first.receipt]))
        done.start()
        done.join(0.3)
        dealer.commit()
        done.join()
    return texts(receive(own, 10))


@proves("D4 in queues")
def test_who_finishes_the_first_sees_what_is_dealt(db: ContractDatabase, own: Connection) -> None:
    """Guard: the dealer's lock on the first one of the key."""
    assert _finished_while_it_is_dealt(db, own) == ["a2"]


@proves("D4 in queues", guard="the dealer's lock")
def test_without_the_lock_he_does_not(db: ContractDatabase, own: Connection) -> None:
    """Mutant: the dealer locks no key, and believes that he is seen."""
    mutated(db, MUTANTS["the lock"])
    assert _finished_while_it_is_dealt(db, own) == []


@proves("D4 in queues", guard="the place of a queue")
@pytest.mark.long_on("mariadb")
@pytest.mark.parametrize(
    ("guard", "scenario"),
    [
        ("behind", test_what_is_published_later_waits),
        ("a copy", test_the_order_of_each_key_whatever_fails),
        ("the position", test_counts_a_look_and_the_position),
        ("the limit", test_the_window_has_its_limit),
        ("their end", test_one_event_of_a_key_at_a_time_in_order),
        ("a dead one", test_one_that_dies_of_its_deliveries_frees_its_key),
    ],
)
def test_without_a_guard_it_fails(
    db: ContractDatabase, own: Connection, guard: str, scenario: Callable[[Connection], None]
) -> None:
    """Mutants: see above."""
    mutated(db, MUTANTS[guard])
    with pytest.raises((AssertionError, ValueError)):
        scenario(own)
