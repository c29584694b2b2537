"""What a queue hands out, when, and how often.

The scenarios named C-T are CassieQ's own, from their descriptions.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock import database, log
from penstock.errors import InvalidArgument, SubscriptionNotFound, WrongIsolation
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.subscriptions import dead_letters, queue, stream
from penstock.subscriptions.queue import Receipt
from tests.contract.databases import ContractDatabase
from tests.kit.log import Connection, drain, topic
from tests.kit.proof import proves
from tests.kit.queue import (
    QUEUE,
    TOPIC,
    acknowledge,
    count,
    filled,
    more,
    mutated,
    pass_time,
    receipts,
    receive,
    rows,
    texts,
)

pytestmark = pytest.mark.mariadb_differs("rows that others have locked are passed over")


def test_an_event_is_hidden_comes_back_and_is_counted(own: Connection) -> None:
    """C-T3: deliveries over expiry; what is acknowledged never comes again; a deleted queue."""
    filled(own, 1, visibility_seconds=30)
    (first,) = receive(own)
    assert (first.deliveries, first.failures) == (1, 0)
    pass_time(own, 27)
    assert receive(own) == [], "hidden for 30 seconds"
    pass_time(own, 2)
    (second,) = receive(own)
    assert second.deliveries == 2
    assert second.tag == first.tag
    assert second.event.payload == b"1"
    acknowledge(own, [second])
    for _ in range(10):
        pass_time(own, 100)
        assert receive(own) == []
    more(own, 1, start=2)
    stream.unsubscribe(own, QUEUE)
    with pytest.raises(SubscriptionNotFound):
        queue.receive(own, QUEUE)


#: A clock of the sequencer that a test sets, and how.
SHIFTED = {
    "postgres": ("sequence", [(
        "extract(epoch FROM clock_timestamp()) * 1000000",
        "(extract(epoch FROM clock_timestamp()) + current_setting('test.shift')::numeric) * 1e6",
    )]),
    "mysql": ("sequence", [(
        "SET present = UTC_TIMESTAMP(6)",
        "SET present = UTC_TIMESTAMP(6) + INTERVAL @penstock_shift SECOND",
    )]),
}  # fmt: skip
SHIFT = {
    "postgres": "SELECT set_config('test.shift', %(seconds)s::text, false)",
    "mysql": "SET @penstock_shift = %(seconds)s",
}


def test_delayed_events_come_in_the_order_of_their_times(
    db: ContractDatabase, own: Connection
) -> None:
    """C-T1: delays 0, 400, 300, 200, 0 thousand seconds."""
    mutated(db, SHIFTED)
    database.execute(own, SHIFT[database.dialect_of(own)], {"seconds": 0})
    topic(own, name=TOPIC)
    queue.subscribe(own, QUEUE, [TOPIC])
    now = datetime.now(UTC)
    publish_batch(
        own,
        [
            Message(TOPIC, text.encode(), not_before=now + timedelta(seconds=delay * 1000))
            for text, delay in zip("12345", (0, 400, 300, 200, 0), strict=True)
        ],
    )
    seen: list[list[str]] = []
    for shifted in (0, 201, 301, 401):
        database.execute(own, SHIFT[database.dialect_of(own)], {"seconds": shifted * 1000})
        drain(own)
        found = receive(own, 5)
        acknowledge(own, found)
        seen.append(texts(found))
    assert seen == [["1", "5"], ["4"], ["3"], ["2"]]


def test_a_long_hidden_event_hides_no_other(own: Connection) -> None:
    """C-T4: a shorter one behind a longer one comes back on time."""
    filled(own, 3)
    (long,) = receive(own, visibility_seconds=1000)
    (short,) = receive(own, visibility_seconds=20)
    (rejected,) = receive(own)
    queue.reject(own, QUEUE, [rejected.receipt], delay_seconds=500)
    pass_time(own, 30)
    assert texts(receive(own, 3)) == texts([short])
    assert receive(own) == []
    pass_time(own, 500)
    assert set(texts(receive(own, 3)) + texts(receive(own, 3))) == {"2", "3"}
    queue.acknowledge(own, QUEUE, [long.receipt])


#: To call an inner function; a delayed event is due in a twentieth of a second; the rest after a
#: look that took no time.
DUE_SOON = {
    "postgres": (
        "SET search_path = penstock",
        "UPDATE queue_waiting SET due_at = clock_timestamp() + interval '50 milliseconds'",
        "SELECT rest_after(subscription_id, clock_timestamp()) - due_at FROM queue_waiting",
    ),
    "mysql": (
        "USE penstock",
        "UPDATE queue_waiting SET due_at = UTC_TIMESTAMP(6) + INTERVAL 50000 MICROSECOND",
        "SELECT TIMEDIFF(rest_after(subscription_id, 0), due_at) FROM queue_waiting",
    ),
}


def test_the_next_look_comes_when_a_delayed_event_is_due(own: Connection) -> None:
    """Guard: due_at in rest_after; without it every look rests for a tenth of a second."""
    filled(own, 1)
    (given,) = receive(own)
    queue.reject(own, QUEUE, [given.receipt], delay_seconds=500)
    inside, update, rest = DUE_SOON[database.dialect_of(own)]
    database.execute(own, inside)
    rested = set()
    for _ in range(200):  # it has become due already where 50 ms pass between the two
        database.execute(own, update)
        rested.add(rows(own, rest)[0][0])
    assert timedelta(0) in rested


def test_it_waits_for_an_event(own: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards: the loop of `receive`, and its end when the time is over."""
    filled(own, 1)
    acknowledge(own, receive(own))
    now, pauses = [0.0], []

    def pause(seconds: float) -> None:
        now[0] += seconds
        pauses.append(seconds)
        if len(pauses) == 4:
            more(own, 1, start=2)

    monkeypatch.setattr(queue, "monotonic", lambda: now[0])
    monkeypatch.setattr(queue, "sleep", pause)
    assert queue.receive(own, QUEUE, wait_seconds=0.13) == []
    assert sum(pauses) == pytest.approx(0.13)
    assert texts(queue.receive(own, QUEUE, wait_seconds=20)) == ["2"]
    assert pauses[3:] == [0.02]
    for wrong in (-1, 61):
        with pytest.raises(InvalidArgument, match="wait_seconds"):
            queue.receive(own, QUEUE, wait_seconds=wrong)


