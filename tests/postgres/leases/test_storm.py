"""Sixteen sessions use every call of the lease protocol at once: no deadlock, nothing broken."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from penstock import database
from penstock.database import calls
from penstock.errors import PenstockError, SubscriptionNotFound, UnknownConsumer
from penstock.records import Lease
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from tests.guards import without_guard
from tests.kit.log import Connection, backend_pid, open_transaction, wait_until_blocked
from tests.kit.stream import STREAM, SUBSCRIPTION, filled, more, short_leases

THREADS = 16
PARTITIONS = 8

TWO_HOLDERS = """
    SELECT partition_id, lease_epoch FROM penstock.lease_history
    WHERE change = 'acquired'
    GROUP BY partition_id, lease_epoch HAVING count(*) > 1
"""
#: Committed under an epoch after a later epoch had committed, or moved back within one.
WENT_BACK = """
    SELECT p.* FROM (
        SELECT q.*, lag(q.lease_epoch) OVER w AS epoch_before, lag(q.position) OVER w AS before
        FROM penstock.positions AS q
        WINDOW w AS (PARTITION BY q.subscription_id, q.partition_id ORDER BY q.id)
    ) AS p
    WHERE p.reason = 'commit' AND (p.lease_epoch < p.epoch_before OR p.position <= p.before)
"""
#: Acquired by one consumer while another one had not lost it, by the order of the history.
OVERLAPPING = """
    SELECT h.* FROM (
        SELECT g.*, lag(g.change) OVER w AS change_before, lag(g.lease_epoch) OVER w AS epoch_before
        FROM penstock.lease_history AS g
        WINDOW w AS (PARTITION BY g.subscription_id, g.partition_id ORDER BY g.id)
    ) AS h
    WHERE h.change = 'acquired'
      AND (h.change_before NOT IN ('released', 'expired', 'seek')
           OR h.lease_epoch <= h.epoch_before)
"""
ORPHANED = """
    SELECT l.* FROM penstock.leases AS l
    WHERE l.holder IS NOT NULL AND NOT EXISTS (
        SELECT FROM penstock.consumers AS c
        WHERE c.subscription_id = l.subscription_id AND c.id = l.holder)
"""


class Rider:
    """One session that calls at random; refusals are what the protocol promises."""

    def __init__(self, url: str, number: int, seed: int) -> None:
        self.rng = random.Random(seed * 1000 + number)
        self.url = url
        self.consumer = f"c{number % 12:02}"  # some ids are used by two sessions
        self.member: Membership | None = None
        self.held: list[Lease] = []
        self.calls: Counter[str] = Counter()

    def ride(self, until: float) -> Counter[str]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            while time.monotonic() < until:
                try:
                    self._step(connection)
                except PenstockError as error:
                    self.calls[type(error).__name__] += 1
                    if isinstance(error, UnknownConsumer):
                        self.member = None
        return self.calls

    def _step(self, connection: Connection) -> None:
        if self.member is None:
            self.member = stream.join(connection, SUBSCRIPTION, self.consumer)
        verbs = (
            ["check_in"] * 5
            + ["commit"] * 6
            + ["heartbeat", "release", "leave", "seek", "sweep", "slow"]
        )
        verb = self.rng.choice(verbs)
        self.calls[verb] += 1
        getattr(self, f"_{verb}")(connection, self.member)

    def _check_in(self, connection: Connection, member: Membership) -> None:
        self.held = stream.check_in(connection, member)
        asked = [lease for lease in self.held if lease.state == "RELEASING"]
        if asked:
            stream.release(connection, member, asked)

    def _wanted(self, connection: Connection, member: Membership) -> list[tuple[Lease, int]]:
        some = self.rng.sample(self.held, min(len(self.held), 3))
        return [
            (lease, events[-1].sequence)
            for lease, events in stream.poll(connection, member, some, self.rng.randint(1, 3))
        ]

    def _commit(self, connection: Connection, member: Membership) -> None:
        wanted = self._wanted(connection, member)
        if wanted:
            stream.commit(connection, member, wanted)
            done = {lease.partition_id for lease, _ in wanted}
            self.held = [lease for lease in self.held if lease.partition_id not in done]

    def _slow(self, connection: Connection, member: Membership) -> None:
        """A commit whose transaction goes on, sometimes with a second one and a heartbeat."""
        with connection.transaction():
            self._commit(connection, member)
            connection.execute("SELECT pg_sleep(%s)", (self.rng.random() * 0.05,))
            self._commit(connection, member)
            stream.heartbeat(connection, member)

    def _heartbeat(self, connection: Connection, member: Membership) -> None:
        stream.heartbeat(connection, member)

    def _release(self, connection: Connection, member: Membership) -> None:
        stream.release(connection, member, self.held[::-1])
        self.held = []

    def _leave(self, connection: Connection, member: Membership) -> None:
        if self.rng.random() < 0.3:
            stream.leave(connection, member)
            self.member = None

    def _seek(self, connection: Connection, member: Membership) -> None:
        start = self.rng.choice(["earliest", "latest", "3"])
        stream.seek(connection, SUBSCRIPTION, STREAM, self.rng.randrange(PARTITIONS), start)

    def _sweep(self, connection: Connection, member: Membership) -> None:
        database.execute(connection, "SELECT penstock.sweep()")


def _storm(connection: Connection, url: str, seconds: float) -> Counter[str]:
    filled(connection, PARTITIONS, 50)
    short_leases(connection, 0.9)
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(THREADS) as pool:
        riders = [pool.submit(Rider(url, number, seed=7).ride, until) for number in range(THREADS)]
        more(connection, PARTITIONS, 50, start=51)
        return sum((each.result() for each in riders), Counter[str]())


def test_every_call_at_once(connection: Connection, database_url: str) -> None:
    """Guards: the order of locks, SKIP LOCKED, and every row lock of the protocol."""
    calls = _storm(connection, database_url, 4.0)
    for broken in (TWO_HOLDERS, WENT_BACK, OVERLAPPING, ORPHANED):
        assert connection.execute(broken.encode()).fetchall() == []
    assert calls["commit"] > 20, calls
    assert calls["check_in"] > 20, calls


def test_the_storm_sees_live_leases_being_taken(connection: Connection, database_url: str) -> None:
    """Mutant: acquire takes any lease, free or not."""
    without_guard(
        connection, "acquire", "= acquire.subscription_id AND l.state = 'AVAILABLE'",
        "= acquire.subscription_id",
    )  # fmt: skip
    without_guard(connection, "acquire", "WHERE l.state = 'AVAILABLE'", "WHERE true")
    _storm(connection, database_url, 1.5)
    assert connection.execute(OVERLAPPING.encode()).fetchall() != []


def _unsubscribe_beside_a_check_in(connection: Connection, url: str) -> list[BaseException | None]:
    """A check-in holds the subscription and waits for its consumer row; then unsubscribe comes."""
    filled(connection)
    member = stream.join(connection, SUBSCRIPTION, "a")
    stream.check_in(connection, member)
    with (
        open_transaction(url) as holder,
        psycopg.connect(url, autocommit=True) as checking,
        psycopg.connect(url, autocommit=True) as leaving,
        ThreadPoolExecutor(2) as pool,
    ):
        for each in (checking, leaving):
            each.execute("SET deadlock_timeout = '50ms'")
        holder.execute("SELECT FROM penstock.consumers FOR UPDATE")
        first = pool.submit(stream.unsubscribe, leaving, SUBSCRIPTION)
        wait_until_blocked(connection, backend_pid(leaving))
        second = pool.submit(stream.check_in, checking, member)
        wait_until_blocked(connection, backend_pid(checking))
        holder.rollback()
        return [first.exception(), second.exception()]


def test_unsubscribe_takes_its_locks_in_the_order_of_a_check_in(
    connection: Connection, database_url: str
) -> None:
    """Guard: the subscription's row first."""
    left, checked = _unsubscribe_beside_a_check_in(connection, database_url)
    assert left is None
    assert isinstance(checked, UnknownConsumer | SubscriptionNotFound)


