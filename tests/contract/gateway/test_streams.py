"""Server-sent events: in order, without a gap, also for whoever comes again or is slow."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from consumers.gateway import tails
from consumers.gateway.streams import StreamListener
from consumers.gateway.tails import KeptEvent, Ring, TopicTail
from penstock import accounts
from tests.contract.gateway.kit import Client, Gateway
from tests.kit.proof import proves

STREAM = "/topics/orders/stream"


@contextmanager
def listening(client: Client, query: str = "", last: str = "") -> Iterator[Any]:
    """The answer to a stream."""
    assert client.key is not None
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
    told = {"Authorization": f"Key {client.key.key_id}.{client.key.secret}"}
    if last:
        told["Last-Event-ID"] = last
    connection.request("GET", f"/api/v1/accounts/{client.account}{STREAM}{query}", b"", told)
    reply = connection.getresponse()
    try:
        yield reply
    finally:
        reply.close()
        connection.close()


def events(reply: Any, count: int) -> list[tuple[str, Any]]:
    """So many events, with their ids; comments are skipped."""
    found: list[tuple[str, Any]] = []
    place = ""
    while len(found) < count:
        line = reply.readline().decode().rstrip("\n")
        if line.startswith("id: "):
            place = line.removeprefix("id: ")
        elif line.startswith("data: "):
            found.append((place, json.loads(line.removeprefix("data: "))))
    return found


def published(client: Client, first: int, count: int) -> None:
    given = [{"text": str(first + n), "key": str(n % 3)} for n in range(count)]
    assert client("POST", "/topics/orders/batches", {"events": given}).status == 201


@pytest.fixture
def orders(shop: Client) -> Client:
    """The account with a topic of two partitions."""
    assert shop("POST", "/topics", {"topic": "orders", "partitions": 2}).status == 201
    return shop


def numbers(found: list[tuple[str, Any]]) -> list[int]:
    return sorted(int(event["data"]) for _, event in found)


@proves("a stream over HTTP")
def test_listeners_get_each_event_once_in_order_and_go_on_where_they_ended(
    gateway: Gateway, orders: Client
) -> None:
    published(orders, 0, 5)
    gateway.sequence()
    with gateway.sequencing(), listening(orders) as new, listening(orders, "?from=earliest") as old:
        assert new.headers["content-type"] == "text/event-stream"
        assert numbers(events(old, 5)) == [*range(5)]
        published(orders, 5, 20)
        assert numbers(events(new, 20)) == [*range(5, 25)]
        found = events(old, 20)
        assert numbers(found) == [*range(5, 25)]
        for key in "012":
            of_key = [int(e["data"]) for _, e in found if e["partitionkey"] == key]
            assert of_key == sorted(of_key)
        published(orders, 25, 5)
        with listening(orders, last=found[9][0]) as again:
            rest = numbers(events(again, 15))
            assert rest == sorted({*range(30)} - {*range(5)} - {*numbers(found[:10])})


@proves("a stream over HTTP")
def test_a_listener_that_falls_out_of_the_ring_misses_nothing(
    gateway: Gateway, orders: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "MOST_KEPT", 3)
    with gateway.sequencing(), listening(orders) as reply:
        for first in range(0, 300, 100):
            published(orders, first, 100)
        assert numbers(events(reply, 300)) == [*range(300)]


def test_what_comes_between_a_listeners_fetch_and_the_first_look_is_not_missed(
    gateway: Gateway, orders: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, may_look = threading.Event(), threading.Event()
    look, fetch = TopicTail._look, StreamListener._fetch_missing

    def late(tail: TopicTail, connection: Any, size: int) -> Any:
        assert may_look.wait(20)
        return look(tail, connection, size)

    async def told(listener: StreamListener) -> None:
        await fetch(listener)
        fetched.set()

    monkeypatch.setattr(TopicTail, "_look", late)
    monkeypatch.setattr(StreamListener, "_fetch_missing", told)
    with listening(orders) as reply:
        assert fetched.wait(20)
        published(orders, 0, 3)
        gateway.sequence()
        may_look.set()
        assert numbers(events(reply, 3)) == [0, 1, 2]


def test_a_listener_ends_with_its_topic(gateway: Gateway, orders: Client) -> None:
    with listening(orders) as reply:
        assert orders("DELETE", "/topics/orders").status == 204
        assert b"event: end\ndata: 404\n\n" in reply.read()


def test_one_partition_only_and_what_is_refused(
    gateway: Gateway, orders: Client, bank: Client
) -> None:
    published(orders, 0, 10)
    gateway.sequence()
    high = orders("GET", "/topics/orders/partitions").json()["partitions"][1]["high_watermark"]
    with listening(orders, "?partition=1&from=earliest") as reply:
        found = events(reply, high)
        assert {event["penstockpartition"] for _, event in found} == {1}
        assert found[-1][0] == f"1.1.{high}"
    for query, last, status in [
        ("?partition=2", "", 400),
        ("", "x", 400),
        ("", "2.0.1", 409),
        ("", "1.0.1000", 409),
    ]:
        with listening(orders, query, last) as reply:
            assert reply.status == status, (query, last)
    with listening(bank) as reply:
        assert reply.status == 404


def test_a_stream_ends_with_its_key(
    gateway: Gateway, orders: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.gateway.streams.RIGHT_SECONDS", 0.0)
    assert orders.key is not None
    with listening(orders) as reply:
        accounts.revoke_key(gateway.owner, orders.account, orders.key.key_id)
        assert b"event: end\ndata: 401\n\n" in reply.read()


def test_a_ring_says_when_something_was_dropped() -> None:
    ring = Ring()
    for sequence in range(1, tails.MOST_KEPT + 1):
        ring.add(KeptEvent(0, sequence, 1, b"x"))
    assert len(ring.since(0) or []) == tails.MOST_KEPT
    ring.add(KeptEvent(0, tails.MOST_KEPT + 1, 1, b"x"))
    assert ring.since(0) is None
    assert [each.sequence for each in ring.since(tails.MOST_KEPT) or []] == [tails.MOST_KEPT + 1]
    assert ring.since(tails.MOST_KEPT + 1) == []
    # What has no room in a ring is not kept by it, and is fetched.
    ring.add(KeptEvent(0, tails.MOST_KEPT + 2, 1, b"x" * 100), most_bytes=99)
    assert ring.since(tails.MOST_KEPT + 1) is None
    assert (ring.size, ring.since(tails.MOST_KEPT + 2)) == (0, [])