def test_the_oldest_come_first_in_batches_of_any_size(own: Connection) -> None:
    """A range that is longer than what is asked for is cut; short ones are put together."""
    filled(own, 40)
    sizes = (1, 20, 3, 1, 10, 10)
    seen = [texts(receive(own, size)) for size in sizes]
    assert [text for found in seen for text in found] == [str(number) for number in range(1, 41)]
    assert all(len(found) <= size for found, size in zip(seen, sizes, strict=True))


def test_a_range_of_several_passes_is_read_as_the_log_is(own: Connection) -> None:
    """Whether one row of the index of the log has the range or several have it."""
    filled(own, 3)
    more(own, 4, start=4)
    more(own, 2, start=8)
    stored = log.fetch(own, TOPIC, 0, 1, 20)
    found = receive(own, 5) + receive(own, 2) + receive(own, 2)
    assert [each.event for each in found] == stored
    queue.release(own, QUEUE, receipts(found))
    again = receive(own, 9)
    assert sorted((each.event for each in again), key=lambda event: event.sequence) == stored


def test_every_partition_gets_its_turn(own: Connection) -> None:
    filled(own, 5, partitions=3)
    found = receive(own, 5) + receive(own, 5) + receive(own, 5)
    assert len({(each.event.partition, each.event.sequence) for each in found}) == 15
    assert receive(own, 5) == []


def test_the_plain_case_leaves_no_row(own: Connection) -> None:
    """A range is received and acknowledged: one row, whatever the number of its events."""
    filled(own, 100)
    found = receive(own, 100)
    assert count(own, "queue_ranges") == 1
    acknowledge(own, found)
    for table in ("queue_ranges", "queue_waiting"):
        assert count(own, table) == 0


def test_no_more_than_the_limit_is_handed_out(own: Connection) -> None:
    """At the limit nothing is returned; what waits for a retry does not count."""
    filled(own, 20, max_in_flight=10)
    held = receive(own, 500)
    assert len(held) == 10
    assert receive(own, 500) == []
    queue.reject(own, QUEUE, receipts(held[:4]), delay_seconds=1000)
    assert texts(receive(own, 500)) == ["11", "12", "13", "14"]
    acknowledge(own, held[4:])
    assert len(receive(own, 500)) == 6


