"""Publishes that wait together, and some that are refused: how many transactions they cost."""

from __future__ import annotations

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pymysql
import pytest

import penstock
from consumers.gateway import publishing
from consumers.gateway.answers import Refused
from consumers.gateway.claims import calls_of
from consumers.gateway.lanes import Outgoing
from consumers.gateway.pool import Pool, Principal
from consumers.gateway.publishing import Coalescer
from penstock import accounts, database
from penstock.errors import InvalidArgument
from penstock.publishing import recent_sends
from penstock.publishing.event_ids import uuid7
from penstock.publishing.recent_sends import Send
from penstock.records import Message
from penstock.topics import names
from tests.contract.gateway.kit import Client, Gateway
from tests.kit.log import wait_until
from tests.kit.proof import proves

_numbers = itertools.count(1)
FAR = datetime.now(UTC) + timedelta(days=3_000)


class CountedPool(Pool):
    """Counts its transactions."""

    runs = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.used: list[Principal | None] = []

    async def run(self, principal: Principal | None, work: Any, **how: Any) -> Any:
        self.runs += 1
        self.used.append(principal)
        return await super().run(principal, work, **how)


class Batch:
    """Events of an account that are published at the same moment, through one connection."""

    def __init__(self, gateway: Gateway, client: Client) -> None:
        assert client.key is not None
        self.gateway = gateway
        self.topic = f"{client.account}/orders"
        self._principal = Principal(client.key.account_id, client.key.key_id)
        names.create_topic(gateway.owner, self.topic, 2)
        self.transactions = 0

    def message(self, payload: bytes = b"x", topic: str = "", **more: Any) -> Message:
        return Message(topic or self.topic, payload, **more)

    def publish(self, messages: list[Message]) -> list[Any]:
        """What each gets; the first one goes alone, and all others come while it does."""
        return self.send([Outgoing(each) for each in messages])

    def send(self, given: list[Outgoing]) -> list[Any]:
        """The same, with claims."""

        async def run() -> list[Any]:
            with closing(
                CountedPool(self.gateway.tenants.url_of(self.gateway.login), 1, 8)
            ) as pool:
                coalescer = Coalescer(pool, 1)
                first = coalescer.publish(self._principal, self.message())
                calls = [[given[place] for place in call] for call in calls_of(given)]
                rest = [_call(coalescer, self._principal, each) for each in calls]
                _, *made = await asyncio.gather(first, *rest)
                self.transactions = pool.runs - 1
                return list(itertools.chain.from_iterable(made))

        return asyncio.run(run())


async def _call(coalescer: Coalescer, principal: Principal, call: list[Outgoing]) -> list[Any]:
    waiting = coalescer.enqueue(principal, call)
    return await asyncio.gather(*waiting, return_exceptions=True)


async def _one(coalescer: Coalescer, principal: Principal, outgoing: Outgoing) -> UUID:
    return await coalescer.enqueue(principal, [outgoing])[0]


@pytest.fixture
def batch(gateway: Gateway, shop: Client) -> Batch:
    """A topic `orders` of a new account."""
    return Batch(gateway, shop)


def kinds(results: list[Any]) -> list[str]:
    return [type(each).__name__ for each in results]


@dataclass(frozen=True, slots=True)
class Party:
    """An account with a topic and a key."""

    principal: Principal
    topic: str

    def message(self, topic: str = "", **more: Any) -> Message:
        return Message(topic or self.topic, b"x", **more)


@pytest.fixture
def parties(gateway: Gateway) -> list[Party]:
    """Four new accounts."""
    made = []
    for _ in range(4):
        client = gateway.client(f"party{next(_numbers)}")
        assert client.key is not None
        names.create_topic(gateway.owner, f"{client.account}/orders")
        principal = Principal(client.key.account_id, client.key.key_id)
        made.append(Party(principal, f"{client.account}/orders"))
    return made


