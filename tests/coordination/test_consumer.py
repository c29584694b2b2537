"""penstock.Consumer with its leases in etcd, Redis or memory, and its log in PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock import subscriptions
from penstock.consumer.handlers.failures import HandlerFailed
from penstock.consumer.running.async_consumer import AsyncConsumer
from penstock.consumer.stream.consumer import Consumer
from penstock.consumer.stream.delivery import StreamDelivery
from penstock.errors import (
    ConfigurationError,
    CoordinationUnavailable,
    InvalidArgument,
    LogBehind,
    PositionsElsewhere,
    StaleLease,
)
from penstock.leases.coordination import open_registry, registry_keeper
from penstock.leases.coordination.registry_keeper import RegistryKeeper
from penstock.records import Event
from penstock.subscriptions import stream
from tests import servers
from tests.command import run
from tests.contract.databases import ContractDatabase
from tests.coordination.consuming import Seen, consumer, killed, memory
from tests.faults.proxy import HOST, Proxies
from tests.kit.log import Connection, wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    more,
    running,
    short_leases,
    slow_leases,
    stored,
)
from tools.servers import StoreServer

PARTITIONS, EVENTS = 4, 10


@proves("S9 to S11 for a consumer with `coordination`")
@pytest.mark.parametrize("assign", ["stealing", "coordinated"])
def test_two_share_and_each_event_is_handled_once_in_order(
    connection: Connection, database_url: str, store: str, assign: str
) -> None:
    """Nothing moves but by giving back, so nothing comes twice; the database hears of it."""
    filled(connection, PARTITIONS, EVENTS)
    short_leases(connection, 3)
    seen = Seen()
    first = consumer(database_url, store, seen, "a", assign=assign)
    second = consumer(database_url, store, seen, "b", assign=assign)
    with running(first):
        wait_until(lambda: seen.count == PARTITIONS * EVENTS, "the first has all")
        with running(second):
            wait_until(lambda: len(second.keeper.leases()) == PARTITIONS // 2, "half and half")
            more(connection, PARTITIONS, EVENTS, start=EVENTS + 1)
            wait_until(lambda: seen.count == 2 * PARTITIONS * EVENTS, "all are handled")
    expected = list(range(1, 2 * EVENTS + 1))
    assert seen.sequences == dict.fromkeys(range(PARTITIONS), expected)
    assert [stored(connection, each) for each in range(PARTITIONS)] == [2 * EVENTS] * PARTITIONS
    assert first.stats.stale_commits == second.stats.stale_commits == 0


@pytest.mark.parametrize("db", servers.DATABASES, indirect=True)
def test_on_each_engine(db: ContractDatabase) -> None:
    """The log is read, and the positions are copied, by the statements of each dialect."""
    connection = db.connect()
    filled(connection, 2, EVENTS)
    seen, store = Seen(), memory()
    assert consumer(db.url, store, seen, batch_size=3).run_until_idle() == 2 * EVENTS
    assert seen.sequences == {each: list(range(1, EVENTS + 1)) for each in range(2)}
    assert [stored(connection, each) for each in range(2)] == [EVENTS] * 2
    assert consumer(db.url, store, seen).run_until_idle() == 0


@proves("S9 to S11 for a consumer with `coordination`", guard="RELEASING")
@pytest.mark.parametrize("is_guarded", [True, False])
def test_what_is_in_hand_is_finished_before_it_is_given_back(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """Guard: RegistryKeeper._ask_back, by which a lease is RELEASING until nothing is in hand."""
    if not is_guarded:
        monkeypatch.setattr(RegistryKeeper, "_ask_back", lambda _, partition_ids: partition_ids)
    filled(connection, 2, 1)
    short_leases(connection, 3)
    store, gate, seen, others = memory(), threading.Event(), Seen(), Seen()

    def handle(event: Event) -> None:
        seen(event)
        assert gate.wait(20)

    first = consumer(database_url, store, handle, "a", concurrency=2)
    second = consumer(database_url, store, others, "b")
    with running(first):
        wait_until(lambda: seen.count == 2, "both are in hand")
        with running(second):
            if is_guarded:
                wait_until(
                    lambda: (
                        {each.state for each in first.keeper.leases()} == {"ACTIVE", "RELEASING"}
                    ),
                    "one is asked back",
                )
                joined = second.keeper.last_success
                wait_until(lambda: second.keeper.last_success > joined, "it has looked again")
                assert second.keeper.leases() == []
            else:
                wait_until(lambda: others.count == 1, "handled a second time")
            gate.set()
            wait_until(lambda: len(second.keeper.leases()) == 1, "one each")
    assert others.count == (0 if is_guarded else 1)


@proves("S9 to S11 for a consumer with `coordination`")
def test_a_killed_consumer_is_replaced(
    connection: Connection, database_url: str, store: str
) -> None:
    """S9 to S11: its lease ends by the store's clock, and what it still commits is refused."""
    filled(connection, 1, EVENTS)
    short_leases(connection, 3)
    dead, seen = killed(database_url, store), Seen()
    (old,) = dead.leases()
    dead.commit(connection, [(old, 4)], [0])
    with running(consumer(database_url, store, seen, "b")):
        wait_until(lambda: seen.count == EVENTS - 4, "taken over")
        assert dead.leases() == []
        with pytest.raises(StaleLease):
            dead.commit(connection, [(old, 5)], [4])
    assert seen.sequences == {0: list(range(5, EVENTS + 1))}
    assert stored(connection) == EVENTS
    dead._registry.close()


