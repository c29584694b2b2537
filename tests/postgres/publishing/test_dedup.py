"""While the log remembers a dedup key, exactly one event of the topic has it."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from penstock import Message, publish_batch, publish_once
from penstock.publishing.publish import publish
from tests.guards import without_guard
from tests.kit.log import (
    TOPIC,
    Connection,
    backend_pid,
    drain,
    open_transaction,
    texts,
    topic,
    value,
    wait_until,
    wait_until_blocked,
)
from tests.kit.proof import proves

PUBLISHERS = 16
KEYS = 24
ROUNDS = 4


def once(connection: Connection, key: str, payload: bytes = b"x") -> tuple[uuid.UUID, bool]:
    done = publish_once(connection, Message(TOPIC, payload, dedup_key=key))
    return done.event_id, done.duplicate


def turn(connection: Connection) -> bool:
    """A turn of the generations, as if the window had passed."""
    connection.execute("UPDATE penstock.dedup_turns SET turned_at = '-infinity'")
    return bool(value(connection, "SELECT penstock.turn_dedup()"))


def in_one_generation(connection: Connection) -> None:
    """Mutant: a key is kept in one generation instead of in both."""
    without_guard(
        connection,
        "claim_dedup_keys",
        "FROM in_even AS e ORDER BY",
        "FROM in_even AS e WHERE false ORDER BY",
    )
    without_guard(connection, "claim_dedup_keys", "JOIN in_odd AS o", "JOIN in_even AS o")


def test_plain_sql_tells_the_places(connection: Connection) -> None:
    topic(connection)
    earlier, _ = once(connection, "a")
    row = connection.execute(
        "SELECT published, duplicates, original_ids FROM penstock.publish_batch("
        " ARRAY[%(topic)s, %(topic)s], ARRAY['1', '2']::bytea[], NULL, NULL, NULL, NULL, NULL,"
        " NULL, dedup_keys => ARRAY['new', 'a'])",
        {"topic": TOPIC},
    ).fetchone()
    assert row == (1, [1], [earlier])


def test_an_invalid_duplicate_is_refused_all_the_same(connection: Connection) -> None:
    """Guard: with dedup keys every event is checked before a key is claimed."""
    topic(connection)
    once(connection, "a")
    with pytest.raises(psycopg.Error, match="event 1 for topic") as caught:
        connection.execute(
            "SELECT penstock.publish_batch("
            " ARRAY[%(topic)s, %(topic)s], ARRAY['1', NULL]::bytea[], NULL, NULL, NULL, NULL, NULL,"
            " NULL, dedup_keys => ARRAY['b', 'a'])",
            {"topic": TOPIC},
        )
    assert caught.value.sqlstate == "PS006"
    assert not once(connection, "b")[1]


def test_a_rolled_back_publish_frees_its_key(connection: Connection, database_url: str) -> None:
    """Guard: the key is an insert of the same transaction, savepoints included."""
    topic(connection)
    with open_transaction(database_url) as undone:
        once(undone, "a")
        undone.rollback()
    with open_transaction(database_url) as outer:
        with pytest.raises(ZeroDivisionError), outer.transaction():
            once(outer, "a")
            raise ZeroDivisionError
        assert not once(outer, "a")[1]
        assert once(outer, "a")[1], "a transaction sees its own"
        outer.commit()
    assert once(connection, "a")[1]
    assert drain(connection) == 1


@proves("F12")
def test_at_repeatable_read_the_databases_own_error_comes(
    connection: Connection, database_url: str
) -> None:
    """Guard: a claim that the snapshot cannot see is never taken for none."""
    topic(connection)
    with open_transaction(database_url) as old:
        old.execute("COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        once(connection, "a")
        with pytest.raises(psycopg.errors.SerializationFailure):
            once(old, "a")
    assert drain(connection) == 1


def _lives(connection: Connection) -> list[bool]:
    """Whether a key is new: at first, and after each of three turns."""
    topic(connection)
    found = [once(connection, "a")[1]]
    for _ in range(3):
        assert turn(connection)
        found.append(once(connection, "a")[1])
    return [not duplicate for duplicate in found]


def test_a_key_lives_for_one_to_two_windows(connection: Connection) -> None:
    """Guard: a key stands in both generations, and a duplicate does not prolong its life."""
    assert _lives(connection) == [True, False, True, False]


def test_in_one_generation_a_key_can_die_at_once(connection: Connection) -> None:
    """Mutant: see `in_one_generation`."""
    in_one_generation(connection)
    first = _lives(connection)
    assert first[1] or first[2:] != [True, False]


def test_turns_come_once_in_a_window(connection: Connection) -> None:
    """Guard: the time of the last turn."""
    assert not value(connection, "SELECT penstock.turn_dedup()")
    assert turn(connection)
    assert not value(connection, "SELECT penstock.turn_dedup()")
    connection.execute("SELECT penstock.set_setting('dedup_window_seconds', 1)")
    wait_until(lambda: value(connection, "SELECT penstock.turn_dedup()"), "a second has passed")


def test_a_turn_waits_for_nobody_and_comes_later(connection: Connection, database_url: str) -> None:
    """Guard: lock_timeout of turn_dedup; what an open publisher claimed is emptied by no turn."""
    topic(connection)
    with (
        ThreadPoolExecutor(1) as pool,
        open_transaction(database_url) as publisher,
        psycopg.connect(database_url, autocommit=True) as second,
    ):
        own, _ = once(publisher, "a")
        begun = time.monotonic()
        assert not turn(connection)
        assert time.monotonic() - begun < 5, "it waits for 100 ms"
        waiting = pool.submit(once, second, "a")
        wait_until_blocked(connection, backend_pid(second))
        assert not turn(connection)
        publisher.commit()
        assert waiting.result(20) == (own, True)
    assert turn(connection)
    assert once(connection, "a") == (own, True)
    assert drain(connection) == 1


def test_publishers_wait_for_a_turn_shortly(connection: Connection, database_url: str) -> None:
    """Guard: lock_timeout of turn_dedup, seen from those that queue behind it."""
    topic(connection)
    with (
        ThreadPoolExecutor(1) as pool,
        open_transaction(database_url) as publisher,
        psycopg.connect(database_url, autocommit=True) as turner,
    ):
        once(publisher, "a")
        turning = pool.submit(turn, turner)
        slowest = 0.0
        while not turning.done():
            begun = time.monotonic()
            once(connection, str(begun))
            slowest = max(slowest, time.monotonic() - begun)
        assert not turning.result()
    assert slowest < 5, "the turn gave way; with no limit this publisher would wait for ever"


def _publishers(connection: Connection, url: str, seed: int) -> Counter[str]:
    """How many events each key got: 16 publishers, some roll back, on both sides of each turn."""
    half_done = threading.Semaphore(0)

    def work(number: int, turned: int) -> list[tuple[str, uuid.UUID]]:
        choose = random.Random(f"{seed} {number} {turned}")
        keys = [f"{turned}/{n}" for n in range(KEYS)]
        choose.shuffle(keys)
        answers: list[tuple[str, uuid.UUID]] = []
        with psycopg.connect(url) as own:
            while keys:
                taken = [keys.pop() for _ in range(min(len(keys), choose.choice((1, 1, 3))))]
                messages = [Message(TOPIC, key.encode(), dedup_key=key) for key in taken]
                if choose.random() < 0.3:
                    publish_batch(own, messages)
                    own.rollback()
                answers += zip(taken, publish_batch(own, messages), strict=True)
                own.commit()
                for _ in taken:
                    half_done.release()
        return answers

    def turn_between() -> None:
        for _ in range(PUBLISHERS * KEYS // 2):
            half_done.acquire()
        with psycopg.connect(url, autocommit=True) as turner:
            wait_until(lambda: turn(turner), "a turn among publishers")
        for _ in range(PUBLISHERS * KEYS // 2):
            half_done.acquire()

    told: list[tuple[str, uuid.UUID]] = []
    with ThreadPoolExecutor(PUBLISHERS + 1) as pool:
        for turned in range(ROUNDS):
            turning = pool.submit(turn_between)
            running = [pool.submit(work, number, turned) for number in range(PUBLISHERS)]
            told += [answer for each in running for answer in each.result(100)]
            turning.result(100)
    rows = connection.execute("SELECT payload, event_id FROM penstock.events").fetchall()
    assert {(bytes(payload).decode(), event_id) for payload, event_id in rows} >= set(told)
    return Counter(bytes(payload).decode() for payload, _ in rows)


def test_sixteen_publishers_on_both_sides_of_turns(
    connection: Connection, database_url: str
) -> None:
    """Guard: both generations; each id that was returned is that of the one event."""
    topic(connection, 4)
    counted = _publishers(connection, database_url, 4)
    assert counted == {f"{turned}/{n}": 1 for turned in range(ROUNDS) for n in range(KEYS)}


def test_with_one_generation_keys_come_twice(connection: Connection, database_url: str) -> None:
    """Mutant: see `in_one_generation`."""
    topic(connection, 4)
    in_one_generation(connection)
    assert max(_publishers(connection, database_url, 4).values()) > 1


def _crosswise(connection: Connection, url: str, attempts: int) -> bool:
    """Two batches with the same keys in opposite order: whether the database saw a deadlock."""

    def batch(own: Connection, keys: list[str]) -> bool:
        try:
            publish_batch(own, [Message(TOPIC, b"x", dedup_key=key) for key in keys])
        except psycopg.errors.DeadlockDetected:
            return True
        finally:
            own.rollback()
        return False

    with ThreadPoolExecutor(2) as pool, psycopg.connect(url) as one, psycopg.connect(url) as two:
        for _ in range(attempts):
            with open_transaction(url) as holder:
                once(holder, "a")
                done = [pool.submit(batch, one, ["b", "a"]), pool.submit(batch, two, ["a", "b"])]
                for each in (one, two):
                    wait_until_blocked(connection, backend_pid(each))
                holder.rollback()
            if sum(each.result(30) for each in done):
                return True
    return False


def test_batches_never_wait_for_each_other_crosswise(
    connection: Connection, database_url: str
) -> None:
    """Guard: keys are claimed in sorted order."""
    topic(connection)
    assert not _crosswise(connection, database_url, 5)


def test_in_the_order_of_the_batch_they_do(connection: Connection, database_url: str) -> None:
    """Mutant: keys are claimed in the order in which they were given."""
    topic(connection)
    without_guard(
        connection,
        "claim_dedup_keys",
        "ORDER BY f.topic_id, f.key\n        ON CONFLICT",
        "ORDER BY f.place\n        ON CONFLICT",
    )
    assert _crosswise(connection, database_url, 30)


def _lost_after_commit(lost: Connection) -> None:
    lost.pgconn.send_query(b"COMMIT")
    lost.pgconn.flush()


def _lost_before_commit(lost: Connection) -> None:
    pass


@pytest.mark.parametrize("outcome", [_lost_after_commit, _lost_before_commit])
def test_a_retry_after_an_unknown_outcome(
    connection: Connection, database_url: str, outcome: Callable[[Connection], None]
) -> None:
    """F9. Guard: the dedup key; nobody can say whether the lost transaction was committed."""
    topic(connection)
    lost = psycopg.connect(database_url)
    publish(lost, TOPIC, b"order 7", dedup_key="order 7")
    pid = backend_pid(lost)
    outcome(lost)
    lost.close()
    gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
    wait_until(lambda: value(connection, gone, pid), "the server has noticed")
    publish(connection, TOPIC, b"order 7", dedup_key="order 7")
    publish(connection, TOPIC, b"order 7", dedup_key="order 7")
    drain(connection)
    assert texts(connection) == ["order 7"]