def publish_all(
    gateway: Gateway, given: list[tuple[Party, Message]]
) -> tuple[list[Any], list[Principal | None]]:
    """What each gets that comes while one connection is busy, and for whom it was then used."""

    async def run() -> tuple[list[Any], list[Principal | None]]:
        with closing(CountedPool(gateway.tenants.url_of(gateway.login), 1, 8)) as pool:
            coalescer = Coalescer(pool, 1)
            party = given[0][0]
            first = coalescer.publish(party.principal, party.message())
            calls = [_one(coalescer, each.principal, Outgoing(what)) for each, what in given]
            made = await asyncio.gather(first, *calls, return_exceptions=True)
            return list(made)[1:], pool.used[1:]

    return asyncio.run(run())


def test_accounts_share_one_transaction(gateway: Gateway, parties: list[Party]) -> None:
    given = [(each, each.message(key=str(n))) for n in range(5) for each in parties]
    results, used = publish_all(gateway, given)
    assert kinds(results) == ["UUID"] * 20
    assert len({*results}) == 20
    assert used == [None]


@proves("a publish over HTTP")
def test_who_is_refused_in_the_middle_touches_no_other(
    gateway: Gateway, parties: list[Party]
) -> None:
    """A foreign topic, a revoked key, and a delay that is too long: each in its own transaction."""
    foreign, revoked, late, good = parties
    accounts.revoke_key(gateway.owner, revoked.topic.split("/")[0], revoked.principal.key_id)
    given = [
        (good, good.message()),
        (foreign, foreign.message(good.topic)),
        (revoked, revoked.message()),
        (foreign, foreign.message()),
        (late, late.message(not_before=FAR)),
        (good, good.message()),
    ]
    results, used = publish_all(gateway, given)
    assert kinds(results) == [
        *("UUID", "TopicNotFound", "AccountNotFound", "UUID", "InvalidArgument", "UUID")
    ]
    assert used[0] is None
    assert {*used[1:]} == {foreign.principal, revoked.principal, late.principal}
    assert len(used) == 4
    ((count,),) = gateway.db.run(
        "SELECT count(*) FROM penstock.events AS e JOIN penstock.topics AS t"
        " ON t.id * 65536 = e.partition_id WHERE t.address = %(topic)s",
        {"topic": good.topic},
    )
    assert count == 3


