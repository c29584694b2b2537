"""penstock.Consumer: tests for PostgreSQL only, besides those of the contract."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from penstock import subscriptions
from penstock.consumer.stream.consumer import Batch, Consumer
from penstock.errors import InvalidArgument, InvalidName
from penstock.records import Event
from penstock.subscriptions import stream
from tests.kit.log import Connection, value, wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    SUBSCRIPTION,
    filled,
    more,
    running,
    short_leases,
    stored,
)


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
    return all(lag.lag_events == 0 for lag in subscriptions.lag(connection, SUBSCRIPTION))


@proves("L7 in streams")
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
        assert stored(connection, 0) == 2  # what comes before it is committed
        poisoned.clear()
        wait_until(lambda: _done(connection), "all are handled")
    assert {place for place, count in calls.items() if count > 1} == {(0, 3)}
    assert consumer.stats.failures >= 2


def test_a_killed_session_of_the_lease_keeper_is_survived(
    connection: Connection, database_url: str
) -> None:
    """That of the polls is killed on every engine, by the contract."""
    filled(connection, events=5)
    short_leases(connection, 3)
    seen: list[int] = []
    consumer = _consumer(database_url, handler=lambda event: seen.append(event.sequence))
    with running(consumer):
        wait_until(lambda: consumer.stats.events == 5, "the first five")
        killed = value(
            connection,
            "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'penstock keeper%') AS ended",
        )
        assert killed == 2  # that of the heartbeats, and that of the check-ins
        more(connection, events=5, start=6)
        wait_until(lambda: _done(connection), "the others")
    assert seen == list(range(1, 11))


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
    monkeypatch.setattr("penstock.database.backoff.random.uniform", lambda low, high: low)
    with running(consumer):
        wait_until(lambda: _done(connection), "all are handled")
        wait_until(lambda: consumer._outages == 0, "the count begins anew")


@pytest.mark.parametrize("given", [None, print])
def test_exactly_one_handler(given: Callable[[object], object] | None) -> None:
    """A consumer without a handler, or with two, is refused when it is made."""
    with pytest.raises(InvalidArgument):
        Consumer("postgresql://localhost/none", SUBSCRIPTION, handler=given, batch_handler=given)


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_a_name_that_cannot_be_is_refused(connection: Connection, name: str) -> None:
    """Before the database sees it."""
    with pytest.raises(InvalidName):
        stream.subscribe(connection, name, ["a/b"])
    with pytest.raises(InvalidName):
        stream.join(connection, SUBSCRIPTION, name)


@pytest.mark.parametrize("weight", [float("inf"), float("nan")])
def test_a_weight_that_is_no_number_is_refused(connection: Connection, weight: float) -> None:
    """Guard: the bounds of a weight, where the driver sends such values."""
    filled(connection)
    with pytest.raises(InvalidArgument):
        stream.join(connection, SUBSCRIPTION, "heavy", weight)
