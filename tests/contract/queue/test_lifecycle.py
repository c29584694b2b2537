"""A queue beside the rest of the house: its life, its topic's life, rights, retention, storage."""

from __future__ import annotations

import threading
from contextlib import closing, suppress

import psycopg
import pytest

from penstock import database, subscriptions
from penstock.errors import (
    LogBehind,
    StaleReceipt,
    SubscriptionNotFound,
    WrongMode,
)
from penstock.log import histories
from penstock.subscriptions import dead_letters, queue, stream
from penstock.topics import names, rights
from tests.contract.databases import ContractDatabase
from tests.contract.tenants import as_login, tenants_of
from tests.kit.log import Connection, drain, part, put, topic, value
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
    position,
    receipts,
    receive,
    rows,
    texts,
)

#: Sets the counter of ranges: the next id.
NEXT_ID = {
    "postgres": "SELECT setval('penstock.queue_ranges_id', %(id)s, false)",
    "mysql": "ALTER TABLE penstock.queue_ranges AUTO_INCREMENT = %(id)s",
}


def test_its_size_is_exact(own: Connection) -> None:
    """C-T8, C-F16: what is published, handed out, waits, is finished and dies."""
    filled(own, 10, max_failures=1)
    held = receive(own, 4)
    assert queue.statistics(own, QUEUE) == queue.QueueStatistics(10, 6, 4, 0, 0)
    acknowledge(own, held[:1])
    queue.reject(own, QUEUE, [held[1].receipt])
    queue.configure(own, QUEUE, max_failures=5)
    queue.reject(own, QUEUE, [held[2].receipt], delay_seconds=100)
    assert queue.statistics(own, QUEUE) == queue.QueueStatistics(8, 6, 1, 1, 1)
    more(own, 2, start=11)
    assert queue.statistics(own, QUEUE).size == 10


def test_a_name_keeps_its_mode_and_can_be_used_again(own: Connection) -> None:
    """C-T8: twice the same name; deleted and made again; the old receipts are good no longer."""
    filled(own, 3)
    assert queue.subscribe(own, QUEUE, [TOPIC]) == 0
    with pytest.raises(WrongMode):
        stream.subscribe(own, QUEUE, [TOPIC])
    (old,) = receive(own)
    queue.reject(own, QUEUE, receipts(receive(own)))
    stream.unsubscribe(own, QUEUE)
    for table in ("queue_ranges", "queue_waiting", "queues"):
        assert count(own, table) == 0
    with pytest.raises(SubscriptionNotFound):
        queue.statistics(own, QUEUE)
    queue.subscribe(own, QUEUE, [TOPIC])
    assert texts(receive(own, 3)) == ["1", "2", "3"]
    with pytest.raises(StaleReceipt):
        acknowledge(own, [old])


def test_makers_and_deleters_at_once_leave_at_most_one(
    db: ContractDatabase, own: Connection
) -> None:
    """C-T8: parallel create and delete."""
    topic(own, name=TOPIC)

    def work() -> None:
        with closing(db.connect()) as mine:
            for _ in range(10):
                queue.subscribe(mine, QUEUE, [TOPIC])
                with suppress(SubscriptionNotFound):
                    stream.unsubscribe(mine, QUEUE)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    queue.subscribe(own, QUEUE, [TOPIC])
    assert count(own, "queues") == 1
    assert count(own, "subscriptions") == 1


def test_calls_of_the_other_mode_are_refused(own: Connection) -> None:
    """Guards: require_stream and require_queue."""
    filled(own, 2)
    stream.subscribe(own, "a stream", [TOPIC])
    (held,) = receive(own)
    for call in (
        lambda: stream.join(own, QUEUE, "one"),
        lambda: stream.seek(own, QUEUE, TOPIC, 0, "latest"),
        lambda: stream.reset(own, QUEUE, "latest"),
        lambda: queue.receive(own, "a stream"),
        lambda: queue.purge(own, "a stream"),
        lambda: queue.subscribe(own, "a stream", [TOPIC]),
    ):
        with pytest.raises(WrongMode):
            call()
    acknowledge(own, [held])


