"""penstock.Consumer from end to end, with real faults."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from penstock import stream
from penstock.consumer import Batch, Consumer, HandlerFailed
from penstock.errors import DuplicateSession, InvalidArgument, InvalidName
from penstock.records import Event
from tests.guards import without_guard
from tests.log.kit import Connection, value, wait_until
from tests.stream.kit import (
    STREAM,
    SUBSCRIPTION,
    end_lease,
    filled,
    holders,
    more,
    short_leases,
    stored,
)


@contextmanager
def running(consumer: Consumer) -> Iterator[threading.Event]:
    """The consumer in a thread; at the end it is stopped, and what it raised is raised."""
    stop = threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            consumer.run(stop)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive(), "the consumer does not stop"
    if raised:
        raise raised[0]


class Effects:
    """A table that handlers write to, in the consumer's database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE effects (partition int, number int)")

    @staticmethod
    def write(connection: Connection, events: list[Event]) -> None:
        """What a handler does, in its transaction."""
        for event in events:
            connection.execute(
                "INSERT INTO effects VALUES (%s, %s)", (event.partition, int(event.payload))
            )

    def found(self) -> dict[int, list[int]]:
        """The numbers by partition, sorted."""
        by_partition: dict[int, list[int]] = defaultdict(list)
        for partition, number in self._connection.execute(
            "SELECT partition, number FROM effects ORDER BY partition, number"
        ).fetchall():
            by_partition[partition].append(number)
        return dict(by_partition)


def _consumer(
    url: str,
    *,
    handler: Callable[[Event], object] | None = None,
    batch_handler: Callable[[Batch], object] | None = None,
    consumer_id: str = "a",
    batch_size: int = 500,
) -> Consumer:
    return Consumer(
        url,
        SUBSCRIPTION,
        handler=handler,
        batch_handler=batch_handler,
        consumer_id=consumer_id,
        batch_size=batch_size,
        idle_seconds=0.05,
    )


def _done(connection: Connection) -> bool:
    return all(lag.lag_events == 0 for lag in stream.lag(connection, SUBSCRIPTION))


def test_events_are_handled_in_order_and_once(connection: Connection, database_url: str) -> None:
    """Handler by event; positions move, leases are free after the stop."""
    filled(connection, partitions=3, events=20)
    seen: dict[int, list[int]] = defaultdict(list)
    consumer = _consumer(
        database_url,
        handler=lambda event: seen[event.partition].append(event.sequence),
        batch_size=7,
    )
    with running(consumer):
        wait_until(lambda: _done(connection), "all are handled")
        more(connection, partitions=3, events=5, start=21)
        wait_until(lambda: _done(connection), "the later ones are handled")
    assert seen == {partition: list(range(1, 26)) for partition in range(3)}
    assert (consumer.stats.events, consumer.stats.failures) == (75, 0)
    assert holders(connection) == {}
    assert value(connection, "SELECT count(*) FROM penstock.consumers") == 0


