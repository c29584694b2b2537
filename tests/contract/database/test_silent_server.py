"""A connection that falls silent: the client gives up by itself, and goes on on another one.

Something between client and server acknowledges every byte and forwards none, so TCP notices
nothing.  Here the limits are short; with the real ones the long tests have the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

from penstock import QueueDelivery, database
from penstock.consumer.queue.consumer import QueueConsumer
from penstock.consumer.queue.options import QueueOptions
from penstock.consumer.stream.consumer import Consumer
from penstock.database import sessions
from penstock.leases import heartbeat, keeper as keepers
from penstock.leases.database_keeper import LeaseKeeper
from penstock.leases.keeper import Keeper
from penstock.leases.loop import LoopSetting
from penstock.subscriptions import queue
from penstock.upkeep import workers
from penstock.upkeep.sweeping import sweep
from penstock.upkeep.workers import SequencerWorker
from tests.contract.databases import ContractDatabase
from tests.kit.log import drain, put, topic, wait_until
from tests.kit.proof import proves
from tests.kit.silent_proxy import SilentProxy, silent_proxy
from tests.kit.stream import SUBSCRIPTION, filled, more, running, short_leases, stored

#: More than any call takes on a busy machine: one that is given up may have been done all the same.
SHORT = 1.0
LEASE = 1.0


@pytest.fixture
def proxy(db: ContractDatabase) -> Iterator[SilentProxy]:
    with silent_proxy(db.url) as opened:
        yield opened


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of loops are short."""
    monkeypatch.setattr(keepers, "ANSWER_SLACK_SECONDS", SHORT)
    for module in (keepers, heartbeat, workers):
        monkeypatch.setattr(module, "LONGEST_ANSWER_SECONDS", SHORT)
    monkeypatch.setattr(LoopSetting, "longest_answer", lambda self: SHORT)


@proves("a silent connection stops nobody")
def test_a_call_on_a_silent_connection_ends(proxy: SilentProxy) -> None:
    """Guard: the limit of each wait.  The connection is closed then, and the error says so."""
    with database.connect(proxy.url) as connection:
        sessions.of_connection(connection).answer_within(connection, SHORT)
        database.execute(connection, "SELECT 1")
        proxy.silence()
        with pytest.raises(Exception, match=r"not answered for 1 s|Lost connection") as caught:
            database.execute(connection, "SELECT 1")
        assert database.is_unavailable(caught.value)
        assert sessions.of_connection(connection).is_closed(connection)


@proves("a silent connection stops nobody", guard="the limit")
def test_without_the_limit_it_waits(db: ContractDatabase, proxy: SilentProxy) -> None:
    """Mutant: only the end of the flow ends the call."""
    with database.connect(proxy.url, statement_timeout_ms=0) as connection:
        failures: list[Exception] = []

        def ask() -> None:
            try:
                database.execute(connection, "SELECT 1")
            except Exception as error:
                failures.append(error)

        (flow,) = proxy.silence()
        thread = threading.Thread(target=ask)
        thread.start()
        assert flow.swallowed.wait(20)
        thread.join(3 * SHORT)
        assert (thread.is_alive(), failures) == (True, [])
        flow.end()
        thread.join(20)
        assert len(failures) == 1


def test_the_limit_follows_that_of_the_statements(db: ContractDatabase) -> None:
    """A statement is ended by the server, and only a lost answer by the client."""
    with database.connect(db.url, statement_timeout_ms=2000) as connection:
        if db.engine == "postgres":
            assert connection.answer_seconds == 7  # type: ignore[attr-defined]
        sessions.of_connection(connection).answer_within(connection, 60)
        sessions.of_connection(connection).answer_within(connection, 3)
        limit = "answer_seconds" if db.engine == "postgres" else "_read_timeout"
        assert getattr(connection, limit) == 3, "the shorter one holds"
    if db.engine == "postgres":
        with database.connect(db.url, statement_timeout_ms=0) as connection:
            assert connection.answer_seconds is None  # type: ignore[attr-defined]


@proves("a silent connection stops nobody")
@pytest.mark.long_on("mysql")
@pytest.mark.parametrize("whose", [SUBSCRIPTION, "penstock keeper", ""])
@pytest.mark.usefixtures("impatient")
def test_a_consumer_goes_on(db: ContractDatabase, proxy: SilentProxy, whose: str) -> None:
    """The flow of its work falls silent, that of its heartbeat, or all."""
    own = db.connect()
    filled(own, events=1)
    short_leases(own, LEASE)
    consumer = Consumer(proxy.url, SUBSCRIPTION, handler=lambda _: None, idle_seconds=0.05)
    with running(consumer):
        wait_until(lambda: stored(own) == 1, "the first event is handled")
        proxy.silence(whose.encode())
        more(own, events=1, start=2)
        wait_until(lambda: stored(own) == 2, "the second one is handled", 20)


@proves("a silent connection stops nobody")
@pytest.mark.usefixtures("impatient")
def test_a_queue_goes_on(db: ContractDatabase, proxy: SilentProxy) -> None:
    own = db.connect()
    topic(own)
    queue.subscribe(own, "mails", ["tests/log"])
    queue.configure(own, "mails", visibility_seconds=2)  # for a receive whose answer was lost
    handled: list[bytes] = []
    consumer = QueueConsumer.of(
        proxy.url, "mails", QueueOptions(handler=lambda each: handled.append(each.payload))
    )
    with running(consumer):
        for text in ("one", "two"):
            put(own, text)
            drain(own)
            wait_until(partial(_is_in, text.encode(), handled), f"{text} is handled", 20)
            proxy.silence()