@proves("D9 of queues")
def test_the_position_is_before_the_lowest_unfinished(own: Connection) -> None:
    """Retention, seal and clean take it for a stream's; what waits for a retry does not hold it."""
    filled(own, 10)
    held = receive(own, 6)
    acknowledge(own, [held[0], *held[2:]])
    receive(own, 1, visibility_seconds=10)
    assert position(own) == 1
    lowest = "SELECT subscription, position FROM penstock.lowest_position(%(part)s, NULL)"
    if database.dialect_of(own) == "postgres":
        database.execute(own, "SET search_path TO penstock")
        binds = {"part": part(own, name=TOPIC)}
        assert database.execute(own, lowest, binds) == [(QUEUE, 1)]
    queue.reject(own, QUEUE, [held[1].receipt], delay_seconds=10_000)
    pass_time(own, 20)
    acknowledge(own, receive(own, 4))
    assert receive(own) == []
    assert position(own) == 10
    pass_time(own, 10_000)
    assert texts(receive(own)) == ["2"]


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_what_is_finished_can_be_dropped(own: Connection) -> None:
    """The slices of its tables go; one with an unfinished range stays.  InnoDB needs no slices."""
    filled(own, 3)
    unneeded = "SELECT count(*) FROM penstock.unneeded_slices() WHERE parent = 'queue_ranges'"
    own.execute("SELECT setval('penstock.queue_ranges_id', 150000)")
    held = receive(own, 3)
    own.execute("SELECT setval('penstock.queue_ranges_id', 900000)")
    assert value(own, unneeded) == 1, "the first one, below the open claim"
    acknowledge(own, held)
    assert value(own, unneeded) >= 2


def test_a_claim_that_is_held_for_long_moves_on(own: Connection) -> None:
    """Its receipts stay good: the window and its slices do not wait for it."""
    filled(own, 4)
    held = receive(own, 2, visibility_seconds=40_000)
    acknowledge(own, held[:1])
    database.execute(own, NEXT_ID[database.dialect_of(own)], {"id": 20_001 + held[0].receipt.claim})
    for _ in range(3):
        queue.release(own, QUEUE, receipts(receive(own)))
        receive(own, visibility_seconds=0.0)
    assert rows(own, "SELECT min(id) FROM penstock.queue_ranges")[0][0] > 20_000
    acknowledge(own, held[1:])
    pass_time(own, 100)
    assert sorted(texts(receive(own, 2)) + texts(receive(own, 2))) == ["3", "4"]


def test_resize_rename_and_delete_with_open_claims(own: Connection) -> None:
    filled(own, 4)
    other = topic(own, name="tests/other")
    queue.subscribe(own, QUEUE, [other])
    held = receive(own, 2)
    names.resize_topic(own, TOPIC, 3)
    more(own, 2, partitions=3, start=5)
    renamed = names.rename_topic(own, TOPIC, "letters")
    acknowledge(own, held[:1])
    found = receive(own, 20)
    while again := receive(own, 20):
        found += again
    assert len(found) == 8
    assert {each.event.topic for each in found} == {renamed}
    put(own, "stays", name=other)
    drain(own)
    names.delete_topic(own, renamed, with_subscriptions=True)
    with pytest.raises(StaleReceipt):
        acknowledge(own, held[1:])
    assert texts(receive(own, 5)) == ["stays"]


def _lost_and_published(db: ContractDatabase, own: Connection) -> list[str]:
    """What a queue hands out of a new history, whose events have sequences that it had dealt."""
    filled(own, 3)
    more(own, 3, start=4)
    held = receive(own, 5)
    db.run("DELETE FROM penstock.chunks WHERE first_sequence = 4")
    db.run("DELETE FROM penstock.events WHERE payload IN ('4', '5', '6')")
    histories.reconcile(own, "the last commits were lost")
    more(own, 3, start=7)
    with pytest.raises(StaleReceipt):
        acknowledge(own, held[3:4])
    acknowledge(own, held[:3])
    pass_time(own, 100)
    return sorted(text for _ in range(4) for text in texts(receive(own, 5)))