def test_effects_and_position_are_one_transaction_over_injected_failures(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: handlers fail before, in and after their transaction; every effect is there once."""
    filled(connection, partitions=3, events=40)
    monkeypatch.setattr("penstock.consumer.MAX_RETRY_SECONDS", 0.02)
    effects, rng, failures = Effects(connection), random.Random(3), Counter[str]()

    def handle(batch: Batch) -> None:
        fault = rng.choice(["none", "none", "before", "inside", "swallowed", "killed", "after"])
        failures[fault] += 1
        if fault == "before":
            raise ValueError(fault)
        with batch.transaction() as transaction:
            effects.write(transaction, batch.events)
            if fault == "inside":
                raise ValueError(fault)
            if fault == "swallowed":
                with pytest.raises(psycopg.Error):
                    transaction.execute("SELECT 1 / 0")
            if fault == "killed":
                pid = transaction.info.backend_pid
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        if fault == "after":
            raise ValueError(fault)

    with running(_consumer(database_url, batch_handler=handle, batch_size=6)):
        more(connection, partitions=3, events=10, start=41)
        wait_until(lambda: _done(connection), "all are handled", 60)
    assert effects.found() == {partition: list(range(1, 51)) for partition in range(3)}
    assert len(failures) >= 5, failures


def _raised_behind_its_commit(connection: Connection, url: str) -> dict[int, list[int]]:
    """A handler raises behind its transaction, and more events come before it is called again."""
    filled(connection, events=5)
    stream.configure_subscription(
        connection, SUBSCRIPTION, heartbeat_seconds=60, lease_seconds=180, release_seconds=60
    )
    effects, calls = Effects(connection), [0]

    def handle(batch: Batch) -> None:
        calls[0] += 1
        with batch.transaction() as transaction:
            effects.write(transaction, batch.events)
        if calls[0] == 1:
            more(connection, events=5, start=6)
            raise ValueError("behind the commit")

    with running(_consumer(url, batch_handler=handle)):
        wait_until(lambda: stored(connection) == 10, "all are handled")
    return effects.found()


def test_what_a_handler_committed_before_it_raised_is_not_done_again(
    connection: Connection, database_url: str
) -> None:
    """Guards: the position is asked for after a failure; commit knows behind what was read."""
    assert _raised_behind_its_commit(connection, database_url) == {0: list(range(1, 11))}


def test_without_both_it_is_done_twice(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the consumer goes on from its own idea of the position, and commit accepts it."""
    monkeypatch.setattr(Batch, "stored_position", lambda batch: batch.events[0].sequence - 1)
    without_guard(connection, "commit", "OR given.read_after <> stored.position", "")
    found = _raised_behind_its_commit(connection, database_url)
    assert found[0].count(1) == 2


def test_a_handler_that_raises_is_called_again_and_others_flow(
    connection: Connection, database_url: str
) -> None:
    """A poison event stops its partition only; in the end it is handled."""
    filled(connection, partitions=2, events=5)
    calls: Counter[tuple[int, int]] = Counter()
    poisoned = threading.Event()
    poisoned.set()

    def handle(event: Event) -> None:
        calls[event.partition, event.sequence] += 1
        if event.partition == 0 and event.sequence == 3 and poisoned.is_set():
            raise psycopg.OperationalError("another database of the handler is away")

    consumer = _consumer(database_url, handler=handle)
    with running(consumer):
        wait_until(lambda: stored(connection, 1) == 5 and calls[0, 3] >= 2, "tried again")
        assert stored(connection, 0) == 0
        poisoned.clear()
        wait_until(lambda: _done(connection), "all are handled")
    assert all(calls[1, sequence] == 1 for sequence in range(1, 6))
    assert consumer.stats.failures >= 2


def test_releasing_is_answered_and_a_second_consumer_gets_its_share(
    connection: Connection, database_url: str
) -> None:
    """Hand-over without a duplicate."""
    filled(connection, partitions=4, events=3)
    short_leases(connection, 3)
    seen: Counter[tuple[int, int]] = Counter()
    first = _consumer(database_url, handler=lambda e: seen.update([(e.partition, e.sequence)]))
    second = _consumer(
        database_url, handler=lambda e: seen.update([(e.partition, e.sequence)]), consumer_id="b"
    )
    with running(first):
        wait_until(lambda: len(holders(connection)) == 4, "the first holds all")
        with running(second):
            start = 4
            while Counter(holders(connection).values()) != {"a": 2, "b": 2}:
                more(connection, partitions=4, events=1, start=start)
                wait_until(lambda: _done(connection), "all are handled")
                start += 1
    assert set(seen.values()) == {1}
    assert len(seen) == 4 * (start - 1)


@pytest.mark.parametrize("which", ["penstock tests", "penstock a"])
def test_killed_sessions_are_survived(
    connection: Connection, database_url: str, which: str
) -> None:
    """The session of the polls, and that of the lease keeper."""
    filled(connection, events=5)
    short_leases(connection, 3)
    seen: list[int] = []
    consumer = _consumer(database_url, handler=lambda event: seen.append(event.sequence))
    with running(consumer):
        wait_until(lambda: stored(connection) == 5, "the first five")
        killed = value(
            connection,
            "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = %s) AS ended",
            which,
        )
        assert killed == 1
        more(connection, events=5, start=6)
        wait_until(lambda: _done(connection), "the others")
    assert seen == list(range(1, 11))


def test_a_paused_consumer_finds_its_lease_gone(connection: Connection, database_url: str) -> None:
    """Its commit is refused, its effects roll back, and its successor's stand."""
    filled(connection, events=5)
    short_leases(connection, 3)
    effects = Effects(connection)
    inside, go_on = threading.Event(), threading.Event()

    def pause(batch: Batch) -> None:
        inside.set()
        assert go_on.wait(30)
        with batch.transaction() as transaction:
            effects.write(transaction, batch.events)

    def handle(batch: Batch) -> None:
        with batch.transaction() as transaction:
            effects.write(transaction, batch.events)

    paused = _consumer(database_url, batch_handler=pause)
    with running(paused):
        assert inside.wait(30)
        # Both of its threads are paused, as SIGSTOP does it: the keeper waits behind this lock.
        with psycopg.connect(database_url) as lock:
            lock.execute("SELECT FROM penstock.consumers WHERE id = 'a' FOR UPDATE")
            lock.execute("UPDATE penstock.consumers SET deadline = now() WHERE id = 'a'")
        connection.execute("SELECT penstock.sweep()")
        if holders(connection) == {0: "a"}:  # its heartbeat came between: once more
            end_lease(connection, "a")
            connection.execute("SELECT penstock.sweep()")
        successor = _consumer(database_url, batch_handler=handle, consumer_id="b")
        successor.run_until_idle()
        wait_until(lambda: stored(connection) == 5 or _take(connection, successor), "b did it")
        go_on.set()
        wait_until(lambda: paused.stats.stale_commits == 1, "the stale commit")
    assert effects.found() == {0: [1, 2, 3, 4, 5]}


def _take(connection: Connection, successor: Consumer) -> bool:
    end_lease(connection, "a")
    connection.execute("SELECT penstock.sweep()")
    successor.run_until_idle()
    return False


def test_a_second_run_of_an_id_is_refused(connection: Connection, database_url: str) -> None:
    """DuplicateSession, and the first one goes on."""
    filled(connection)
    with running(_consumer(database_url, handler=lambda _: None)):
        wait_until(lambda: holders(connection), "the first holds its lease")
        with pytest.raises(DuplicateSession):
            _consumer(database_url, handler=lambda _: None).run(threading.Event())
        assert holders(connection) == {0: "a"}


def test_any_text_on_the_channel_is_survived(connection: Connection, database_url: str) -> None:
    """Guard: a NOTIFY of somebody else is compared and never read."""
    filled(connection)
    seen: list[int] = []
    with running(_consumer(database_url, handler=lambda event: seen.append(event.sequence))):
        for text in ("", "all", "x,y", "9" * 40):
            connection.execute("SELECT pg_notify('penstock_log', %s)", (text,))
        wait_until(lambda: _done(connection), "all are handled")
        more(connection, events=1, start=11)
        wait_until(lambda: len(seen) == 11, "it still works")


def test_a_long_outage_does_not_overflow_the_pause(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the exponent of the pause is bounded, and a good round begins anew."""
    filled(connection)
    consumer = _consumer(database_url, handler=lambda _: None)
    consumer._outages = 5000
    opened = consumer.open
    left = [2]

    def flaky() -> psycopg.Connection:
        if left[0]:
            left[0] -= 1
            raise psycopg.OperationalError("the server is away")
        return opened()

    monkeypatch.setattr(consumer, "open", flaky)
    monkeypatch.setattr("penstock.consumer.random.uniform", lambda low, high: low)
    with running(consumer):
        wait_until(lambda: _done(connection), "all are handled")
        wait_until(lambda: consumer._outages == 0, "the count begins anew")


@pytest.mark.parametrize("given", [None, print])
def test_exactly_one_handler(given: Callable[[object], object] | None) -> None:
    """A consumer without a handler, or with two, is refused when it is made."""
    with pytest.raises(InvalidArgument):
        Consumer("postgresql://localhost/none", SUBSCRIPTION, handler=given, batch_handler=given)


def test_run_until_idle_handles_what_is_there(connection: Connection, database_url: str) -> None:
    """For jobs: works off and leaves."""
    filled(connection, partitions=2, events=10, name=STREAM)
    assert _consumer(database_url, handler=lambda _: None, batch_size=3).run_until_idle() == 20
    assert holders(connection) == {}


def test_until_idle_tells_that_a_handler_failed(connection: Connection, database_url: str) -> None:
    """Guard: has_postponed after the last round; a run by the clock must not report success."""
    filled(connection)

    def broken(event: Event) -> None:
        raise LookupError("no such customer")

    with pytest.raises(HandlerFailed, match="no such customer"):
        _consumer(database_url, handler=broken).run_until_idle()


def test_work_that_outlives_its_lease_is_told_so(connection: Connection, database_url: str) -> None:
    """The server ends it; the message names the lease, and the next attempt is a later one."""
    filled(connection)
    short_leases(connection)
    work = [3.0]

    def slow(batch: Batch) -> None:
        with batch.transaction() as inside:
            if work:
                inside.execute("SELECT pg_sleep(%s)", [work.pop()])

    consumer = _consumer(database_url, batch_handler=slow)
    with running(consumer):
        wait_until(lambda: "longer than the lease" in consumer.stats.last_error, "the message")
        wait_until(lambda: stored(connection) == 10, "the next attempt")


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_a_name_that_cannot_be_is_refused(connection: Connection, name: str) -> None:
    """Before the database sees it."""
    with pytest.raises(InvalidName):
        stream.subscribe(connection, name, ["a/b"])
    with pytest.raises(InvalidName):
        stream.join(connection, SUBSCRIPTION, name)