@proves("a publish over HTTP")
def test_what_is_shared_and_fails_as_a_whole_is_sent_by_itself(
    gateway: Gateway, parties: list[Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One account has sent what nobody has foreseen: nothing was written, and the others go on."""

    def fails(connection: Any, **given: Any) -> list[int]:
        raise psycopg.errors.UntranslatableCharacter("a bad one")

    monkeypatch.setattr(publishing, "publish_for_accounts", fails)
    results, used = publish_all(gateway, [(each, each.message()) for each in parties])
    assert kinds(results) == ["UUID"] * 4
    assert used[-5] is None
    assert {*used[-4:]} == {each.principal for each in parties}


@proves("a publish over HTTP", guard="the end of a COMMIT")
@pytest.mark.parametrize("at_commit", [False, True])
def test_a_statement_that_was_ended_is_sent_apart_but_a_commit_is_not(
    gateway: Gateway, parties: list[Party], monkeypatch: pytest.MonkeyPatch, at_commit: bool
) -> None:
    """By its limit of time: it wrote nothing.  Of a COMMIT that is not known."""
    if gateway.db.engine == "postgres":
        lost, ended = psycopg.OperationalError("lost"), psycopg.errors.QueryCanceled("ended")

        def fails(connection: Any, **given: Any) -> list[int]:
            raise lost if at_commit else ended

        monkeypatch.setattr(publishing, "publish_for_accounts", fails)
    else:
        _end_on_mysql(monkeypatch, at_commit=at_commit)
    results, used = publish_all(gateway, [(each, each.message()) for each in parties])
    assert kinds(results) == ["OperationalError" if at_commit else "UUID"] * 4
    assert {*used[-4:]} == ({None} if at_commit else {each.principal for each in parties})


def _end_on_mysql(monkeypatch: pytest.MonkeyPatch, *, at_commit: bool) -> None:
    plain, shared = pymysql.connections.Connection.query, list[Any]()

    def query(connection: Any, sql: Any, unbuffered: bool = False) -> Any:
        text = sql.decode(errors="replace") if isinstance(sql, bytes | bytearray) else sql
        if "publish_for_accounts" in text:
            shared.append(connection)
        if connection in shared and (not at_commit or text.startswith("SET autocommit = 1")):
            shared.clear()
            raise pymysql.err.OperationalError(1317, "Query execution was interrupted")
        return plain(connection, sql, unbuffered)

    monkeypatch.setattr(pymysql.connections.Connection, "query", query)


def test_a_topic_that_is_left_out_and_good_goes_by_itself_then(
    gateway: Gateway, parties: list[Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a limit of back pressure: for some seconds it is not tried again."""
    limited, other = parties[:2]
    database.call(
        gateway.owner, "set_backpressure", topic=limited.topic, max_events=10_000, max_bytes=None
    )
    for seconds in (10.0, 0.0):
        monkeypatch.setattr(publishing, "_UNSHARED_SECONDS", seconds)

        async def run() -> list[Principal | None]:
            with closing(CountedPool(gateway.tenants.url_of(gateway.login), 1, 8)) as pool:
                coalescer = Coalescer(pool, 1)
                for party in (limited, other, limited, other):
                    await coalescer.publish(party.principal, party.message())
                return pool.used

        mine = [limited.principal] if seconds else [None, limited.principal]
        assert asyncio.run(run()) == [None, limited.principal, None, *mine, None]


@proves("a publish over HTTP", guard="again only after a refusal")
def test_bad_publishes_cost_no_transaction_each(batch: Batch) -> None:
    """Of missing topics, of no partition, too long: 301 cost what one does."""
    bad = [batch.message(topic=f"{batch.topic}-none"), batch.message(partition=7)]
    long = batch.message(b"x" * 1_048_577)
    results = batch.publish([batch.message(), *bad * 150, long, batch.message()])
    assert kinds(results[1:-2]) == ["TopicNotFound", "InvalidPartition"] * 150
    assert kinds([results[0], *results[-2:]]) == ["UUID", "PayloadTooLarge", "UUID"]
    assert batch.transactions == 2
    assert "event " not in str(results[2])


def test_what_no_database_takes_is_refused_before_it_waits(batch: Batch) -> None:
    results = batch.publish([batch.message(key="k" * 300), batch.message()])
    assert kinds(results) == ["InvalidArgument", "UUID"]
    assert batch.transactions == 1


def test_what_only_the_database_refuses_is_found_by_halves(batch: Batch) -> None:
    """One of 200 that is delayed for too long, in two transactions and few tries."""
    messages = [batch.message() for _ in range(200)]
    messages[123] = batch.message(not_before=FAR)
    results = batch.publish(messages)
    assert [n for n, each in enumerate(results) if isinstance(each, Exception)] == [123]
    assert isinstance(results[123], InvalidArgument)
    assert "event " not in str(results[123])
    assert batch.transactions == 2
    assert len({each for each in results if not isinstance(each, Exception)}) == 199


def test_many_that_only_the_database_refuses_end_after_some_tries(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is told to come again: nothing of it was written."""
    monkeypatch.setattr(publishing, "MOST_TRIES", 8)
    results = batch.publish([batch.message(not_before=FAR) for _ in range(64)])
    assert {type(each) for each in results} == {InvalidArgument, Refused}
    assert batch.transactions == 2


@proves("a publish over HTTP")
def test_a_topic_under_pressure_stops_no_other(batch: Batch, gateway: Gateway) -> None:
    full = f"{batch.topic}-full"
    names.create_topic(gateway.owner, full, 1)
    database.call(gateway.owner, "set_backpressure", topic=full, max_events=1, max_bytes=None)
    gateway.sequence()
    penstock.publish(gateway.owner, full, b"x")
    assert database.call(gateway.owner, "measure_pressure") == [(1,)]
    results = batch.publish([batch.message(topic=full), batch.message()])
    assert kinds(results) == ["BackPressure", "UUID"]
    assert batch.transactions == 2


def test_an_open_claim_holds_up_no_other_of_its_batch(batch: Batch, gateway: Gateway) -> None:
    """Guard: nothing was written then, so the others are tried again, in halves."""
    with closing(gateway.db.connect(autocommit=False)) as holder:
        recent_sends.claim(holder, [Send(batch.topic, "held", uuid7())], 300)
        results = batch.send([Outgoing(batch.message(), key) for key in ("a", "held", "b")])
        holder.rollback()
    assert [isinstance(each, UUID) for each in results] == [True, False, True]
    assert database.is_contention(results[1])
    again = batch.send([Outgoing(batch.message(), key) for key in ("a", "held", "b")])
    assert [mine == before for mine, before in zip(again, results, strict=True)] == [1, 0, 1]


def test_what_is_refused_leaves_no_claim(batch: Batch) -> None:
    """Guard: a claim is undone with its event.  Else a resend would get an id of nothing."""
    bad = Outgoing(batch.message(not_before=FAR), "x")
    results = batch.send([Outgoing(batch.message(), "a"), bad, Outgoing(batch.message(), "b")])
    assert kinds(results) == ["UUID", "InvalidArgument", "UUID"]
    assert batch.send([bad])[0].message == results[1].message
    ((count,),) = batch.gateway.db.run(
        "SELECT count(*) FROM penstock.recent_sends WHERE send_key = 'x'"
    )
    assert count == 0


@proves("a resend of SQS", guard="a call stays whole")
def test_a_call_that_shares_a_claim_is_never_torn_apart(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: halves tear it apart, and a resend doubles what its first half has published."""

    def call(claim: str, last: Message) -> list[Outgoing]:
        given = [batch.message(), batch.message(), last]
        return [Outgoing(each, claim, number) for number, each in enumerate(given)]

    good, bad = call("a", batch.message()), call("x", batch.message(not_before=FAR))
    _, *results = batch.send([Outgoing(batch.message(), "alone"), *good, *bad])
    assert kinds(results) == ["UUID"] * 3 + ["InvalidArgument"] * 3
    assert batch.send(call("a", batch.message())) == results[:3]
    monkeypatch.setattr(
        publishing, "calls_of", lambda some: [[place] for place in range(len(some))]
    )
    assert "UUID" in kinds(batch.send(call("y", batch.message(not_before=FAR))))


def test_publishes_that_wait_for_another_transaction_stop_nobody(
    gateway: Gateway, shop: Client, bank: Client
) -> None:
    """As many as there are connections wait for a key: logins and other calls go on."""
    assert shop("POST", "/topics", {"topic": "orders"}).status == 201
    holder = gateway.db.connect(autocommit=False)
    penstock.publish(holder, f"{shop.account}/orders", b"x", dedup_key="d", strict=True, key="k")
    with ThreadPoolExecutor(4) as executor:
        path = "/topics/orders/events?dedup_key=d&strict=true&key=k"
        waiting = [executor.submit(shop, "POST", path, b"x") for _ in range(4)]
        wait_until(lambda: any(each.running() for each in waiting), "they wait")
        begun = time.monotonic()
        assert gateway.client(f"{bank.account}-new")("GET", "/queues").status == 200
        assert shop("GET", "/queues").status == 200
        passed = time.monotonic() - begun
        statuses = {each.result().status for each in waiting}
        took = time.monotonic() - begun
    holder.rollback()
    assert statuses == {503}
    # Of MySQL, a second is the shortest wait for a lock.
    assert passed < took < 8
