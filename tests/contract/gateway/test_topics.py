"""Our own API of topics: publish in every form, fetch by sequence and by position."""

from __future__ import annotations

import base64
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from consumers.gateway.cloudevents import BATCH, STRUCTURED
from penstock.subscriptions import stream
from tests.contract.gateway.kit import Client, Gateway, Reply
from tests.kit.proof import proves

EVENTS = "/topics/orders/eu/events"


@pytest.fixture
def orders(shop: Client) -> Client:
    """The account with a topic `orders/eu`."""
    reply = shop("POST", "/topics", {"topic": "orders/eu", "partitions": 1})
    assert (reply.status, reply.json()) == (201, {"topic": f"{shop.account}/orders/eu"})
    return shop


def fetched(gateway: Gateway, client: Client, query: str = "from=1") -> Any:
    gateway.sequence()
    reply = client("GET", f"{EVENTS}?{query}")
    assert (reply.status, reply.headers["content-type"]) == (200, BATCH), reply.body
    return reply.json()


def test_topics_are_created_listed_described_and_deleted(orders: Client) -> None:
    assert orders("POST", "/topics", {"topic": "orders/eu"}).status == 200
    assert orders("POST", "/topics", {"topic": "orders/eu", "partitions": 2}).status == 409
    assert orders("POST", "/topics", {"topic": "x", "what": 1}).status == 400
    assert [each["address"] for each in orders("GET", "/topics").json()["topics"]] == [
        f"{orders.account}/orders/eu"
    ]
    assert orders("POST", "/topics", {"topic": "orders/B"}).status == 201
    first = orders("GET", "/topics?max_rows=1").json()  # by code points, on every engine
    assert first["next"] == first["topics"][0]["address"] == f"{orders.account}/orders/B"
    rest = orders("GET", f"/topics?max_rows=1&after={first['next']}").json()
    assert [each["address"] for each in rest.pop("topics")] == [f"{orders.account}/orders/eu"]
    assert not rest
    described = orders("GET", "/topics/orders/eu/partitions").json()
    assert [each["high_watermark"] for each in described["partitions"]] == [0]
    assert orders("DELETE", "/topics/orders/eu").status == 204
    assert orders("DELETE", "/topics/orders/eu").status == 404
    assert orders("POST", EVENTS, b"x").status == 404


def test_who_uses_a_topic_is_not_told(gateway: Gateway, orders: Client) -> None:
    """The one that reads it may belong to somebody who is hidden from the account."""
    stream.subscribe(gateway.owner, "of-another", [f"{orders.account}/orders/eu"])
    refused = orders("DELETE", "/topics/orders/eu")
    stream.unsubscribe(gateway.owner, "of-another")
    assert refused.status == 409
    assert b"of-another" not in refused.body


def test_a_plain_body_is_an_event_with_what_the_query_says(
    gateway: Gateway, orders: Client
) -> None:
    reply = orders(
        "POST",
        f"{EVENTS}?key=k&type=t",
        b'{"a": 1.10}',
        headers={"Content-Type": "application/json"},
    )
    assert reply.status == 201
    (event,) = fetched(gateway, orders)
    assert event["id"] == reply.json()["event_id"]
    assert (event["partitionkey"], event["type"], event["data"]) == ("k", "t", {"a": 1.10})
    assert event["source"] == f"/{orders.account}/orders/eu"


def test_a_duplicate_is_200_with_the_first_id(gateway: Gateway, orders: Client) -> None:
    first = orders("POST", f"{EVENTS}?dedup_key=d&strict=true", b"1")
    again = orders("POST", f"{EVENTS}?dedup_key=d", b"2")
    assert (first.status, again.status) == (201, 200), first.body
    assert again.json() == {"event_id": first.json()["event_id"], "duplicate": True}
    assert len(fetched(gateway, orders)) == 1


