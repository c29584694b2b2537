"""The Python client of the gateway, both kinds: all calls, typed errors, and safe resends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from consumers.gateway import topics
from penstock.errors import (
    GatewayUnavailable,
    InvalidArgument,
    InvalidPartition,
    PermissionDenied,
    StaleLease,
    StaleReceipt,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.http import calls
from penstock.http.calls import NewMessage
from penstock.subscriptions import queue
from tests.contract.gateway.client_kit import client_of, road_to
from tests.contract.gateway.kit import Client, Gateway
from tests.kit.proof import proves


@pytest.fixture(
    params=["sync", pytest.param("async", marks=pytest.mark.long_on("mysql", "mariadb"))]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(shop: Client, kind: str) -> Iterator[Any]:
    with client_of(shop, kind) as made:
        yield made


def test_a_queue_from_the_first_message_to_the_redriven_letter(
    gateway: Gateway, shop: Client, client: Any
) -> None:
    assert client.create_queue("mails") and not client.create_queue("mails")
    queue.configure(gateway.owner, f"{shop.account}/mails", max_deliveries=2, order="none")
    client.publish("mails", b"one", type="mail", key="a", content_type="text/plain")
    client.publish_batch("mails", [NewMessage(b"two"), NewMessage(b"three")])
    with gateway.sequencing():
        found = client.receive("mails", 3, visibility_seconds=60, wait_seconds=20)
        while len(found) < 3:
            found += client.receive("mails", 3, wait_seconds=20)
    by_payload = {each.event.payload: each for each in found}
    one = by_payload[b"one"]
    assert (one.event.key, one.event.type, one.deliveries) == ("a", "mail", 1)
    assert one.event.content_type == "text/plain"
    (longer,) = client.extend("mails", [one.receipt], 120)
    assert client.acknowledge("mails", [longer]) == [True]
    with pytest.raises(StaleReceipt):
        client.acknowledge("mails", [longer])
    assert client.acknowledge("mails", [longer], partly=True) == [False]
    assert client.release("mails", [by_payload[b"two"].receipt]) == [True]
    assert client.reject("mails", [by_payload[b"three"].receipt], "no", delay_seconds=0) == [True]
    while not (letters := client.dead_letters("mails", state="dead")):
        for each in client.receive("mails", 3, wait_seconds=20):
            verb = client.reject if each.event.payload == b"three" else client.release
            verb("mails", [each.receipt])
    (letter,) = letters
    assert (letter.content_type, letter.attempts) == ("application/octet-stream", 2)
    assert client.redrive("mails", [letter.id]) == 1
    counts = client.counts("mails")
    assert (counts.size, counts.dead) == (2, 0)


JSON = b'{"total": 12.50, "id": 12345678901234567890, "n": [1, {"a": "\\u00e9"}], "e": 1e400}'


def test_what_is_published_is_fetched_as_it_was(
    gateway: Gateway, shop: Client, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.create_topic("orders/eu", 2) and client.create_topic("orders/us", 1)
    monkeypatch.setattr(topics, "MOST_LISTED", 1)  # in pages of one
    assert client.topics() == [f"{shop.account}/orders/{each}" for each in ("eu", "us")]
    at = datetime.now(UTC) - timedelta(hours=1)
    made = [
        client.publish("orders/eu", JSON, content_type="application/json", partition=0),
        client.publish("orders/eu", b"\x00\xff", partition=0, not_before=at),
        client.publish("orders/eu", "\u00e9\n".encode(), partition=0, content_type="text/plain"),
        client.publish("orders/eu", b"x", partition=0, headers={"a": 1, "subject": "s"}, key="k"),
        client.publish("orders/eu", b"y", partition=0, resend=False),
        client.publish("orders/eu", b"z", partition=0, dedup_key="z"),
    ]
    assert not any(each.duplicate for each in made)
    assert client.publish("orders/eu", b"z", dedup_key="z").duplicate
    gateway.sequence()
    found = client.fetch("orders/eu", 0, 1, 10)
    assert [each.event_id for each in found] == [each.event_id for each in made]
    assert [each.payload for each in found][:4] == [JSON, b"\x00\xff", "\u00e9\n".encode(), b"x"]
    assert (found[3].headers["a"], found[3].headers["subject"], found[3].key) == (1, "s", "k")
    assert found[0].topic == f"{shop.account}/orders/eu"
    assert [each.high_watermark for each in client.partitions("orders/eu")] == [6, 0]


@proves("a resend over HTTP doubles nothing")
def test_a_lost_answer_makes_no_second_event(gateway: Gateway, shop: Client, kind: str) -> None:
    assert published_over_a_bad_road(gateway, shop, kind, 2) == 2


@proves("a resend over HTTP doubles nothing", guard="the dedup key")
def test_without_a_key_of_its_own_it_makes_one(
    gateway: Gateway, shop: Client, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = calls.publish

    def bare(topic: str, message: NewMessage, *, resend: bool) -> Any:
        return replace(publish(topic, message, resend=False), is_repeatable=True)

    monkeypatch.setattr(calls, "publish", bare)
    assert published_over_a_bad_road(gateway, shop, kind, 1) == 3


def published_over_a_bad_road(gateway: Gateway, shop: Client, kind: str, batch: int) -> int:
    """How many events there are after one publish and one batch, with lost answers."""
    assert shop("POST", "/topics", {"topic": "orders"}).status == 201
    with road_to(shop) as road, client_of(shop, kind, road.port) as client:
        road.cuts = 2
        assert not client.publish("orders", b"x").duplicate
        road.cuts = batch - 1
        if batch > 1:
            client.publish_batch("orders", [NewMessage(b"y")])
        assert road.cuts == 0
    gateway.sequence()
    with client_of(shop, kind) as client:
        return len(client.fetch("orders", 0, 1, 10))


@proves("a resend over HTTP doubles nothing")
def test_a_call_that_cannot_be_sent_again_says_that_it_may_be_done(
    gateway: Gateway, shop: Client, kind: str
) -> None:
    assert shop("POST", "/topics", {"topic": "orders"}).status == 201
    with road_to(shop) as road, client_of(shop, kind, road.port) as client:
        road.cuts = 1
        with pytest.raises(GatewayUnavailable, match="may be done or not"):
            client.publish("orders", b"x", resend=False)
        client.publish("orders", b"y", resend=False)
        gateway.sequence()
        road.cuts = 2
        assert [each.payload for each in client.fetch("orders")] == [b"x", b"y"]


def test_a_tail_goes_on_where_it_was_cut(gateway: Gateway, shop: Client, kind: str) -> None:
    assert shop("POST", "/topics", {"topic": "orders"}).status == 201
    with (
        gateway.sequencing(),
        road_to(shop) as road,
        client_of(shop, kind) as straight,
        client_of(shop, kind, road.port) as client,
    ):
        road.after, road.cuts = 3_000, 3
        straight.publish_batch("orders", [NewMessage(b"%d" % n) for n in range(40)])
        tail = client.tail("orders", start="earliest")
        found = [int(each.payload) for each in islice(tail, 40)]
        tail.close()
        assert found == [*range(40)]
        assert road.cuts == 0


def test_a_subscription_is_heard_and_committed(gateway: Gateway, shop: Client, client: Any) -> None:
    client.create_topic("orders")
    assert client.create_subscription("billing", ["orders"])
    assert not client.create_subscription("billing", ["orders"])
    client.publish_batch("orders", [NewMessage(b"%d" % n) for n in range(4)])
    gateway.sequence()
    heard = client.listen("billing")
    first = list(islice(heard, 4))
    client.commit("billing", first[:2])
    client.commit("billing", first[:2])
    heard.close()
    again = client.listen("billing")
    rest = list(islice(again, 2))
    assert [each.event.payload for each in rest] == [b"2", b"3"]
    with pytest.raises(StaleLease):
        client.commit("billing", first)
    client.commit("billing", rest)
    again.close()
    with pytest.raises(InvalidArgument):
        client.commit("billing", [])


def test_errors_are_the_package_s_own_and_tell_no_key(
    gateway: Gateway, shop: Client, kind: str
) -> None:
    assert shop.key is not None
    wrong = replace(shop, key=replace(shop.key, secret="x" * 43))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    readers = replace(shop, key=gateway.client(shop.account, levels="r").key)
    for caller, port, make, error in [
        (shop, None, lambda one: one.fetch("missing"), TopicNotFound),
        (shop, None, lambda one: one.publish("missing", b"x"), TopicNotFound),
        (shop, None, lambda one: one.receive("missing"), SubscriptionNotFound),
        (shop, None, lambda one: next(one.listen("missing")), SubscriptionNotFound),
        (shop, None, lambda one: next(one.tail("missing")), TopicNotFound),
        (shop, None, lambda one: one.receive("a/b"), InvalidArgument),
        (shop, None, lambda one: one.create_topic("orders", 0), InvalidPartition),
        (wrong, None, lambda one: one.topics(), PermissionDenied),
        (readers, None, lambda one: one.create_topic("orders"), PermissionDenied),
        (shop, nobody, lambda one: one.topics(), GatewayUnavailable),
    ]:
        with client_of(caller, kind, port, attempts=1) as client, pytest.raises(error) as caught:
            make(client)
        assert caller.key is not None
        for text in (str(caught.value), repr(caught.value), repr(client)):
            assert caller.key.secret not in text and caller.key.key_id not in text
