"""The bytes of all answers at a time have a limit, however slowly they are taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

import penstock
from consumers.gateway import room
from consumers.gateway.room import MOST_EVENT_BYTES, AnswerRoom
from tests.contract.databases import ContractDatabase
from tests.contract.gateway.kit import Client, Gateway, gateway_of
from tests.contract.gateway.sqs_kit import sqs_of
from tests.kit.log import wait_until
from tests.kit.proof import proves

MOST = 8_388_608
LONG = b"x" * 1_000_000
EACH = 12
CLIENTS: dict[str, Client] = {}


@pytest.fixture(scope="module")
def narrow(shared_database: ContractDatabase) -> Iterator[Gateway]:
    """A gateway with little room, and two accounts with a queue of long messages."""
    with gateway_of(shared_database, answers_bytes=MOST) as made:
        for name in ("wide", "other"):
            client = CLIENTS[name] = made.client(name)
            assert client("POST", "/queues", {"queueName": "long"}).status == 201
            for _ in range(EACH):
                penstock.publish(made.owner, f"{name}/long", LONG, content_type="text/plain")
        made.sequence()
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for room."""
    monkeypatch.setattr(room, "PATIENCE_SECONDS", 0.3)


def answers(gateway: Gateway) -> AnswerRoom:
    present = gateway.worker._present
    assert present is not None
    return present.services.room


def slow(client: Client, path: str) -> socket.socket:
    """Asks, and takes hardly anything."""
    assert client.key is not None
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    made.connect(("127.0.0.1", client.port))
    made.sendall(
        f"GET /api/v1/accounts/{client.account}{path} HTTP/1.1\r\nHost: a\r\n"
        f"Authorization: Key {client.key.key_id}.{client.key.secret}\r\n\r\n".encode()
    )
    return made


FETCH = "/topics/long/events?from=1&max_events=1000"


@proves("memory of answers")
def test_slow_callers_of_long_answers_keep_all_together_below_the_limit(
    narrow: Gateway, impatient: None
) -> None:
    """Of one account at most half; another one is served; the rest is told to come again.

    Guard: what is taken before anything is read.
    """
    wide, other, bytes_ = CLIENTS["wide"], CLIENTS["other"], answers(narrow)
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(closing(slow(wide, FETCH)))
        for _ in range(3):
            stack.enter_context(closing(slow(wide, "/topics/long/stream?from=earliest")))
        wait_until(lambda: bytes_.used > len(LONG), "some are answered")
        refused = wide("GET", FETCH)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        # A poll of SQS is held, and then finds nothing.
        url = sqs_of(wide).get_queue_url(QueueName="long")["QueueUrl"]
        assert "Messages" not in sqs_of(wide).receive_message(QueueUrl=url, WaitTimeSeconds=0)
        fetched = other("GET", FETCH)
        assert fetched.status == 200
        assert len(LONG) < len(fetched.body) <= MOST // 2
        assert bytes_.used <= bytes_.peak <= MOST
    wait_until(lambda: not bytes_.used, "all is given back")
    assert wide("GET", FETCH).status == 200


@proves("memory of answers")
@pytest.mark.parametrize("path", ["/topics/long/stream?from=earliest"])
def test_what_is_long_is_read_in_parts_and_comes_whole(narrow: Gateway, path: str) -> None:
    wide, bytes_ = CLIENTS["wide"], answers(narrow)
    found = 0
    while found < EACH:
        found += len(wide("GET", f"/topics/long/events?from={found + 1}&max_events=1000").json())
    with closing(slow(wide, path)) as made:
        got = 0
        while got < EACH * len(LONG):
            got += len(made.recv(1_000_000))
    assert bytes_.peak <= MOST
    wait_until(lambda: not bytes_.used, "all is given back")


def test_a_receive_hands_out_no_more_than_has_room(narrow: Gateway) -> None:
    wide = CLIENTS["wide"]
    found = wide("POST", "/queues/long/receive", {"max_events": 100, "wait_seconds": 10}).json()
    receipts = [each["receipt"] for each in found["messages"]]
    assert 1 <= len(receipts) <= MOST // 2 // MOST_EVENT_BYTES
    assert wide("POST", "/queues/long/release", {"receipts": receipts}).status == 200
