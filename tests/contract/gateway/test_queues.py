"""Our own API of queues: batches, long polls, dead letters."""

from __future__ import annotations

import http.client
import threading
import time
from typing import Any

import pytest

from penstock.subscriptions import queue
from tests.contract.gateway.kit import Client, Gateway
from tests.kit.log import wait_until
from tests.kit.proof import proves

RECEIVE = "/queues/mails/receive"


@pytest.fixture
def mails(shop: Client) -> Client:
    """The account with a queue `mails`."""
    assert shop("POST", "/queues", {"queueName": "mails"}).status == 201
    return shop


def filled(gateway: Gateway, client: Client, count: int) -> None:
    events = [{"text": str(number)} for number in range(count)]
    assert client("POST", "/topics/mails/batches", {"events": events}).status == 201
    gateway.sequence()


def received(client: Client, count: int) -> list[Any]:
    wanted = {"max_events": count, "visibility_seconds": 60, "wait_seconds": 10}
    reply = client("POST", RECEIVE, wanted)
    assert reply.status == 200, reply.body
    messages: list[Any] = reply.json()["messages"]
    return messages


def test_messages_are_settled_in_batches(gateway: Gateway, mails: Client) -> None:
    filled(gateway, mails, 6)
    found = received(mails, 6)
    assert [each["event"]["data"] for each in found] == list("012345")
    receipts = [each["receipt"] for each in found]
    done = mails("POST", "/queues/mails/acknowledge", {"receipts": receipts[:2]})
    assert (done.status, done.json()) == (200, {"done": [True, True]})
    assert mails("POST", "/queues/mails/acknowledge", {"receipts": receipts[:3]}).status == 409
    partly = {"receipts": receipts[1:3], "partly": True}
    assert mails("POST", "/queues/mails/acknowledge", partly).json() == {"done": [False, True]}
    longer = {"receipts": receipts[3:4], "visibility_seconds": 90}
    (new,) = mails("POST", "/queues/mails/extend", longer).json()["receipts"]
    assert new != receipts[3]
    assert mails("POST", "/queues/mails/release", {"receipts": [new]}).status == 200
    failed = {"receipts": receipts[4:5], "reason": "no", "delay_seconds": 600}
    assert mails("POST", "/queues/mails/reject", failed).status == 200
    counts = mails("GET", "/queues/mails/counts").json()
    assert counts == {"size": 3, "ready": 1, "in_flight": 1, "delayed": 1, "dead": 0}
    assert mails("POST", "/queues/mails/acknowledge", {"receipts": ["x"]}).status == 400
    assert mails("POST", "/queues/mails/purge").json() == {"purged": 3}


def test_a_letter_that_died_is_listed_and_redriven(gateway: Gateway, mails: Client) -> None:
    queue.configure(gateway.owner, f"{mails.account}/mails", max_failures=1)
    filled(gateway, mails, 1)
    receipt = received(mails, 1)[0]["receipt"]
    mails("POST", "/queues/mails/reject", {"receipts": [receipt], "reason": "broken"})
    (letter,) = mails("GET", "/queues/mails/dead-letters").json()["letters"]
    assert (letter["reason"], letter["state"]) == ("broken", "dead")
    assert mails("GET", "/queues/mails/dead-letters?state=none").status == 400
    assert mails("POST", "/queues/mails/redrive", {"letters": [letter["id"]]}).json() == {
        "redriven": 1
    }
    assert len(received(mails, 1)) == 1


def test_a_long_poll_ends_with_the_first_message_or_with_its_time(
    gateway: Gateway, mails: Client
) -> None:
    begun = time.monotonic()
    assert mails("POST", RECEIVE, {"wait_seconds": 0.3}).json() == {"messages": []}
    assert time.monotonic() - begun >= 0.3
    replies: list[Any] = []

    def poll() -> None:
        replies.append(mails("POST", RECEIVE, {"wait_seconds": 25}).json()["messages"])

    polls = [threading.Thread(target=poll) for _ in range(3)]
    for each in polls:
        each.start()
    wait_until(lambda: gateway.worker.gauges()["gateway_polls"] == 3, "three polls wait")
    filled(gateway, mails, 3)
    for each in polls:
        each.join(20)
    assert sorted(each["event"]["data"] for reply in replies for each in reply) == list("012")


@proves("a caller that hung up")
@pytest.mark.parametrize("more", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_a_poll_whose_caller_hung_up_takes_nothing(
    gateway: Gateway, mails: Client, more: bytes
) -> None:
    """Also when the caller has sent one more request before."""
    assert mails.key is not None
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
    told = {"Authorization": f"Key {mails.key.key_id}.{mails.key.secret}"}
    path = f"/api/v1/accounts/{mails.account}{RECEIVE}"
    connection.request("POST", path, b'{"wait_seconds": 25}', told)
    wait_until(lambda: gateway.worker.gauges()["gateway_polls"] == 1, "it waits")
    connection.sock.sendall(more)
    connection.close()
    wait_until(lambda: gateway.worker.gauges()["gateway_polls"] == 0, "it is gone")
    filled(gateway, mails, 1)
    (message,) = received(mails, 1)
    assert message["deliveries"] == 1
