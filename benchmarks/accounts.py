"""What an account costs: publish, receive and acknowledge for one, by turns with a login.

A call of an account is a transaction with `act_as` before it.  Both work in namespaces that are
closed to others.  Measured is the processor time of the server's process for the session (Linux),
which other work on the machine disturbs less than the clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.bench_database import BenchDatabase
from benchmarks.events import messages
from benchmarks.measure import Aim, Case, Settings
from benchmarks.processor import session_seconds
from penstock import accounts
from penstock.accounts import MasterKeys
from penstock.publishing.publish import publish
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Receipt
from penstock.topics import names, rights

EVENTS = 2_000
#: Events of one receive, and of one acknowledgement.
TEN = 10
AIM = Aim(cost=1.15)
UNIT = "of a processor, events/s"
_MOST = 10**12


@dataclass(frozen=True, slots=True)
class Caller:
    """A login, or the gateway's login that acts for an account."""

    connection: Any
    namespace: str
    #: The binds of `act_as`.
    account: tuple[str, Sequence[str]] | None = None

    def in_transaction(self, work: Callable[[Any], Any]) -> Any:
        """Do the work in a transaction of its own.  Returns what it returns."""
        with self.connection.transaction():
            if self.account is not None:
                self.connection.execute("SELECT penstock.act_as(%s, %s)", self.account)
            return work(self.connection)

    def spent(self) -> float:
        """The processor time of the session's process on the server, in seconds."""
        return session_seconds(self.connection)


def cases(bench: BenchDatabase, settings: Settings) -> Iterator[Case]:
    """An account and a login in closed namespaces; the same with a quota; an open topic."""
    rows = settings.amount(EVENTS)
    with ExitStack() as stack:
        login, account, limited, open_topic = _callers(bench, stack)
        against = "a login"
        for name, one, other, aim, beside in (
            ("account_publish", account, login, AIM, against),
            ("account_publish_quota", limited, account, None, "an account without a quota"),
            ("account_publish_open", account, open_topic, None, "a login, an open topic"),
        ):
            published = Publishing(one, rows), Publishing(other, rows)
            yield Case(name, rows, 1, *published, beside, aim, UNIT)
        for each in (login, account):
            bench.fill([f"{each.namespace}/work"], rows)
        bench.work_off()
        bench.analyse()
        ours, peer = Taking(bench, account, rows), Taking(bench, login, rows)
        yield Case("account_receive", rows, TEN, ours.received, peer.received, against, AIM, UNIT)
        yield Case(
            "account_acknowledge", rows, TEN, ours.acknowledged, peer.acknowledged, against, AIM,
            UNIT,
        )  # fmt: skip


def _callers(bench: BenchDatabase, stack: ExitStack) -> list[Caller]:
    owner = bench.connection
    for namespace in ("open", "walled"):
        _topics(owner, namespace)
    rights.grant_namespace(owner, "walled", "postgres", "publish")
    found = [Caller(owner, "walled")]
    gateway = stack.enter_context(
        psycopg.connect(bench.server.gateway_url(bench.name), autocommit=True)
    )
    for account in ("shop", "bank"):
        accounts.create_account(owner, account)
        _topics(owner, account)
        key = accounts.create_key(owner, account, MasterKeys(["m" * 32]))
        found.append(Caller(gateway, account, (key.account_id, [key.key_id])))
    accounts.set_quota(owner, "bank", max_events=_MOST, max_bytes=_MOST, max_waiting=_MOST)
    return [*found, Caller(owner, "open")]


def _topics(owner: Any, namespace: str) -> None:
    for name in ("orders", "work"):
        names.create_topic(owner, f"{namespace}/{name}", create_namespaces=True)


class Publishing:
    """Runs that publish one event in each transaction."""

    def __init__(self, caller: Caller, rows: int) -> None:
        self._caller, self._rows = caller, rows
        (self._event,) = messages(f"{caller.namespace}/orders", 1)

    def __call__(self) -> float:
        event, begun = self._event, self._caller.spent()
        for _ in range(self._rows):
            self._caller.in_transaction(
                lambda connection: publish(
                    connection, event.topic, event.payload, key=event.key, type=event.type,
                    content_type=event.content_type, headers=event.headers,
                )
            )  # fmt: skip
        return self._caller.spent() - begun


class Taking:
    """Runs that work off a whole topic by tens, by a new queue each time."""

    def __init__(self, bench: BenchDatabase, caller: Caller, rows: int) -> None:
        self._bench, self._caller, self._rows = bench, caller, rows
        self._numbers = itertools.count(1)

    def received(self) -> float:
        """Only what receiving took."""
        return self._run()[0]

    def acknowledged(self) -> float:
        """Only what acknowledging took."""
        return self._run()[1]

    def _run(self) -> tuple[float, float]:
        caller, name = self._caller, f"{self._caller.namespace}/queue{next(self._numbers)}"
        queue.subscribe(self._bench.connection, name, [f"{caller.namespace}/work"])

        def receive(connection: Any) -> Sequence[queue.Delivery]:
            return queue.hand_out(connection, name, TEN)

        begun, taken = caller.spent(), []
        while found := caller.in_transaction(receive):
            taken.append([each.receipt for each in found])
        received = caller.spent()
        for receipts in taken:
            caller.in_transaction(_acknowledging(name, receipts))
        if sum(map(len, taken)) != self._rows:
            raise RuntimeError(f"{sum(map(len, taken))} of {self._rows} events were received")
        return received - begun, caller.spent() - received


def _acknowledging(name: str, receipts: Sequence[Receipt]) -> Callable[[Any], Any]:
    return lambda connection: queue.acknowledge(connection, name, receipts)
