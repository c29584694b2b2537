"""CassieQ's API: its codes, and its messages from put to finished."""

from __future__ import annotations

from typing import Any

from tests.contract.gateway.kit import Client, Gateway, Reply
from tests.kit.log import wait_until


def test_a_message_is_put_received_and_finished_once(gateway: Gateway, shop: Client) -> None:
    assert shop("POST", "/queues", {"queueName": "a.b-c_1"}).status == 201
    body = b'\x00\xff "as it is"'
    assert shop("POST", "/queues/a.b-c_1/messages", body).status == 201
    assert shop("GET", "/queues/a.b-c_1/messages/next").status == 204
    gateway.sequence()
    assert shop("GET", "/queues/a.b-c_1/statistics").json() == {"size": 1}
    reply = shop("GET", "/queues/a.b-c_1/messages/next?invisibilityTimeSeconds=60")
    assert reply.status == 200
    found = reply.json()
    assert found.keys() == {"popReceipt", "message", "deliveryCount", "messageTag"}
    assert (found["message"].encode("latin-1"), found["deliveryCount"]) == (body, 1)
    assert shop("GET", "/queues/a.b-c_1/messages/next").status == 204
    path = f"/queues/a.b-c_1/messages?popReceipt={found['popReceipt']}"
    assert shop("DELETE", path).status == 204
    assert shop("DELETE", path).status == 409
    assert shop("GET", "/queues/a.b-c_1/statistics").json() == {"size": 0}


def test_queues_are_created_described_and_deleted(shop: Client) -> None:
    created = {"queueName": "orders", "maxDeliveryCount": 7, "bucketSize": 20}
    assert shop("POST", "/queues", created).status == 201
    assert shop("POST", "/queues", created).status == 200
    assert shop("POST", "/queues?errorIfExists=true", created).status == 409
    described = shop("GET", "/queues/orders")
    assert described.status == 200
    assert described.json()["queueName"] == "orders"
    assert described.json()["accountName"] == shop.account
    assert described.json()["maxDeliveryCount"] == 7
    assert [each["queueName"] for each in shop("GET", "/queues").json()] == ["orders"]
    assert shop("DELETE", "/queues/orders").status == 200
    assert shop("DELETE", "/queues/orders").status == 404
    assert shop("GET", "/queues/orders").status == 404
    assert shop("POST", "/queues/orders/messages", b"x").status == 404
    assert shop("GET", "/queues").json() == []


def test_a_name_with_other_characters_is_refused(shop: Client) -> None:
    for name in ["a b", "", "a/b", "ä", "x" * 501]:
        assert shop("POST", "/queues", {"queueName": name}).status == 400
    assert shop("GET", "/queues/a%20b").status == 400
    assert shop("GET", "/queues/a%2Fb").status == 404


def test_a_missing_queue_is_404_and_names_what_was_asked_for(shop: Client) -> None:
    receipt = "1.1.00000000000000000000000000000001.00000001"
    for method, path in [
        ("GET", "/queues/none/messages/next"),
        ("POST", "/queues/none/messages"),
        ("PUT", f"/queues/none/messages?popReceipt={receipt}"),
        ("DELETE", f"/queues/none/messages?popReceipt={receipt}"),
        ("GET", "/queues/none/statistics"),
    ]:
        reply = shop(method, path, {} if method == "PUT" else b"")
        assert reply.status == 404, (method, path)
        assert reply.json()["reason"] == "NotFound"
        assert reply.json()["queueName"] == "none"
        assert reply.json()["operation"]


def test_an_update_gives_more_time_and_another_text(gateway: Gateway, shop: Client) -> None:
    shop("POST", "/queues", {"queueName": "orders"})
    shop("POST", "/queues/orders/messages", b"first")
    gateway.sequence()
    found = shop("GET", "/queues/orders/messages/next?invisibilityTimeSeconds=30").json()
    old = f"/queues/orders/messages?popReceipt={found['popReceipt']}"
    changed = shop("PUT", old, {"message": "second", "newInvisibilitySeconds": 60})
    assert changed.status == 200
    assert changed.json().keys() == {"popReceipt", "messageTag"}
    assert changed.json()["messageTag"] == found["messageTag"]
    assert shop("PUT", old, {"newInvisibilitySeconds": 60}).status == 409
    assert shop("DELETE", old).status == 409
    new = f"/queues/orders/messages?popReceipt={changed.json()['popReceipt']}"
    assert shop("PUT", new, {"newInvisibilitySeconds": 0}).status == 200
    again = shop("GET", "/queues/orders/messages/next").json()
    assert (again["message"], again["deliveryCount"]) == ("second", 2)


def test_a_receipt_that_was_changed_is_never_an_error_of_the_server(
    gateway: Gateway, shop: Client
) -> None:
    shop("POST", "/queues", {"queueName": "orders"})
    shop("POST", "/queues/orders/messages", b"x")
    gateway.sequence()
    receipt = shop("GET", "/queues/orders/messages/next").json()["popReceipt"]
    for changed in ["", "x", receipt[:-1], f"9{receipt}", receipt.replace(".", "-"), "1.2.3.4"]:
        for method in ["PUT", "DELETE"]:
            reply = shop(method, f"/queues/orders/messages?popReceipt={changed}", {})
            assert reply.status in {400, 409}, changed
    assert shop("DELETE", f"/queues/orders/messages?popReceipt={receipt}").status == 204


def test_a_message_is_hidden_at_first_and_the_misspelled_name_counts(
    gateway: Gateway, shop: Client
) -> None:
    shop("POST", "/queues", {"queueName": "orders"})
    for name in ["initialInvisibilitySeconds", "initialInvisiblityTime"]:
        assert shop("POST", f"/queues/orders/messages?{name}=600", b"later").status == 201
        assert shop("POST", f"/queues/orders/messages?{name}=x", b"later").status == 400
    gateway.sequence()
    assert shop("GET", "/queues/orders/messages/next").status == 204


def test_a_message_that_comes_back_at_once_is_received_again_and_again(
    gateway: Gateway, shop: Client
) -> None:
    shop("POST", "/queues", {"queueName": "orders", "maxDeliveryCount": 100})
    shop("POST", "/queues/orders/messages", b"crazy")
    gateway.sequence()
    for count in range(1, 6):
        found = received(shop)
        assert (found["message"], found["deliveryCount"]) == ("crazy", count)


def received(shop: Client) -> Any:
    """The next message; one whose time is over is looked for every little while."""
    replies: list[Reply] = []

    def is_there() -> bool:
        path = "/queues/orders/messages/next?invisibilityTimeSeconds=0"
        replies.append(shop("GET", path))
        return replies[-1].status == 200

    wait_until(is_there, "the message comes back")
    return replies[-1].json()