def test_a_store_that_comes_back_is_worked_with_again(
    connection: Connection, database_url: str, own_etcd: StoreServer
) -> None:
    """Nothing is committed meanwhile; what was handled and not committed comes again."""
    filled(connection, 1, EVENTS)
    short_leases(connection, 3)
    seen = Seen()
    ports = [urlsplit(own_etcd.url()).port or 0]
    with Proxies() as proxies:
        proxy = proxies.open(lambda: (HOST, ports[-1]))
        consuming = consumer(database_url, f"etcd://{HOST}:{proxy.port}", seen)
        outage(connection, consuming, seen, own_etcd, ports)
    assert sorted(set(seen.sequences[0])) == list(range(1, 2 * EVENTS + 1))
    assert stored(connection) == 2 * EVENTS


def outage(
    connection: Connection,
    consuming: Consumer,
    seen: Seen,
    own_etcd: StoreServer,
    ports: list[int],
) -> None:
    """The store ends under a consumer, and comes back at another port."""
    with running(consuming):
        wait_until(lambda: seen.count == EVENTS, "all are handled")
        own_etcd.kill()
        wait_until(lambda: not consuming.keeper.leases(), "its leases have ended")
        more(connection, 1, EVENTS, start=EVENTS + 1)
        own_etcd.start()
        ports.append(urlsplit(own_etcd.url()).port or 0)
        wait_until(lambda: seen.sequences[0][-1] == 2 * EVENTS, "the rest", 40)


def test_an_async_consumer_too(connection: Connection, database_url: str) -> None:
    filled(connection, PARTITIONS, EVENTS)
    seen = Seen()

    async def handle(event: Event) -> None:
        seen(event)

    consuming = AsyncConsumer(
        database_url, SUBSCRIPTION, handler=handle, coordination=memory(), concurrency=4
    )
    assert asyncio.run(consuming.run_until_idle()) == PARTITIONS * EVENTS
    assert seen.sequences == {each: list(range(1, EVENTS + 1)) for each in range(PARTITIONS)}
    assert stored(connection) == EVENTS


