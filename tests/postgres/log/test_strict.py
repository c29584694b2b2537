"""Strict publishers: events of one key come in the order in which their transactions commit."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import penstock
from penstock import Message, publish_batch
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

Way = Callable[[Connection, str, str | None], None]


def one(connection: Connection, text: str, key: str | None = "k") -> None:
    publish(connection, TOPIC, text.encode(), key=key, strict=True)


def in_batch(connection: Connection, text: str, key: str | None = "k") -> None:
    publish_batch(connection, [Message(TOPIC, text.encode(), key=key)], strict=True)


def _is_blocked(connection: Connection, pid: int) -> bool:
    return bool(value(connection, "SELECT cardinality(pg_blocking_pids(%s)) > 0", pid))


def _two(
    connection: Connection, url: str, way: Way, key: str | None
) -> tuple[list[str], list[str]]:
    """Two transactions publish one after the other, and the second tries to commit first.

    Answers the order of their commits and that of the log.
    """
    topic(connection)
    commits: list[str] = []
    with (
        ThreadPoolExecutor(1) as pool,
        open_transaction(url) as first,
        open_transaction(url) as second,
    ):

        def publish_and_commit() -> None:
            way(second, "second", key)
            second.commit()
            commits.append("second")

        way(first, "first", key)
        running = pool.submit(publish_and_commit)
        pid = backend_pid(second)
        wait_until(lambda: running.done() or _is_blocked(connection, pid), "it waits or is done")
        commits.append("first")  # from here on the second can follow
        first.commit()
        running.result(20)
    drain(connection)
    return commits, texts(connection)


@pytest.mark.parametrize("way", [one, in_batch])
@pytest.mark.parametrize("key", ["k", "", None])
def test_the_log_has_the_order_of_commits(
    connection: Connection, database_url: str, way: Way, key: str | None
) -> None:
    """Guard: lock_strictly, taken before the event gets its id."""
    commits, found = _two(connection, database_url, way, key)
    assert commits == found == ["first", "second"]


@proves("S6", guard="strict order")
def test_without_the_lock_it_has_not(connection: Connection, database_url: str) -> None:
    """Mutant: nobody waits."""
    without_guard(connection, "lock_strictly", "t.address = g.topic", "false")
    commits, found = _two(connection, database_url, one, "k")
    assert commits == ["second", "first"]
    assert found == ["first", "second"]


def _bucket(key: str) -> int:
    return zlib.crc32(key.encode()) % 16_384


def test_other_keys_and_plain_publishers_wait_for_nobody(
    connection: Connection, database_url: str
) -> None:
    """Guard: a lock for each key, and none for who did not ask for order."""
    topic(connection)
    assert _bucket("a") != _bucket("b")
    with open_transaction(database_url) as first:
        one(first, "a", "a")
        connection.execute("SET lock_timeout = '5s'")
        one(connection, "b", "b")
        one(connection, "none", None)
        publish(connection, TOPIC, b"plain", key="a")
        assert drain(connection) == 3
        first.commit()
    assert drain(connection) == 1
    assert texts(connection) == ["b", "none", "plain", "a"]


def _others_beside_all_keys(connection: Connection, database_url: str) -> None:
    """Publish to a topic while an open transaction holds many keys of another."""
    topic(connection)
    topic(connection, name="tests/theirs")
    with open_transaction(database_url) as first:
        held = [Message("tests/theirs", b"x", key=key) for key in ["", *"abcdefgh"]]
        publish_batch(first, held, strict=True)
        connection.execute("SET lock_timeout = '1s'")
        for key in ("a", "h", None):
            one(connection, "ours", key)


@proves("S22", how="nor by its strict publishers")
def test_nobody_waits_for_publishers_of_another_topic(
    connection: Connection, database_url: str
) -> None:
    """Guard: lock_strictly, a topic has its own locks.  Else a tenant could take them all."""
    _others_beside_all_keys(connection, database_url)


@proves("S22", guard="one lock for each topic")
def test_with_shared_locks_they_wait(connection: Connection, database_url: str) -> None:
    """Mutant: the locks of all topics are the same."""
    without_guard(connection, "lock_strictly", "DISTINCT t.id,", "DISTINCT t.id - t.id,")
    without_guard(connection, "lock_strictly", "ORDER BY t.id, bucket", "ORDER BY 1, 2")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        _others_beside_all_keys(connection, database_url)


def test_a_deleted_topic_leaves_the_locks_of_its_publishers(
    connection: Connection, database_url: str
) -> None:
    """Guard: drop_topics skips what somebody holds, and waits for nobody."""
    topic(connection)
    one(connection, "done", "a")
    with open_transaction(database_url) as first:
        one(first, "open", "a")
        one(connection, "done", "b")
        connection.execute("SET lock_timeout = '1s'")
        penstock.delete_topic(connection, TOPIC)
        first.commit()
    assert value(connection, "SELECT count(*) FROM penstock.strict_locks") == 1


def test_a_waiting_publisher_goes_on_after_a_rollback(
    connection: Connection, database_url: str
) -> None:
    """Guard: the lock ends with its transaction, and with its savepoint."""
    topic(connection)
    with (
        ThreadPoolExecutor(1) as pool,
        open_transaction(database_url) as undone,
        psycopg.connect(database_url, autocommit=True) as second,
    ):
        undone.execute("SAVEPOINT a")
        one(undone, "undone")
        waiting = pool.submit(one, second, "second")
        wait_until_blocked(connection, backend_pid(second))
        undone.execute("ROLLBACK TO SAVEPOINT a")
        waiting.result(20)
    drain(connection)
    assert texts(connection) == ["second"]


def test_batches_with_keys_in_any_order_never_deadlock(
    connection: Connection, database_url: str
) -> None:
    """Guard: buckets are locked in sorted order; each key's numbers come as they were drawn.

    Each transaction draws its numbers while it holds the locks of its keys, so the order of the
    numbers is that of the commits.
    """
    topic(connection)
    connection.execute("CREATE SEQUENCE drawn")

    def work(number: int) -> None:
        choose = random.Random(f"strict {number}")
        with psycopg.connect(database_url) as own:
            for _ in range(15):
                keys = choose.sample("abcdef", 4)
                marks = [Message(TOPIC, b"", key=key, type="lock") for key in keys]
                publish_batch(own, marks, strict=True)
                numbers = [value(own, "SELECT nextval('drawn')") for _ in keys]
                given = zip(keys, numbers, strict=True)
                messages = [Message(TOPIC, b"%d" % drawn, key=key) for key, drawn in given]
                publish_batch(own, messages, strict=True)
                own.commit()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result(100)
    drain(connection)
    rows = connection.execute(
        "SELECT e.key, array_agg(convert_from(e.payload, 'UTF8')::int ORDER BY i.place)"
        " FROM (SELECT i.id, row_number() OVER (ORDER BY c.first_sequence, i.n) AS place"
        "  FROM penstock.chunks AS c, unnest(c.event_ids) WITH ORDINALITY AS i (id, n)) AS i"
        " JOIN penstock.events AS e ON e.id = i.id WHERE e.type = '' GROUP BY e.key"
    ).fetchall()
    assert sum(len(numbers) for _, numbers in rows) == 8 * 15 * 4
    for key, numbers in rows:
        assert numbers == sorted(numbers), key