def test_cloudevents_structured_binary_and_in_batches(gateway: Gateway, orders: Client) -> None:
    given = {"specversion": "1.0", "source": "/a", "type": "t", "partitionkey": "k"}
    one = given | {"id": str(uuid.uuid4()), "data": {"n": 1}, "subject": "s"}
    two = given | {"id": "not a uuid", "data_base64": base64.b64encode(b"\x00").decode()}
    two |= {"datacontenttype": "application/octet-stream"}
    assert orders("POST", EVENTS, one, headers={"Content-Type": STRUCTURED}).status == 201
    binary = {f"ce-{name}": str(value) for name, value in given.items()} | {"ce-id": "3"}
    binary["Content-Type"] = "text/plain"
    assert orders("POST", EVENTS, b"text", headers=binary).status == 201
    reply = orders("POST", EVENTS, [two, one | {"id": "4"}], headers={"Content-Type": BATCH})
    assert len(reply.json()["event_ids"]) == 2
    found = fetched(gateway, orders)
    assert [each["partitionkey"] for each in found] == ["k"] * 4
    assert (found[0]["id"], found[0]["subject"], found[0]["data"]) == (one["id"], "s", {"n": 1})
    assert found[1]["data"] == "text"
    assert (found[2]["data_base64"], found[2]["ceid"]) == (two["data_base64"], "not a uuid")


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"specversion": "0.3", "id": "1", "source": "/", "type": "t"},
        {"specversion": "1.0", "source": "/", "type": "t"},
        {"specversion": "1.0", "id": "1", "source": "/", "type": "t", "data_base64": "!"},
        {"specversion": "1.0", "id": "1", "source": "/", "type": "t", "Big": "x"},
        {"specversion": "1.0", "id": "1", "source": "/", "type": "t", "x": {"y": 1}},
    ],
)
def test_what_is_no_cloudevent_is_refused(orders: Client, wrong: object) -> None:
    assert orders("POST", EVENTS, wrong, headers={"Content-Type": STRUCTURED}).status == 400


def test_a_batch_in_plain_json_is_published_whole_or_not_at_all(
    gateway: Gateway, orders: Client
) -> None:
    events: list[dict[str, Any]] = [
        {"data": {"n": 1}, "key": "k", "headers": {"h": 1}},
        {"text": "ä", "type": "t"},
        {"base64": base64.b64encode(b"\x00\x01").decode()},
    ]
    path = "/topics/orders/eu/batches"
    reply = orders("POST", path, {"events": events})
    assert (reply.status, len(reply.json()["event_ids"])) == (201, 3)
    assert orders("POST", path, {"events": [*events, {"key": "none"}]}).status == 400
    assert orders("POST", path, {"events": [*events, {"text": "", "partition": 7}]}).status == 400
    found = fetched(gateway, orders)
    assert [each.get("data", each.get("data_base64")) for each in found] == [{"n": 1}, "ä", "AAE="]


def test_fetch_goes_by_sequence_and_by_position(gateway: Gateway, orders: Client) -> None:
    for number in range(5):
        orders("POST", EVENTS, str(number).encode(), headers={"Content-Type": "text/plain"})
    assert [each["data"] for each in fetched(gateway, orders, "from=4")] == ["3", "4"]
    assert [each["data"] for each in fetched(gateway, orders, "lsn=0.5")] == ["4"]
    assert len(fetched(gateway, orders, "from=1&max_events=2")) == 2
    for query in [
        "",
        "from=0",
        "from=x",
        "lsn=1",
        "from=1&lsn=0.1",
        "from=1&from=2",
        "from=1&partition=1",
    ]:
        assert orders("GET", f"{EVENTS}?{query}").status == 400, query


@proves("a publish over HTTP")
def test_publishes_of_many_callers_go_together_and_a_bad_one_fails_alone(
    gateway: Gateway, orders: Client, bank: Client
) -> None:
    before = gateway.worker.counters()
    bank("POST", "/topics", {"topic": "orders/eu"})

    def publish(number: int) -> Reply:
        client = bank if number % 3 == 0 else orders
        query = "?partition=9" if number % 10 == 1 else ""
        return client("POST", EVENTS + query, str(number).encode())

    with ThreadPoolExecutor(24) as executor:
        replies = list(executor.map(publish, range(240)))
    statuses = [each.status for each in replies]
    assert statuses == [400 if number % 10 == 1 else 201 for number in range(240)]
    wrong = json.loads(replies[1].body)["message"]
    assert "event " not in wrong, wrong
    counters = gateway.worker.counters()
    more = {name: counters[name] - before[name] for name in counters}
    assert more["gateway_published_events"] == 216
    assert more["gateway_published_batches"] < 216
    gateway.sequence()
    told = {each.json()["event_id"] for each in replies if each.status == 201}
    for client, count in ((bank, 72), (orders, 144)):
        found = client("GET", f"{EVENTS}?from=1&max_events=1000").json()
        assert len(found) == count
        assert {each["id"] for each in found} <= told