@proves("S16 in queues")
def test_a_poison_event_ends_in_the_dead_letters_alone(own: Connection) -> None:
    """Whoever gets it dies: it is counted at the hand-out, and its neighbours are finished."""
    filled(own, 20, max_deliveries=4)
    done: set[str] = set()
    for _ in range(60):
        found = receive(own, 10, visibility_seconds=5)
        if "7" in texts(found):
            pass_time(own, 5)
            continue
        acknowledge(own, found)
        done |= set(texts(found))
    assert done == {str(number) for number in range(1, 21)} - {"7"}
    (letter,) = dead_letters.dead_letters(own, QUEUE)
    assert (letter.sequence, letter.attempts) == (7, 4)
    assert "never finished" in letter.reason


@proves("a queue loses nothing and hands out nothing twice at a time")
def test_receivers_at_once_get_each_event_once(db: ContractDatabase, own: Connection) -> None:
    """Eight sessions, one partition, batches of different sizes."""
    filled(own, 600)
    seen: list[str] = []

    def work(size: int) -> None:
        with closing(db.connect()) as mine:
            idle = 0
            while idle < 3:
                found = queue.receive(mine, QUEUE, size)
                idle = 0 if found else idle + 1
                seen.extend(texts(found))
                queue.acknowledge(mine, QUEUE, receipts(found))

    workers = [threading.Thread(target=work, args=(size,)) for size in (1, 1, 3, 3, 10, 10, 50, 7)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert len(seen) == len(set(seen)) == 600


def test_a_receiver_that_rolls_back_loses_nothing(db: ContractDatabase, own: Connection) -> None:
    filled(own, 4)
    with closing(db.connect(autocommit=False)) as other:
        with pytest.raises(InvalidArgument, match="forgotten"):
            queue.receive(other, QUEUE)
        call_receive(other)
        other.rollback()
    assert texts(receive(own, 4)) + texts(receive(own, 4)) == ["1", "2", "3", "4"]


def test_a_paused_queue_hands_nothing_out(own: Connection) -> None:
    filled(own, 2)
    (held,) = receive(own)
    penstock.subscriptions.pause(own, QUEUE)
    assert receive(own) == []
    queue.acknowledge(own, QUEUE, [held.receipt])
    penstock.subscriptions.resume(own, QUEUE)
    assert texts(receive(own)) == ["2"]


#: What a session says to get another isolation.
REPEATABLE = {
    "postgres": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}


def call_receive(connection: Connection) -> None:
    """Receive in the caller's transaction, which Python refuses."""
    database.call(connection, "receive", subscription=QUEUE, max_events=2, visibility_seconds=None)


def test_bad_calls_are_refused(db: ContractDatabase, own: Connection) -> None:
    filled(own, 1)
    for wrong in ({"max_events": 0}, {"max_events": 1001}, {"visibility_seconds": -1}):
        with pytest.raises(InvalidArgument):
            queue.receive(own, QUEUE, **wrong)
    wrong_settings: list[dict[str, Any]] = [
        {"max_deliveries": 0}, {"max_failures": 1.5}, {"colour": 1}, {"jitter": float("nan")},
        {"order": "KEY"}, {"Max_Failures": 3}, {"ORDER": "key"}, {"max_failures": None},
    ]  # fmt: skip
    for settings in wrong_settings:
        with pytest.raises(InvalidArgument):
            queue.configure(own, QUEUE, **settings)
    with closing(db.connect(autocommit=False)) as other:
        database.execute(other, REPEATABLE[database.dialect_of(own)])
        other.commit()
        with pytest.raises(WrongIsolation):
            call_receive(other)
        other.rollback()
        with pytest.raises(WrongIsolation):
            queue.acknowledge(other, QUEUE, [Receipt(1, 1, uuid.uuid4())])
    assert queue.describe(own, QUEUE) == queue.QueueSettings(30, 5, 5, 100000, 2, 300, 0.2)


#: Guards of the hand-out, of each dialect: function, old and new texts.
MUTANTS = {
    "hidden": {
        "postgres": ("receive", [("AND f.token IS NULL", "")]),
        "mysql": ("claim_ranges", [("AND r.token IS NULL", "")]),
    },
    "expiry": {
        "postgres": ("end_claims", [("AND r.deadline NOT", "AND false AND r.deadline NOT")]),
        "memory": ("queues._chosen", [("if each.is_free(now)", "if not each.begun")]),
        "mysql": ("end_claims", [("AND r.deadline NOT", "AND FALSE AND r.deadline NOT")]),
    },
}  # fmt: skip


@proves("a queue loses nothing and hands out nothing twice at a time", guard="the token")
def test_without_the_token_an_event_is_handed_out_twice(
    db: ContractDatabase, own: Connection
) -> None:
    """Mutant: a claimed range counts as free."""
    mutated(db, MUTANTS["hidden"])
    filled(own, 1)
    receive(own)
    pass_time(own, -1000)  # no turn of the dealer, which would look further on
    assert queue.receive(own, QUEUE) != []


@proves("a queue loses nothing and hands out nothing twice at a time", guard="the deadline")
def test_without_the_expiry_it_never_comes_back(db: ContractDatabase, own: Connection) -> None:
    """Mutant: nobody looks at deadlines."""
    mutated(db, MUTANTS["expiry"])
    filled(own, 1)
    receive(own)
    pass_time(own, 1000)
    assert receive(own) == []


#: Suspects are handed out together.
TOGETHER = [
    {
        "postgres": ("claim_several", [
            ("ELSE f.deliveries < 2 AND f.leading < 2 END", "ELSE true END")]),
        "mysql": ("claim_ranges", [
            ("OR (given >= 2 AND claimed <> '')", ""),
            ("IF(given >= 2, 0, missing - events)", "missing - events")]),
    },
    {
        "postgres": ("claim_ranges", [("one.deliveries < 3", "true")]),
        "mysql": ("claim_ranges", [
            ("OR (given >= 2 AND claimed <> '')", ""),
            ("IF(given >= 2, 0, missing - events)", "missing - events")]),
    },
]  # fmt: skip


@proves("S16 in queues", guard="suspects come alone")
def test_without_the_alone_rule_neighbours_die_too(db: ContractDatabase, own: Connection) -> None:
    """Mutant: suspects are handed out together."""
    for change in TOGETHER:
        mutated(db, change)
    filled(own, 20, max_deliveries=4)
    for _ in range(60):
        found = receive(own, 10, visibility_seconds=5)
        if "7" in texts(found):
            pass_time(own, 5)
        else:
            acknowledge(own, found)
    assert len(dead_letters.dead_letters(own, QUEUE)) > 1


#: A turn that began a minute ago, and one without a bound on the rest after it.
SLOW_TURN = {
    "postgres": ("turn_queue", [(
        "begun timestamptz := clock_timestamp()",
        "begun timestamptz := clock_timestamp() - interval '1 minute'",
    )]),
    "mysql": ("turn_queue", [(
        "begun DATETIME(6) DEFAULT SYSDATE(6)",
        "begun DATETIME(6) DEFAULT SYSDATE(6) - INTERVAL 1 MINUTE",
    )]),
}  # fmt: skip
UNBOUNDED = {
    "postgres": ("rest_after", [("interval '5 seconds'", "interval '1 day'")]),
    "mysql": ("rest_after", [(", 5000000)", ", 86400000000)")]),
}
REST = {
    "postgres": "SELECT extract(epoch FROM max(rest_until) - clock_timestamp()) "
    "FROM penstock.queue_turns",
    "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MAX(rest_until)) / 1e6 "
    "FROM penstock.queue_turns",
}


def _rest_after_a_slow_turn(db: ContractDatabase, own: Connection) -> float:
    mutated(db, SLOW_TURN)
    filled(own, 1)
    receive(own)
    return float(rows(own, REST[database.dialect_of(own)])[0][0])


@proves("a queue keeps nothing back")
def test_a_slow_turn_keeps_nothing_back_for_long(db: ContractDatabase, own: Connection) -> None:
    """A turn that waited for a minute: what is due then comes within seconds."""
    assert 3 < _rest_after_a_slow_turn(db, own) <= 5


@proves("a queue keeps nothing back", guard="the bound of the rest")
@pytest.mark.long_on("mysql", "mariadb")
def test_without_the_bound_it_rests_for_long(db: ContractDatabase, own: Connection) -> None:
    """Mutant: twenty times as long as the turn took."""
    mutated(db, UNBOUNDED)
    assert _rest_after_a_slow_turn(db, own) > 1000
