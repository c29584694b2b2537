"""Tenants beside each other: quotas over HTTP, and slow calls of one that stop no other."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from consumers.gateway.present import Present
from consumers.gateway.turns import Turns
from penstock import accounts, database
from tests.contract.gateway.kit import Client, Gateway, Reply
from tests.contract.gateway.sqs_kit import refused, sqs_of
from tests.kit.log import wait_until
from tests.kit.proof import proves

QUEUE = "/queues/mails"


@pytest.fixture
def mails(shop: Client) -> Client:
    """An account with a queue."""
    assert shop("POST", "/queues", {"queueName": "mails"}).status == 201
    return shop


@proves("fair turns of the gateway")
def test_who_has_used_its_quota_is_told_when_to_come_again(gateway: Gateway, mails: Client) -> None:
    """Over ten seconds; the other calls go on, and SQS clients learn it as they expect it."""
    accounts.set_quota(gateway.owner, mails.account, max_events=1)
    replies = [mails("POST", f"{QUEUE}/messages", b"x") for _ in range(11)]
    assert [each.status for each in replies] == [201] * 10 + [429]
    assert 1 <= int(replies[-1].headers["retry-after"]) <= 10
    assert "Nothing was published" in replies[-1].json()["message"]
    sqs, url = sqs_of(mails), f"http://127.0.0.1:{mails.port}/{mails.account}/mails"
    code, old, status = refused(sqs.send_message, QueueUrl=url, MessageBody="x")
    assert (code, old, status) == ("RequestThrottled", "RequestThrottled", 429)
    made = sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "x"}])
    assert [(each["Code"], each["SenderFault"]) for each in made["Failed"]] == [
        ("RequestThrottled", True)
    ]
    gateway.sequence()
    assert len(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]) == 10


@contextlib.contextmanager
def _polling(gateway: Gateway, client: Client) -> Iterator[None]:
    """A poll that finds nothing, until its caller hangs up."""
    assert client.key is not None
    before = gateway.worker.gauges()["gateway_polls"]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", client.port)) as connection:
        told = {"Authorization": f"Key {client.key.key_id}.{client.key.secret}"}
        path = f"/api/v1/accounts/{client.account}{QUEUE}/receive"
        connection.request("POST", path, b'{"wait_seconds": 25}', told)
        wait_until(lambda: gateway.worker.gauges()["gateway_polls"] > before, "it polls")
        yield
    wait_until(lambda: gateway.worker.gauges()["gateway_polls"] == before, "it has hung up")


@proves("fair turns of the gateway", guard="counting requests")
def test_an_account_has_so_many_requests_at_a_time(
    gateway: Gateway, bank: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll is one; another account goes on.  Mutant: nobody counts them."""
    shop = gateway.client("narrow")
    accounts.set_quota(gateway.owner, "narrow", max_requests=1)
    assert shop("POST", "/queues", {"queueName": "mails"}).status == 201
    sqs, url = sqs_of(shop), f"http://127.0.0.1:{shop.port}/narrow/mails"
    with _polling(gateway, shop):
        reply = shop("GET", QUEUE)
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        code, _, status = refused(sqs.send_message, QueueUrl=url, MessageBody="x")
        assert (code, status) == ("RequestThrottled", 429)
        # A receive is no error, and is held: or its client would come at once again.
        found = sqs.receive_message(QueueUrl=url)
        assert "Messages" not in found
        assert bank("GET", "/queues").status == 200
    wait_until(lambda: shop("GET", QUEUE).status == 200, "it has ended")
    with _polling(gateway, shop), monkeypatch.context() as patched:
        patched.setattr(Present, "one", lambda *_: contextlib.nullcontext())
        assert shop("GET", QUEUE).status == 200


def _turns(gateway: Gateway) -> Turns:
    present = gateway.worker._present
    assert present is not None
    return present._pool._turns


@contextlib.contextmanager
def _blocked(gateway: Gateway, client: Client, places: int) -> Iterator[list[Reply]]:
    """An account with more slow calls than there are connections, of which so many run."""
    replies: list[Reply] = []
    holder = gateway.db.connect()
    database.execute(holder, "BEGIN")
    database.execute(
        holder,
        "SELECT q.subscription_id FROM penstock.queues AS q JOIN penstock.subscriptions AS s"
        " ON s.id = q.subscription_id WHERE s.name = %(name)s FOR UPDATE",
        {"name": f"{client.account}/mails"},
    )
    callers = [
        threading.Thread(target=lambda: replies.append(client("POST", f"{QUEUE}/purge")))
        for _ in range(6)
    ]
    for each in callers:
        each.start()
    turns = _turns(gateway)
    wait_until(lambda: turns.waiting == 6 - places, "all have come")
    try:
        yield replies
    finally:
        database.execute(holder, "ROLLBACK")
        for each in callers:
            each.join()
    assert [each.status for each in replies] == [200] * 6


@proves("fair turns of the gateway", guard="the last connection")
def test_slow_calls_of_one_account_stop_no_other(
    gateway: Gateway, mails: Client, bank: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have all connections but one.  Mutant: the last one is for anybody."""
    with _blocked(gateway, mails, 3) as replies:
        assert bank("GET", "/queues").status == 200
        assert replies == []
    monkeypatch.setattr(_turns(gateway), "_places", 1)
    waiting: list[Any] = []
    with _blocked(gateway, mails, 4):
        caller = threading.Thread(target=lambda: waiting.append(bank("GET", "/queues")))
        caller.start()
        wait_until(lambda: _turns(gateway).waiting == 3, "the other one waits")
        assert waiting == []
    caller.join()
    assert waiting[0].status == 200
