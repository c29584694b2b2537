"""Traps of SQS in which look-alikes fall, as far as no other test of this folder has them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from consumers.gateway import worker
from consumers.gateway.sqs import door
from tests.contract.gateway.kit import Client, Gateway, gateway_of
from tests.contract.gateway.sqs_kit import raw, received, refused

_OLD = "AWS.SimpleQueueService."


def test_the_two_names_of_an_error_differ(shop: Client, url: str) -> None:
    """Programs compare the older one, which is in a header."""
    wrong = "InvalidParameterValue"
    for target, given, type_, old in (
        ("SendMessage", {"QueueUrl": url}, "MissingRequiredParameterException", "MissingParameter"),
        ("ListQueues", {"MaxResults": 0}, f"{wrong}Exception", wrong),
        ("GetQueueUrl", {"QueueName": "none"}, "QueueDoesNotExist", f"{_OLD}NonExistentQueue"),
        ("AddPermission", {}, "UnsupportedOperation", f"{_OLD}UnsupportedOperation"),
        ("RemovePermission", {}, "UnsupportedOperation", f"{_OLD}UnsupportedOperation"),
    ):
        reply = raw(shop, target, json.dumps(given).encode())
        assert reply.json()["__type"].endswith(f"#{type_}")
        assert reply.headers["x-amzn-query-error"] == f"{old};Sender"


@pytest.mark.parametrize("name", ["Policy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds"])
def test_what_is_not_there_is_said_to_be_unsupported(sqs: Any, url: str, name: str) -> None:
    """Permissions and KMS.  Empty, as an SDK may send it, it is as if it were left out."""
    wrong = refused(sqs.set_queue_attributes, QueueUrl=url, Attributes={name: "1"})
    assert wrong[0] == f"{_OLD}UnsupportedOperation"
    sqs.set_queue_attributes(QueueUrl=url, Attributes={name: "", "DelaySeconds": "0"})
    assert {"AddPermission", "RemovePermission"} == door.MISSING


@pytest.mark.usefixtures("sequencing")
def test_the_header_of_a_trace_becomes_an_attribute_of_the_message(
    sqs: Any, url: str, shop: Client
) -> None:
    """What is sent as a system attribute goes before it, and has a digest."""
    given = {"QueueUrl": url, "MessageBody": "x"}
    root = {"X-Amzn-Trace-Id": "Root=1-header"}
    raw(shop, "SendMessage", json.dumps(given).encode(), **root)
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-given"}}
    reply = raw(
        shop,
        "SendMessage",
        json.dumps(given | {"MessageSystemAttributes": system}).encode(),
        **root,
    )
    parts = (b"AWSTraceHeader", b"String", b"Root=1-given")
    packed = [len(each).to_bytes(4, "big") + each for each in parts]
    digest = hashlib.md5(packed[0] + packed[1] + b"\x01" + packed[2]).hexdigest()
    assert reply.json()["MD5OfMessageSystemAttributes"] == digest
    found = received(sqs, url, 2, AttributeNames=["AWSTraceHeader"])
    traces = {each["Attributes"]["AWSTraceHeader"] for each in found}
    assert traces == {"Root=1-header", "Root=1-given"}


@pytest.mark.usefixtures("sequencing")
def test_a_digest_is_of_what_is_returned(sqs: Any, url: str) -> None:
    """Of a part of the attributes it is that of the part: SDKs compare it."""
    attributes = {
        name: {"DataType": "String", "StringValue": "x"} for name in ("a.b", "a.c", "other")
    }
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    seen = set()
    for names in (["All"], ["a.*"], ["a.b"]):
        (found,) = received(sqs, url, MessageAttributeNames=names, VisibilityTimeout=0)
        assert found["MD5OfBody"] == hashlib.md5(b"x").hexdigest()
        seen.add(found["MD5OfMessageAttributes"])
    assert len(seen) == 3
    (none,) = received(sqs, url, MessageAttributeNames=["b.*"])
    assert not {"MessageAttributes", "MD5OfMessageAttributes", "Attributes"} & none.keys()


def test_lists_without_anything_are_left_out(sqs: Any, url: str, shop: Client) -> None:
    """Not [] and not null: some SDKs take them for something."""

    def keys(target: str, **given: Any) -> set[str]:
        reply = raw(shop, target, json.dumps({"QueueUrl": url} | given).encode())
        assert b"null" not in reply.body
        return set(reply.json())

    assert keys("ReceiveMessage") == set()
    assert keys("ListQueues", QueueNamePrefix="none") == set()
    assert keys("ListQueueTags") == set()
    assert keys("GetQueueAttributes") == set()
    one = [{"Id": "a", "MessageBody": "x"}]
    assert keys("SendMessageBatch", Entries=one) == {"Successful"}


def test_the_address_of_a_queue_is_that_of_the_setting(
    gateway: Gateway, shop: Client, url: str
) -> None:
    """--sqs-url, where a proxy has another name; and calls may say either."""
    assert url.startswith(f"http://127.0.0.1:{shop.port}/")
    with gateway_of(gateway.db, sqs_url="https://queues.example") as other:
        assert shop.key is not None
        there = Client(other.port, shop.account, shop.key)
        reply = raw(there, "GetQueueUrl", b'{"QueueName": "mails"}')
        assert reply.json() == {"QueueUrl": f"https://queues.example/{shop.account}/mails"}
        for each in (url, reply.json()["QueueUrl"]):
            body = json.dumps({"QueueUrl": each, "MessageBody": "x"}).encode()
            assert raw(there, "SendMessage", body).status == 200


def test_idle_connections_are_kept_for_longer_than_sdks_keep_them() -> None:
    """With 5 seconds an SDK sends into a connection that is just being closed, and sends again."""
    assert worker.KEEP_ALIVE_SECONDS >= 75