@proves("D3 in queues")
def test_a_restore_with_open_claims_loses_no_later_event(
    db: ContractDatabase, own: Connection
) -> None:
    """Claims on what is still there stay; those beyond the end of the log end."""
    assert _lost_and_published(db, own) == ["7", "8", "9"]


@proves("D3 in queues", guard="cut_back")
def test_without_the_cut_old_claims_take_new_events(db: ContractDatabase, own: Connection) -> None:
    """Mutant: ranges beyond the log stay; a receipt for a lost event finishes another one."""
    mutated(
        db,
        {
            "postgres": ("open_history", [("PERFORM cut_back(", "PERFORM concat(")]),
            "mysql": ("bring_back", [("CALL cut_back(owner_id, part_id, watermark)", "DO 0")]),
        },
    )
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        assert _lost_and_published(db, own) == ["7", "8", "9"]


def _erased(own: Connection) -> list[bytes]:
    """What a queue with a rejected and a changed event hands out after an erasure of both."""
    for key in ("k", "k", "other"):
        put(own, "secret", key=key, name=TOPIC)
    drain(own)
    held = receive(own, 3)
    queue.reject(own, QUEUE, [held[0].receipt], reason="secret", delay_seconds=10)
    (changed,) = queue.extend(own, QUEUE, [held[1].receipt], 100, body=b"a secret too")
    begun = database.call(
        own, "begin_erasure", topic=TOPIC, event_id=None, key="k", reason="why", replace_key=False
    )
    erasure = begun[0][0]
    done = database.call(
        own, "erase_events", erasure=erasure, partition=0, sequences=[1, 2], old_checksum=None,
        checksum=None,
    )  # fmt: skip
    assert done[0][0] == 2
    letters = [
        int(database.call(own, "erase_letters", erasure=erasure, key="k", max_rows=10)[0][0])
        for _ in range(2)
    ]
    assert letters == [2, 0]
    queue.extend(own, QUEUE, [changed], 0)
    pass_time(own, 20)
    found = sorted(
        (each for _ in range(3) for each in receive(own, 3)), key=lambda each: each.event.sequence
    )
    acknowledge(own, found)
    queue.acknowledge(own, QUEUE, [held[2].receipt])
    return [each.event.payload for each in found]


@proves("an erasure in queues and dead letters")
def test_an_erasure_reaches_what_waits_and_what_has_a_body(own: Connection) -> None:
    """While claims are open, whose receipts stay good.  The log is as for any reader."""
    filled(own, 0)
    assert _erased(own) == [b"", b""]


@proves("an erasure in queues and dead letters", guard="erase_copies")
def test_without_it_the_secret_comes_again(db: ContractDatabase, own: Connection) -> None:
    """Mutant: erase_letters leaves out what queues have copied."""
    mutated(
        db,
        {
            "postgres": ("erase_copies", [("LIMIT max_rows", "LIMIT 0")]),
            "mysql": ("erase_copies", [("LIMIT 10000", "LIMIT 0")]),
        },
    )
    filled(own, 0)
    with pytest.raises(AssertionError):
        _erased(own)


@proves("D5 of purges")
@pytest.mark.mariadb_differs("what calls purge there")
def test_a_purge_leaves_a_record_and_the_dead_letters(own: Connection) -> None:
    filled(own, 10, max_failures=1)
    held = receive(own, 3)
    queue.reject(own, QUEUE, [held[0].receipt])
    assert queue.purge(own, QUEUE) == 9
    with pytest.raises(StaleReceipt):
        acknowledge(own, held[1:])
    assert receive(own) == []
    assert position(own) == 10
    assert len(dead_letters.dead_letters(own, QUEUE)) == 1
    purged = "SELECT first_sequence, last_sequence FROM penstock.queue_purges"
    assert rows(own, purged) == [(1, 10)]
    more(own, 1, start=11)
    assert texts(receive(own)) == ["11"]