def test_in_another_order_they_deadlock(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: unsubscribe begins with the consumers."""
    monkeypatch.setattr(calls, "_TRIES", 1)  # else the call is made again, and passes
    without_guard(
        connection,
        "unsubscribe",
        "PERFORM FROM subscriptions AS s WHERE s.id = owner_id FOR UPDATE;",
        "",
    )
    found = _unsubscribe_beside_a_check_in(connection, database_url)
    assert any(isinstance(each, psycopg.errors.DeadlockDetected) for each in found)


@pytest.mark.parametrize("verb", ["join", "poll", "commit", "check_in", "seek", "subscribe"])
def test_null_arguments_change_nothing(connection: Connection, verb: str) -> None:
    """Guard: NULL is refused or names nobody; no row of the protocol moves."""
    filled(connection)
    member = stream.join(connection, SUBSCRIPTION, "a")
    stream.check_in(connection, member)
    row = connection.execute(
        "SELECT pronargs FROM pg_proc WHERE proname = %s"
        " AND pronamespace = 'penstock'::regnamespace",
        (verb,),
    ).fetchone()
    assert row is not None
    before = _state(connection)
    for place in range(row[0] + 1):
        given = ["NULL"] * row[0]
        if place < row[0]:
            given = _sound(verb, member)[: row[0]]
            given[place] = "NULL"
        try:
            connection.execute(f'SELECT penstock."{verb}"({", ".join(given)})'.encode())
        except psycopg.Error as error:
            assert (error.sqlstate or "").startswith("PS"), error
            continue
        if verb != "commit" or place != 5:
            assert _state(connection) == before, given


def _state(connection: Connection) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for table in ("leases", "positions", "subscription_topics", "subscriptions"):
        rows += connection.execute(
            f"SELECT * FROM penstock.{table} ORDER BY 1, 2".encode()
        ).fetchall()
    return rows


def _sound(verb: str, member: Membership) -> list[str]:
    me = [f"'{SUBSCRIPTION}'", "'a'"]
    partition = "ARRAY[(SELECT min(id) FROM penstock.partitions)]"
    epoch = "ARRAY[(SELECT lease_epoch FROM penstock.leases)]"
    return {
        "join": [*me, "gen_random_uuid()", "1", f"ARRAY['{STREAM}']"],
        "poll": [*me, partition, epoch, "ARRAY[0]::bigint[]", "10", "5"],
        "commit": [*me, partition, epoch, "ARRAY[3]::bigint[]", "ARRAY[0]::bigint[]"],
        "check_in": [*me, f"'{member.session}'", "true"],
        "seek": [me[0], f"'{STREAM}'", "0", "'earliest'"],
        "subscribe": [me[0], f"ARRAY['{STREAM}']", "'earliest'", "'stream'"],
    }[verb]
