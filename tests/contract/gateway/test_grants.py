"""Each level with each call, on queues of its own account and of another: API and SQS door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from consumers.gateway.app import OPERATIONS
from consumers.gateway.credentials.shown import LEVELS
from consumers.gateway.operations import Operation
from consumers.gateway.sqs import door
from penstock import accounts
from tests.contract.gateway.kit import Client, Gateway, Reply
from tests.contract.gateway.sqs_kit import raw
from tests.contract.gateway.test_levels import BODIES, QUERIES
from tests.kit.proof import proves

HANDLE = "MS4xLjAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAxLjAwMDAwMDAx"


def called(client: Client, each: Operation, name: str, account: str | None = None) -> Reply:
    path = each.path.replace("{queue}", name).replace("{topic:path}", name)
    path += QUERIES.get(each.name, "")
    if each.name == "stream":  # one that ends at once, for the right to begin it is what counts
        path += "?after=x"
    return client(each.method, path, BODIES.get(each.name, b""), account=account)


def sqs_called(client: Client, operation: str, account: str, name: str) -> Reply:
    """A call of SQS on a queue; what else it needs is there, and does nothing."""
    url = f"http://127.0.0.1:{client.port}/{account}/{name}"
    entry = {"Id": "a", "MessageBody": "x", "ReceiptHandle": HANDLE, "VisibilityTimeout": 1}
    given = {
        "QueueUrl": url, "QueueName": name, "MessageBody": "x", "ReceiptHandle": HANDLE,
        "VisibilityTimeout": 1, "Entries": [entry], "Attributes": {"DelaySeconds": "0"},
        "Tags": {"a": "b"}, "TagKeys": ["a"], "AttributeNames": ["QueueArn"],
        "QueueOwnerAWSAccountId": account,
        "SourceArn": f"arn:aws:sqs:eu-west-1:{account}:{name}", "TaskHandle": "x",
    }  # fmt: skip
    if operation == "CreateQueue":
        del given["Attributes"]
    return raw(client, operation, json.dumps(given).encode())


def keys(gateway: Gateway, account: str) -> Iterator[tuple[str, Client]]:
    """A key for each level; an account has two keys at most."""
    for level in LEVELS:
        client = gateway.client(account, levels=level)
        yield level, client
        assert client.key is not None
        accounts.revoke_key(gateway.owner, account, client.key.key_id)


@proves("D11 over HTTP")
def test_a_key_of_one_level_may_make_its_calls_and_no_others(
    gateway: Gateway, shop: Client
) -> None:
    assert shop("POST", "/queues", {"queueName": "mails"}).status == 201
    for level, client in keys(gateway, shop.account):
        for each in OPERATIONS:
            reply = called(client, each, "none")
            may = set(each.levels) <= {level}
            assert (reply.status == 403) == (not may), (each.name, level, reply)
            assert reply.status not in {401, 500}, (each.name, level, reply)
        for name, (wanted, _) in door.OPERATIONS.items():
            reply = sqs_called(client, name, shop.account, "none")
            assert (reply.status == 403) == (wanted != level), (name, level, reply)
            assert reply.status < 500, (name, level, reply)


@proves("D11 over HTTP")
def test_with_a_good_key_the_queue_of_another_is_one_that_is_not_there(
    gateway: Gateway, shop: Client, bank: Client
) -> None:
    assert bank("POST", "/queues", {"queueName": "orders"}).status == 201
    before = bank("GET", "/queues/orders/counts").json()
    for level, client in keys(gateway, shop.account):
        for each in OPERATIONS:
            foreign = called(client, each, "orders", bank.account)
            missing = called(client, each, "orders", "nobody")
            assert (foreign.status, foreign.body) == (401, b""), (each.name, level)
            assert told(foreign) == told(missing), (each.name, level)
        for name in door.OPERATIONS.keys() - {"CreateQueue", "ListQueues"}:
            there = sqs_called(client, name, bank.account, "orders")
            missing = sqs_called(client, name, bank.account, "none")
            nobody = sqs_called(client, name, "nobody", "none")
            assert there.status >= 400, (name, level)
            assert told(there) == told(missing) == told(nobody), (name, level)
    gateway.sequence()
    assert bank("GET", "/queues/orders/counts").json() == before
    # What belongs to the other one is as it was.
    assert [each["queueName"] for each in bank("GET", "/queues").json()] == ["orders"]


def told(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """All that a caller sees, but the time."""
    headers = {name: value for name, value in reply.headers.items() if name != "date"}
    return reply.status, headers, reply.body


def test_without_its_level_a_call_would_be_made(shop: Client, gateway: Gateway) -> None:
    """The guard is the set of levels: with all of them, the call that was refused is made."""
    one = gateway.client(shop.account, levels="g")
    assert one("POST", "/queues", {"queueName": "a"}).status == 403
    assert replace(one, key=shop.key)("POST", "/queues", {"queueName": "a"}).status == 201