def test_it_is_exact_while_events_move(db: ContractDatabase, own: Connection) -> None:
    """Guard: all counts are of one moment."""
    filled(own, 20, max_deliveries=1000, max_failures=1000, first_backoff_seconds=0)
    done = threading.Event()

    def work() -> None:
        with closing(db.connect()) as mine:
            while not done.is_set():
                held = receipts(queue.receive(mine, QUEUE, 5))
                queue.reject(mine, QUEUE, held[:3], delay_seconds=0)
                queue.release(mine, QUEUE, held[3:])

    workers = [threading.Thread(target=work) for _ in range(2)]
    for each in workers:
        each.start()
    sizes = {queue.statistics(own, QUEUE).size for _ in range(200)}
    done.set()
    for each in workers:
        each.join()
    assert sizes == {20}


def _purged_copies(own: Connection) -> list[tuple[int, int]]:
    """What a purge records of events that wait for a retry, which the position has passed."""
    filled(own, 5)
    held = receipts(receive(own, 5))
    queue.reject(own, QUEUE, [held[1], held[2], held[4]], delay_seconds=1000)
    queue.acknowledge(own, QUEUE, [held[0], held[3]])
    assert (receive(own), position(own), queue.purge(own, QUEUE)) == ([], 5, 3)
    return [
        (int(first), int(last))
        for first, last in rows(
            own, "SELECT first_sequence, last_sequence FROM penstock.queue_purges ORDER BY 1"
        )
    ]


@proves("D5 of purges")
def test_a_purge_records_what_waits(own: Connection) -> None:
    """D5: no event is skipped without a row."""
    assert _purged_copies(own) == [(2, 3), (5, 5)]


@proves("D5 of purges", guard="record_copies")
@pytest.mark.long_on("mysql", "mariadb")
def test_without_the_record_nobody_knows(db: ContractDatabase, own: Connection) -> None:
    """Mutant: only what the position has not passed is recorded."""
    mutated(db, {
        "postgres": ("purge", [("PERFORM record_copies(queue.subscription_id);", "")]),
        "mysql": ("purge", [("CALL record_copies(owner_id);", "")]),
    })  # fmt: skip
    assert _purged_copies(own) == []


def test_a_look_hands_nothing_out(own: Connection) -> None:
    filled(own, 5)
    held = receive(own, 2, visibility_seconds=1000)
    queue.reject(own, QUEUE, [held[0].receipt], delay_seconds=1000)
    seen = [(each.event.sequence, each.state) for each in queue.peek(own, QUEUE, 4)]
    assert seen == [(1, "delayed"), (2, "in_flight"), (3, "ready"), (4, "ready")]
    assert texts(receive(own, 5)) == ["3", "4", "5"]


def test_a_look_finds_what_came_back(own: Connection) -> None:
    """However many others are in the window before it.  Guard: the claims of copies in peek."""
    filled(own, 15)
    held = [receive(own)[0] for _ in range(15)]
    queue.reject(own, QUEUE, [held[0].receipt], delay_seconds=0)
    assert texts(receive(own)) == ["1"]
    looked = queue.peek(own, QUEUE, 10)
    assert [(each.event.sequence, each.state) for each in looked] == [
        (number, "in_flight") for number in range(1, 11)
    ]
    assert [each.deliveries for each in looked] == [2] + 9 * [1]


def test_a_stream_and_a_queue_read_one_topic(own: Connection) -> None:
    filled(own, 5)
    stream.subscribe(own, "bank", [TOPIC])
    acknowledge(own, receive(own, 5))
    member = stream.join(own, "bank", "one")
    leases = stream.check_in(own, member)
    ((_, events),) = stream.poll(own, member, leases, 10)
    assert len(events) == 5
    assert {each.subscription for each in subscriptions.lag(own)} == {"bank", QUEUE}