@pytest.mark.usefixtures("impatient")
def test_a_handlers_call_may_take_longer(db: ContractDatabase) -> None:
    """Its connection keeps the limit of statements: the loop does not wait for it."""
    own = db.connect()
    topic(own)
    queue.subscribe(own, "mails", ["tests/log"])
    put(own, "one")
    drain(own)
    slow = "SELECT pg_sleep(1.5)" if db.engine == "postgres" else "SELECT SLEEP(1.5)"

    def handle(delivery: QueueDelivery) -> None:
        with delivery.transaction() as connection:
            database.execute(connection, slow)

    assert QueueConsumer(db.url, "mails", handler=handle).run_until_idle() == 1


@proves("a silent connection stops nobody")
@pytest.mark.usefixtures("impatient")
def test_a_sequencer_goes_on(db: ContractDatabase, proxy: SilentProxy) -> None:
    """Its loop ends with an error that its supervisor takes for a passing one."""
    own = db.connect()
    topic(own)
    worker, stop = SequencerWorker(proxy.url), threading.Event()
    errors: list[Exception] = []

    def work() -> None:
        try:
            worker.run(stop)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: worker.passes, "a pass is made")
    proxy.silence()
    wait_until(lambda: errors, "the pass is given up", 20)
    thread.join()
    assert database.is_unavailable(errors[0])


def test_a_loop_that_waits_longer_than_its_lease_is_not_kept_alive(
    db: ContractDatabase,
) -> None:
    """Guard: is_stuck.  A slow handler is work, and a wait that is shorter is none of it."""
    own = db.connect()
    filled(own, events=1)
    with LeaseKeeper(db.url, SUBSCRIPTION) as keeper:
        now = time.monotonic()
        keeper.working = SimpleNamespace(waiting_since=None)  # type: ignore[assignment]
        assert keeper.may_beat(now)
        lease = keeper.member.lease_seconds
        keeper.working = SimpleNamespace(waiting_since=now - lease / 2)  # type: ignore[assignment]
        assert keeper.may_beat(now)
        keeper.working = SimpleNamespace(waiting_since=now - lease - 1)  # type: ignore[assignment]
        assert not keeper.may_beat(now)


@proves("a silent connection stops nobody")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_wait_for_the_end_of_a_transaction_is_a_wait(
    db: ContractDatabase, proxy: SilentProxy, end: str
) -> None:
    """On MySQL nobody saw it, so the lease of a loop that waits for a COMMIT never ended.

    Guard: Blocks._read_ok_packet.
    """
    with database.connect(proxy.url) as connection:
        seen: list[float | None] = []

        def waits() -> bool:
            seen.append(getattr(connection, "waiting_since", None))
            return seen[-1] is not None

        connection.execute("START TRANSACTION")
        (flow,) = proxy.silence()

        def leave() -> None:
            with suppress(Exception):
                getattr(connection, end)()

        thread = threading.Thread(target=leave)
        thread.start()
        assert flow.swallowed.wait(20)
        with suppress(AssertionError):
            wait_until(waits, "somebody can see that it waits")
        flow.end()
        thread.join(20)
        assert seen[-1] is not None, "nobody sees it"


def _is_in(text: bytes, handled: list[bytes]) -> bool:
    return text in handled


def _waits(consumer: Consumer) -> bool:
    """Whether the loop has waited for an answer for a second."""
    since = getattr(consumer.keeper.working, "waiting_since", None)
    return since is not None and time.monotonic() - since > 1


def _is_let_go(db: ContractDatabase, proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the lease of a loop that waits without an end can be taken over."""
    monkeypatch.setattr(Keeper, "longest_answer", lambda self: 60.0)
    own = db.connect()
    filled(own, events=1)
    short_leases(own, LEASE)
    waiting = Consumer(proxy.url, SUBSCRIPTION, handler=lambda _: None, idle_seconds=0.05)
    with running(waiting):
        wait_until(lambda: stored(own) == 1, "the first event is handled")
        silent = proxy.silence(SUBSCRIPTION.encode())
        more(own, events=1, start=2)
        # Or it had asked just before, and it is the answer that does not come.
        wait_until(lambda: silent[0].swallowed.is_set() or _waits(waiting), "it asks")
        until = time.monotonic() + 5 * LEASE
        ended: list[int] = []

        def is_decided() -> bool:
            if waiting.keeper.is_stuck():  # else a late heartbeat would look like none
                ended.append(sweep(own).expired_consumers)
            return any(ended) or waiting.keeper.last_success > until

        wait_until(is_decided, "the lease ends, or the heartbeats go on and on")
        for flow in silent:
            flow.end()
        wait_until(lambda: stored(own) == 2, "it goes on by itself")
    return any(ended)


@proves("a silent connection stops nobody")
def test_the_lease_of_a_loop_that_waits_ends(
    db: ContractDatabase, proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeats could reach the database all the time."""
    assert _is_let_go(db, proxy, monkeypatch)


@proves("a silent connection stops nobody", guard="the look at an idle connection")
@pytest.mark.long_on("mysql", "mariadb")
def test_without_the_look_it_is_kept_for_ever(
    db: ContractDatabase, proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: whoever has a heartbeat lives."""
    monkeypatch.setattr(Keeper, "is_stuck", lambda self: False)
    assert not _is_let_go(db, proxy, monkeypatch)
