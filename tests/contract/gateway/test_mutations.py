"""Signatures, addresses, keys and handles that were changed a little: none is taken.

Who is known to the gateway is seen by what it would log, so an answer for another reason, such as
a path that does not exist, cannot hide one that was taken.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, quote

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from consumers.gateway.front import Front
from consumers.gateway.sqs import handles
from tests.contract.gateway.kit import Client, Reply, send
from tests.contract.gateway.sqs_kit import received, sqs_of
from tests.kit.mutations import mutated
from tests.kit.proof import proves

#: Each is for one way to call, of which there are five.
EVERY = [60, pytest.param(2_000, marks=pytest.mark.long)]
pytestmark = pytest.mark.long_on("mysql", "mariadb")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """For each request that was answered: its status, and the account if it was let in."""
    found: list[Any] = []

    def note(_: Front, scope: Any, status: int, seconds: float) -> None:
        # A signed request is known before its body is, and then refused with 401.
        found.append((status, None if status == 401 else scope.get("told", {}).get("account")))

    monkeypatch.setattr(Front, "_log", note)
    yield found


def refused(known: list[Any], reply: Reply) -> bool:
    """Whether the gateway has let nobody in, and has not failed."""
    return known[-1][1] is None and 400 <= reply.status < 500


@proves("a signature counts", how="over HTTP")
@pytest.mark.parametrize("count", EVERY)
def test_no_changed_key_is_taken(shop: Client, bank: Client, known: list[Any], count: int) -> None:
    chance = random.Random(count)
    assert shop.key is not None and bank.key is not None
    mine, other = (f"{each.key_id}.{each.secret}" for each in (shop.key, bank.key))
    for _ in range(count):
        text = mutated(mine, chance, other)
        reply = shop("GET", "/queues", headers={"Authorization": f"Key {text}"})
        assert refused(known, reply) or text.strip() == mine, text
    assert shop("GET", "/queues").status == 200
    assert known[-1] == (200, shop.account)


@proves("a signature counts", how="over HTTP")
@pytest.mark.parametrize("count", EVERY)
def test_no_changed_signed_request_is_taken(
    shop: Client, bank: Client, known: list[Any], count: int
) -> None:
    chance = random.Random(count)
    names = ["Signature-Input", "Signature", "Content-Digest", "path", "body", "method"]
    path, body = f"/api/v1/accounts/{shop.account}/queues/none/purge?a=b", b'{"a": 1}'
    short = path.removeprefix(f"/api/v1/accounts/{shop.account}")
    for _ in range(count):
        headers, whole, sent, method = shop.sign("POST", short, body), path, body, "POST"
        what = chance.choice(names)
        if what == "path":
            whole = quote(mutated(path, chance), safe="/?=&%+:;,@'()*!$~-._")
        elif what == "body":
            sent = mutated(body.decode(), chance).encode()
        elif what == "method":
            method = chance.choice(["GET", "PUT", "DELETE"])
        else:
            others = bank.sign("POST", short, body)
            headers[what] = mutated(headers[what], chance, others[what])
        if whole == path and what == "path":
            continue
        reply = send(shop.port, method, whole, sent, headers)
        assert refused(known, reply), (what, headers, whole, reply)
    reply = send(shop.port, "POST", path, body, shop.sign("POST", short, body))
    assert (reply.status, known[-1][1]) == (404, shop.account)


@proves("a signature counts", how="over HTTP")
@pytest.mark.parametrize("count", EVERY)
def test_no_changed_signed_address_is_taken(
    shop: Client, bank: Client, known: list[Any], count: int
) -> None:
    chance = random.Random(count)
    mine, other = shop.by_address("gr", "mails"), bank.by_address("gr", "mails")
    path = f"/api/v1/accounts/{shop.account}/queues/mails/statistics?"
    for _ in range(count):
        text = mutated(mine.signed, chance, other.signed)
        given, good = parse_qs(text, keep_blank_values=True), parse_qs(mine.signed)
        if {name: given.get(name) for name in good} == good:
            continue  # %3a is %3A, and what else the query has is a parameter of the call
        reply = send(shop.port, "GET", path + quote(text, safe="=&%+:;,@'()*!$~-._?/"))
        assert refused(known, reply), (text, mine.signed, reply)
    assert mine("GET", "/queues/mails/statistics").status == 404
    assert known[-1][1] == shop.account


@proves("a signature counts", how="over HTTP")
@pytest.mark.parametrize("count", EVERY)
def test_no_changed_signature_of_aws_is_taken(
    shop: Client, bank: Client, known: list[Any], count: int
) -> None:
    chance = random.Random(count)
    names = ["Authorization", "X-Amz-Date", "X-Amz-Target", "path", "body"]
    body = b'{"QueueName": "none"}'
    mine, others = (_aws(each, body) for each in (shop, bank))
    for _ in range(count):
        headers, sent, path, what = dict(mine), body, "/", chance.choice(names)
        if what == "path":
            path = "/" + quote(mutated("a", chance), safe="?=&")
            if not path.strip("/.&?"):
                continue  # AWS signs /./ as / too
        elif what == "body":
            sent = mutated(body.decode(), chance).encode()
        else:
            headers[what] = mutated(headers[what], chance, others[what])
        reply = send(shop.port, "POST", path, sent, headers)
        assert refused(known, reply), (what, headers, path, reply)
    reply = send(shop.port, "POST", "/", body, mine)
    assert (reply.status, known[-1][1]) == (400, shop.account)


def _aws(client: Client, body: bytes) -> dict[str, str]:
    assert client.key is not None
    told = {"X-Amz-Target": "AmazonSQS.GetQueueUrl", "Content-Type": "application/x-amz-json-1.0"}
    request = AWSRequest("POST", f"http://127.0.0.1:{client.port}/", data=body, headers=told)
    SigV4Auth(Credentials(client.key.key_id, client.key.secret), "sqs", "eu-west-1").add_auth(
        request
    )
    return dict(request.headers)


@proves("a signature counts", how="over HTTP")
@pytest.mark.parametrize("count", EVERY)
@pytest.mark.usefixtures("sequencing")
def test_no_changed_handle_or_receipt_is_taken(shop: Client, count: int) -> None:
    """Whatever is answered, the message stays where it is until its own handle comes."""
    chance = random.Random(count)
    sqs = sqs_of(shop)
    url = sqs.create_queue(QueueName="mails")["QueueUrl"]
    for text in ("mine", "other"):
        sqs.send_message(QueueUrl=url, MessageBody=text)
    mine, other = (each["ReceiptHandle"] for each in received(sqs, url, 2, VisibilityTimeout=3_600))
    receipts = [str(handles.receipt_of(f"{shop.account}/mails", each)) for each in (mine, other)]
    for number in range(count):
        if number % 2:
            handle = mutated(mine, chance, other)
            _tries(sqs.delete_message, QueueUrl=url, ReceiptHandle=handle)
            change = sqs.change_message_visibility
            _tries(change, QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
            continue
        text = mutated(receipts[0], chance, receipts[1])
        if text == receipts[1]:
            continue
        replies = [
            shop("DELETE", f"/queues/mails/messages?popReceipt={quote(text)}.00000001"),
            shop("POST", "/queues/mails/acknowledge", {"receipts": [text]}),
            shop("POST", "/queues/mails/extend", {"receipts": [text], "visibility_seconds": 1}),
        ]
        assert all(400 <= each.status < 500 for each in replies), (text, replies)
    names = ["ApproximateNumberOfMessagesNotVisible"]
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert counts == {names[0]: "2"}
    assert shop("POST", "/queues/mails/acknowledge", {"receipts": [receipts[0]]}).status == 200
    sqs.delete_message(QueueUrl=url, ReceiptHandle=other)
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert counts == {names[0]: "0"}


def _tries(call: Any, **given: Any) -> None:
    """Both may be answered with nothing, as AWS does for handles that are good no longer."""
    try:
        call(**given)
    except call.__self__.exceptions.ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert 400 <= status < 500, error.response


@proves("a signature counts", guard="the secret")
def test_without_a_look_at_the_secret_a_changed_key_would_be_taken(
    shop: Client, known: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard that the tests above rely on, and that they would see."""
    monkeypatch.setattr("consumers.gateway.access.is_same", lambda *_: True)
    assert shop.key is not None
    wrong = f"{shop.key.key_id}.{mutated(shop.key.secret, random.Random(1))}"
    reply = shop("GET", "/queues", headers={"Authorization": f"Key {wrong[:60]}"})
    assert not refused(known, reply)