def test_rights_are_given_one_by_one(db: ContractDatabase, own: Connection) -> None:
    """Guard: has_right in require_queue, by the verb of each call."""
    filled(own, 5)
    with tenants_of(db) as tenants:
        tenants.install()
        login = {verb: tenants.login("consumer") for verb in ("receive", "acknowledge", "peek")}
        for verb, each in login.items():
            rights.grant_namespace(own, "tests", each, verb)
        with as_login(tenants, login["receive"]) as mine:
            (held,) = queue.receive(mine, QUEUE)
            for call in (
                lambda: queue.acknowledge(mine, QUEUE, [held.receipt]),
                lambda: queue.peek(mine, QUEUE),
            ):
                with pytest.raises(SubscriptionNotFound):
                    call()
        with as_login(tenants, login["peek"]) as mine:
            assert queue.peek(mine, QUEUE, 1)[0].state == "in_flight"
            with pytest.raises(SubscriptionNotFound):
                queue.receive(mine, QUEUE)
            with pytest.raises(SubscriptionNotFound):
                queue.purge(mine, QUEUE)
        with as_login(tenants, login["acknowledge"]) as mine:
            with pytest.raises(SubscriptionNotFound):
                queue.receive(mine, QUEUE)
            queue.acknowledge(mine, QUEUE, [held.receipt])


@proves("counters of queues")
def test_a_counter_that_was_set_back_stops_the_dealer(own: Connection) -> None:
    """Guard: what is dealt below the first free range would never be found."""
    filled(own, 3)
    acknowledge(own, receive(own, 3))
    database.execute(own, NEXT_ID[database.dialect_of(own)], {"id": 1})
    more(own, 3, start=4)
    pass_time(own, 1)
    with pytest.raises(LogBehind):
        queue.receive(own, QUEUE)


@proves("counters of queues", guard="note_range_ids")
@pytest.mark.parametrize("db", ["mysql", "mariadb"], indirect=True)
def test_without_the_check_of_mysql_events_are_lost(db: ContractDatabase, own: Connection) -> None:
    """Mutant: the same on MySQL, where a counter goes back only while its table is empty."""
    db.without_guard("note_range_ids", "IF LAST_INSERT_ID() <= last_id THEN", "IF FALSE THEN")
    filled(own, 3)
    acknowledge(own, receive(own, 3))
    database.execute(own, NEXT_ID["mysql"], {"id": 1})
    more(own, 3, start=4)
    assert [receive(own, 3) for _ in range(3)] == [[], [], []]


@proves("counters of queues", guard="turn_queue")
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_without_the_check_events_are_lost(db: ContractDatabase, own: Connection) -> None:
    """Mutant: the counter is not compared."""
    db.without_guard("turn_queue", "IF before < last.last_id THEN", "IF false THEN")
    filled(own, 300)
    for _ in range(20):
        acknowledge(own, receive(own, 1))
    own.execute("SELECT setval('penstock.queue_ranges_id', 1, false)")
    more(own, 5, start=301)
    with pytest.raises((AssertionError, psycopg.errors.UniqueViolation)):
        found = [receive(own, 1) for _ in range(285)]
        assert all(found)


@proves("D9 of queues", guard="the window in move_floors")
def test_without_the_window_the_position_passes_open_claims(
    db: ContractDatabase, own: Connection
) -> None:
    """Mutant: the position follows what was dealt."""
    mine = {"postgres": "queue.subscription_id", "mysql": "owner_id"}
    guard = {dialect: f"WHERE r.subscription_id = {owner}" for dialect, owner in mine.items()}
    mutated(db, {each: ("move_floors", [(text, "WHERE false")]) for each, text in guard.items()})
    filled(own, 3)
    receive(own, 3)
    receive(own)
    assert position(own) == 3


def test_three_pointers(own: Connection) -> None:
    """CassieQ's: what comes next, the lowest unfinished, the lowest that is hidden (C-F3)."""
    filled(own, 300)
    assert queue.pointers(own, QUEUE) == [queue.QueuePointers(TOPIC, 0, 1, 1, None, 0)]
    (first, second, third) = receive(own, 3)
    acknowledge(own, [first, third])
    (found,) = queue.pointers(own, QUEUE)
    assert (found.repair, found.invisibility) == (2, 2)
    assert 4 <= found.reader <= 301, "ranges are dealt ahead"
    queue.reject(own, QUEUE, [second.receipt], delay_seconds=1000)
    (found,) = queue.pointers(own, QUEUE)
    assert (found.repair, found.invisibility) == (4, 2), "its copy holds nothing"
    while held := receive(own, 100):
        acknowledge(own, held)
    assert queue.pointers(own, QUEUE) == [queue.QueuePointers(TOPIC, 0, 301, 301, 2, 0)]
