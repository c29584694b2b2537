"""A listener that reads nothing fills the queue of notices, which all databases share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

import penstock
from penstock import database, subscriptions
from penstock.database import migrate
from penstock.doctor import doctor
from penstock.upkeep.sequencing import sequence_round
from resources.embedded import EmbeddedPostgres
from tests.doctor.kit import TOPIC, begin, only
from tests.guards import without_guard
from tests.kit.log import wait_until
from tests.kit.proof import proves


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """The smallest queue that there is; PostgreSQL 17 can set it."""
    settings = {"max_notify_queue_pages": "64"}
    with EmbeddedPostgres(tmp_path_factory.mktemp("notices") / "pg", settings=settings) as running:
        address = running.url("shop")
        migrate.migrate(address)
        with psycopg.connect(address, autocommit=True) as connection:
            penstock.create_topic(connection, TOPIC, create_namespaces=True)
        yield running


@pytest.fixture
def full(small: EmbeddedPostgres) -> Iterator[tuple[str, psycopg.Connection]]:
    """An address, and who does not read its notices: a listener of another database."""
    with ExitStack() as stack:
        listener = begin(stack, small.url("postgres"), "LISTEN anything", autocommit=True)
        listener.execute("BEGIN")
        listener.execute("SELECT 1")
        noisy = stack.enter_context(psycopg.connect(small.url("shop"), autocommit=True))
        # Whoever asks cuts off what an earlier test's listener has left.
        wait_until(lambda: _usage(noisy) < 0.1, "the queue is empty")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="NOTIFY"):
            for number in range(1_000):
                noisy.execute("SELECT pg_notify('anything', repeat('x', 7000) || %s)", (number,))
        yield small.url("shop"), listener


def _usage(connection: psycopg.Connection) -> float:
    row = connection.execute("SELECT pg_notification_queue_usage()").fetchone()
    assert row is not None
    return float(row[0])


def _passes(url: str) -> int:
    """How many of ten events get their sequence."""
    with database.connect(url) as connection:
        for _ in range(10):
            penstock.publish(connection, TOPIC, b"x")
        return sequence_round(connection).events


@proves("the queue of notices")
def test_the_log_goes_on(full: tuple[str, psycopg.Connection]) -> None:
    """announce() looks how full it is."""
    assert _passes(full[0]) == 10


@proves("the queue of notices")
def test_the_log_goes_on_when_it_fills_behind_the_look(
    full: tuple[str, psycopg.Connection],
) -> None:
    """Guard: upkeep.sequencing._announced. Without announce()'s look a pass cannot commit."""
    with psycopg.connect(full[0], autocommit=True) as connection:
        kept = connection.execute("SELECT pg_get_functiondef('penstock.announce'::regproc)")
        whole = kept.fetchone()
        assert whole is not None
        without_guard(connection, "announce", "notices_used() < 0.5", "true")
        try:
            penstock.publish(connection, TOPIC, b"x")
            with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                connection.execute("SELECT penstock.announce('{1}')")
            assert _passes(full[0]) == 11
        finally:
            connection.execute(whole[0].encode())


@proves("the queue of notices")
def test_the_doctor_names_who_holds_it(full: tuple[str, psycopg.Connection]) -> None:
    url, listener = full
    found = only([each for each in doctor(url) if each.check == "notices"])
    assert f"session {listener.info.backend_pid} of" in found.what
    assert "pg_terminate_backend" in found.command
    listener.close()
    with psycopg.connect(url, autocommit=True) as connection:
        wait_until(lambda: _usage(connection) < 0.1, "the listener's session has ended")
    assert [each for each in doctor(url) if each.check == "notices"] == []


def test_without_a_listener_nothing_is_found(small: EmbeddedPostgres) -> None:
    """An old transaction alone holds no notices."""
    with ExitStack() as stack:
        begin(stack, small.url("shop"), "SELECT 1")
        assert subscriptions.lag(stack.enter_context(database.connect(small.url("shop")))) == []
        assert [each for each in doctor(small.url("shop")) if each.check == "notices"] == []