@proves("S9 to S11 for a consumer with `coordination`", guard="the local clock")
@pytest.mark.parametrize("is_guarded", [True, False])
def test_the_local_clock_ends_a_lease(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """Guard: LOCAL_SHARE of the lease time, by the monotonic clock."""
    if not is_guarded:
        monkeypatch.setattr("penstock.leases.keeper.LOCAL_SHARE", 100)
    filled(connection, 1, 1)
    short_leases(connection, 3)
    now = 0.0
    with RegistryKeeper(database_url, SUBSCRIPTION, memory(), clock=lambda: now) as keeper:
        assert len(keeper.leases()) == 1
        keeper._ended.set()
        keeper._hurry.set()
        for thread in keeper._threads:
            thread.join()
        now = 2.8
        assert len(keeper.leases()) == (0 if is_guarded else 1)


def test_positions_are_copied_while_it_works(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: RegistryKeeper._watch."""
    monkeypatch.setattr(registry_keeper, "LOOK_SECONDS", 0.05)
    filled(connection, PARTITIONS, EVENTS)
    slow_leases(connection)
    with running(consumer(database_url, memory(), Seen())):
        wait_until(
            lambda: (
                [stored(connection, each) for each in range(PARTITIONS)] == [EVENTS] * PARTITIONS
            ),
            "the database knows",
        )


def test_a_new_partition_is_read_too(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_keeper, "LOOK_SECONDS", 0.05)
    filled(connection, 1, 1)
    short_leases(connection)
    seen = Seen()
    with running(consumer(database_url, memory(), seen)):
        wait_until(lambda: seen.count == 1, "the first")
        connection.execute("SELECT penstock.resize_topic(%s, 2)", (STREAM,))
        more(connection, 2, 1, start=2)
        wait_until(lambda: seen.sequences == {0: [1, 2], 1: [1]}, "that of the new one")


def test_a_transaction_is_refused_and_the_inbox_named(
    connection: Connection, database_url: str
) -> None:
    """Guard: Batch._before_commit."""
    filled(connection, 1, 1)

    def handle(event: StreamDelivery) -> None:
        with event.transaction():
            raise AssertionError("not reached")

    with pytest.raises(HandlerFailed, match=r"PositionsElsewhere: .*inbox"):
        consumer(database_url, memory(), handle).run_until_idle()
    assert stored(connection) == 0


def test_a_store_that_is_away_at_the_start_changes_nothing(
    connection: Connection, database_url: str
) -> None:
    filled(connection, 1, 1)
    before = connection.execute("SELECT * FROM penstock.leases").fetchall()
    for url in ("etcd://127.0.0.1:1", "redis://127.0.0.1:1"):
        with pytest.raises(CoordinationUnavailable):
            consumer(database_url, url, Seen()).run(threading.Event())
    assert connection.execute("SELECT * FROM penstock.leases").fetchall() == before
    assert connection.execute("SELECT count(*) FROM penstock.consumers").fetchone() == (0,)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"coordination": "postgresql://u:secret@h/d"}, ConfigurationError),
        ({"coordination": "nonsense"}, ConfigurationError),
        ({"coordination": "memory://a", "topics": [STREAM]}, InvalidArgument),
        ({"coordination": "memory://a", "assign": "fair"}, InvalidArgument),
        ({"coordination": "memory://a", "assign": "pinned:1"}, InvalidArgument),
        ({"assign": "coordinated"}, InvalidArgument),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        Consumer("postgresql://nowhere/none", SUBSCRIPTION, handler=print, **options)
    assert "secret" not in str(raised.value)


def test_a_subscription_lives_in_one_place(connection: Connection, database_url: str) -> None:
    """Guard: RegistryKeeper._require_free and _require_ahead."""
    filled(connection, 1, EVENTS)
    slow_leases(connection)
    store = memory()
    assert consumer(database_url, store, Seen()).run_until_idle() == EVENTS
    member = stream.join(connection, SUBSCRIPTION, "somebody")
    with pytest.raises(PositionsElsewhere, match="somebody keep leases"):
        consumer(database_url, store, Seen()).run_until_idle()
    stream.leave(connection, member)
    assert consumer(database_url, store, Seen()).run_until_idle() == 0
    stream.seek(connection, SUBSCRIPTION, STREAM, 0, "earliest")
    with pytest.raises(PositionsElsewhere, match="has moved on in the database"):
        consumer(database_url, store, Seen()).run_until_idle()
    again = Seen()
    assert consumer(database_url, f"{store}?prefix=2", again).run_until_idle() == EVENTS


def test_a_seek_in_the_database_stops_who_works(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store says is void then: nothing more is handled by it."""
    monkeypatch.setattr(registry_keeper, "LOOK_SECONDS", 0.05)
    filled(connection, 1, EVENTS)
    slow_leases(connection)
    consuming = consumer(database_url, memory(), Seen())
    with (
        pytest.raises(PositionsElsewhere, match="has moved on"),
        running(consuming),
    ):
        wait_until(lambda: stored(connection) == EVENTS, "read and copied")
        stream.seek(connection, SUBSCRIPTION, STREAM, 0, "earliest")
        wait_until(lambda: not consuming.keeper.leases(), "it has ended")


def test_who_joins_in_the_database_stops_who_works(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a fleet has another setting. Guard: RegistryKeeper._require_free."""
    monkeypatch.setattr(registry_keeper, "LOOK_SECONDS", 0.05)
    filled(connection, 1, EVENTS)
    slow_leases(connection)
    consuming = consumer(database_url, memory(), Seen())
    with (
        pytest.raises(PositionsElsewhere, match="other keep leases"),
        running(consuming),
    ):
        wait_until(lambda: stored(connection) == EVENTS, "read and copied")
        stream.join(connection, SUBSCRIPTION, "other")
        more(connection, 1, 1, start=EVENTS + 1)
        wait_until(lambda: not consuming.keeper.leases(), "it has ended")


def test_a_pause_is_heard(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: RegistryKeeper.active, where the subscription is paused."""
    monkeypatch.setattr(registry_keeper, "LOOK_SECONDS", 0.05)
    filled(connection, 1, EVENTS)
    slow_leases(connection)
    store, seen = memory(), Seen()
    subscriptions.pause(connection, SUBSCRIPTION)
    assert consumer(database_url, store, seen).run_until_idle() == 0
    with running(consumer(database_url, store, seen)):
        subscriptions.resume(connection, SUBSCRIPTION)
        wait_until(lambda: seen.count == EVENTS, "all are handled")


@proves("S13 with positions elsewhere")
@proves("S13 with positions elsewhere", guard="the comparison with the log")
@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_position_beyond_the_log_is_not_passed_over(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """A restore lost what was read; new events would take its numbers. Guard: _require_log."""
    filled(connection, 1, 5)
    store = memory()
    ((partition_id,),) = connection.execute("SELECT partition_id FROM penstock.leases").fetchall()
    with open_registry(store, SUBSCRIPTION) as registry:
        registry.initialize({partition_id: 7})
    if not is_guarded:
        monkeypatch.setattr(registry_keeper, "_require_log", lambda *_: None)
        assert consumer(database_url, store, Seen()).run_until_idle() == 0
        return
    with pytest.raises(LogBehind):
        consumer(database_url, store, Seen()).run_until_idle()


@proves("S13 with positions elsewhere")
def test_moved_there_and_back_nothing_is_lost(
    connection: Connection,
    database_url: str,
    store: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Events of before, between and after are handled once each."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    filled(connection, 2, EVENTS)
    seen = Seen()
    assert consumer(database_url, None, seen).run_until_idle() == 2 * EVENTS
    more(connection, 2, EVENTS, start=EVENTS + 1)
    move = ("subscription", "move", SUBSCRIPTION, "--output", "json")
    assert run(capsys, *move, "--to", store).rows[0]["partitions"] == 2
    more(connection, 2, EVENTS, start=2 * EVENTS + 1)
    assert consumer(database_url, store, seen).run_until_idle() == 4 * EVENTS
    more(connection, 2, EVENTS, start=3 * EVENTS + 1)
    assert "already holds old positions" in run(capsys, *move, "--to", store).err
    assert run(capsys, *move, "--from", store, "--to", "database").rows[0]["partitions"] == 2
    assert consumer(database_url, None, seen).run_until_idle() == 2 * EVENTS
    assert seen.sequences == {each: list(range(1, 4 * EVENTS + 1)) for each in range(2)}
