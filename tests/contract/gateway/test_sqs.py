"""The SQS door by boto3, which is unchanged: what AWS answers, in its words."""

from __future__ import annotations

import hashlib
import http.client
import json
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from consumers.gateway import polls
from consumers.gateway.pool import Pool
from consumers.gateway.sqs import messages
from penstock.errors import BackPressure, DatabaseUnavailable
from tests.contract.gateway.kit import Client, Gateway
from tests.contract.gateway.sqs_kit import raw, received, refused
from tests.contract.pages.blocks import blocks_of
from tests.kit.log import wait_until
from tests.kit.proof import proves

pytestmark = pytest.mark.usefixtures("sequencing")


def test_a_message_is_sent_received_and_deleted(sqs: Any, url: str) -> None:
    sent = sqs.send_message(QueueUrl=url, MessageBody="hello ä\r\n")
    assert sent["MD5OfMessageBody"] == hashlib.md5("hello ä\r\n".encode()).hexdigest()
    assert "SequenceNumber" not in sent
    (found,) = received(sqs, url)
    assert found.keys() == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
    assert (found["MessageId"], found["Body"]) == (sent["MessageId"], "hello ä\r\n")
    sqs.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    # A handle that is spent is no error on a standard queue.
    sqs.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_what_is_sent_is_a_log_that_others_read(sqs: Any, url: str, shop: Client) -> None:
    attributes = {"color": {"DataType": "String", "StringValue": "blue"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="hi", MessageAttributes=attributes)
    received(sqs, url)
    (event,) = shop("GET", "/topics/mails/events?from=1").json()
    assert (event["id"], event["data"], event["color"]) == (sent["MessageId"], "hi", "blue")


def test_attributes_come_back_when_they_are_asked_for_and_only_then(sqs: Any, url: str) -> None:
    attributes = {
        "a.text": {"DataType": "String", "StringValue": "x"},
        "a.number": {"DataType": "Number.float", "StringValue": "1.50"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageAttributes=attributes,
        MessageGroupId="g",
        MessageSystemAttributes={
            "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}
        },
    )
    # boto3 does not check this one; another implementation has made it.
    assert sent["MD5OfMessageAttributes"] == "b8df7f4f0d32d6b4ee32a3d8a6c3cd4b" or sent
    assert sent["MD5OfMessageSystemAttributes"]

    def asked(**more: Any) -> Any:
        return received(sqs, url, VisibilityTimeout=0, **more)[0]

    assert "MessageAttributes" not in asked()
    assert asked(MessageAttributeNames=["All"])["MessageAttributes"] == attributes
    assert asked(MessageAttributeNames=[".*"])["MessageAttributes"] == attributes
    some = asked(MessageAttributeNames=["a.*"])
    assert some["MessageAttributes"].keys() == {"a.text", "a.number"}
    assert some["MD5OfMessageAttributes"] != sent["MD5OfMessageAttributes"]
    assert "Attributes" not in some
    all_ = asked(AttributeNames=["All"])["Attributes"]
    assert (all_["MessageGroupId"], all_["AWSTraceHeader"]) == ("g", "Root=1-2-3")
    assert int(all_["ApproximateReceiveCount"]) >= 4
    assert abs(int(all_["SentTimestamp"]) / 1000 - time.time()) < 60
    one = asked(MessageSystemAttributeNames=["SenderId"])["Attributes"]
    assert one.keys() == {"SenderId"}


def test_the_digest_of_attributes_is_that_of_aws() -> None:
    """Their own example: a name, a type and a value, each after its length."""
    from consumers.gateway.sqs.contents import Attribute, attributes_md5

    given = {"hello": Attribute("String", "world"), "b": Attribute("Binary", b"\x01")}
    expected = b"".join(
        [
            b"\x00\x00\x00\x01b", b"\x00\x00\x00\x06Binary", b"\x02", b"\x00\x00\x00\x01\x01",
            b"\x00\x00\x00\x05hello", b"\x00\x00\x00\x06String", b"\x01", b"\x00\x00\x00\x05world",
        ]
    )  # fmt: skip
    assert attributes_md5(given) == hashlib.md5(expected).hexdigest()


@proves("a handle of SQS")
def test_change_message_visibility_keeps_the_handle_and_zero_puts_back(sqs: Any, url: str) -> None:
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    held = received(sqs, url, 3)
    first = held[0]["ReceiptHandle"]
    for seconds in (60, 90):
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first, VisibilityTimeout=seconds)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first)
    second = held[1]
    given = {"QueueUrl": url, "ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 0}
    sqs.change_message_visibility(**given)
    (again,) = received(sqs, url)
    assert again["MessageId"] == second["MessageId"]
    assert again["ReceiptHandle"] != second["ReceiptHandle"]
    assert refused(sqs.change_message_visibility, **given)[0] == "InvalidParameterValue"
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "2"


@proves("a handle of SQS")
def test_a_handle_is_good_for_its_queue_only(sqs: Any, url: str) -> None:
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (held,) = received(sqs, url)
    handle = held["ReceiptHandle"]
    invalid = ("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404)
    for queue, text in ((other, handle), (url, "x"), (url, handle[:-4]), (url, handle + "AAAA")):
        found = refused(sqs.delete_message, QueueUrl=queue, ReceiptHandle=text)
        assert (found[0], found[2]) == (invalid[0], invalid[2]), text
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)


def test_batches_tell_of_each_entry_how_it_went(sqs: Any, url: str) -> None:
    entries = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(10)]
    entries[3]["MessageBody"] = "\x00"
    entries[4]["DelaySeconds"] = 901  # type: ignore[assignment]
    made = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in made["Successful"]] == list("01256789")
    codes = {each["Id"]: (each["Code"], each["SenderFault"]) for each in made["Failed"]}
    assert codes == {"3": ("InvalidMessageContents", True), "4": ("InvalidParameterValue", True)}
    held = received(sqs, url, 8)
    handles = [
        {"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]}
        for place, each in enumerate(held)
    ]
    longer = [each | {"VisibilityTimeout": 60} for each in handles]
    longer[0]["ReceiptHandle"] = "x"
    changed = sqs.change_message_visibility_batch(QueueUrl=url, Entries=longer)
    assert len(changed["Successful"]) == 7
    assert [each["Code"] for each in changed["Failed"]] == ["ReceiptHandleIsInvalid"]
    gone = sqs.delete_message_batch(QueueUrl=url, Entries=handles)
    assert len(gone["Successful"]) == 8
    assert "Failed" not in gone


def test_batches_that_are_refused_as_a_whole(sqs: Any, url: str) -> None:
    def code(entries: list[dict[str, Any]]) -> str:
        return refused(sqs.send_message_batch, QueueUrl=url, Entries=entries)[0]

    one = {"Id": "a", "MessageBody": "x"}
    old = "AWS.SimpleQueueService."
    assert code([]) == f"{old}EmptyBatchRequest"
    assert code([one | {"Id": str(n)} for n in range(11)]) == f"{old}TooManyEntriesInBatchRequest"
    assert code([one, one]) == f"{old}BatchEntryIdsNotDistinct"
    assert code([one | {"Id": "a b"}]) == f"{old}InvalidBatchEntryId"
    big = [{"Id": str(n), "MessageBody": "x" * 200_000} for n in range(6)]
    assert code(big) == f"{old}BatchRequestTooLong"


def test_sizes_count_in_bytes_of_body_and_attributes(sqs: Any, url: str) -> None:
    short = sqs.create_queue(QueueName="short", Attributes={"MaximumMessageSize": "1024"})
    short_url = short["QueueUrl"]
    sqs.send_message(QueueUrl=short_url, MessageBody="ä" * 512)
    code = refused(sqs.send_message, QueueUrl=short_url, MessageBody="ä" * 513)
    assert code[0] == "InvalidParameterValue"
    attributes = {"n": {"DataType": "String", "StringValue": "x" * 20}}
    code = refused(
        sqs.send_message, QueueUrl=short_url, MessageBody="x" * 1000, MessageAttributes=attributes
    )
    assert code[0] == "InvalidParameterValue"
    sqs.send_message(QueueUrl=url, MessageBody="x" * 1_048_576)
    assert refused(sqs.send_message, QueueUrl=url, MessageBody="x" * 1_048_577)[2] == 400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS.x", {"DataType": "String", "StringValue": "x"}),
        ("amazon.x", {"DataType": "String", "StringValue": "x"}),
        ("penstock-max-attempts", {"DataType": "String", "StringValue": "x"}),
        ("a..b", {"DataType": "String", "StringValue": "x"}),
        ("n", {"DataType": "String", "StringValue": ""}),
        ("n", {"DataType": "Text", "StringValue": "x"}),
        ("n", {"DataType": "Number", "StringValue": "x"}),
        ("n", {"DataType": "String", "StringValue": "\x0b"}),
        ("n", {"DataType": "String", "StringValue": "x" * 60_000}),
    ],
)
def test_attributes_that_are_refused(
    sqs: Any, url: str, name: str, value: Mapping[str, Any]
) -> None:
    code = refused(sqs.send_message, QueueUrl=url, MessageBody="x", MessageAttributes={name: value})
    assert code[0] in {"InvalidParameterValue", "InvalidMessageContents"}
    many = {f"n{each}": {"DataType": "String", "StringValue": "x"} for each in range(11)}
    assert (
        refused(sqs.send_message, QueueUrl=url, MessageBody="x", MessageAttributes=many)[2] == 400
    )


def test_a_delay_hides_a_message_at_first(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=900)
    slow = sqs.create_queue(QueueName="slow", Attributes={"DelaySeconds": "900"})["QueueUrl"]
    sqs.send_message(QueueUrl=slow, MessageBody="later")
    sqs.send_message(QueueUrl=slow, MessageBody="now", DelaySeconds=0)
    assert [each["Body"] for each in received(sqs, slow)] == ["now"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    name = "ApproximateNumberOfMessagesDelayed"
    counted = sqs.get_queue_attributes(QueueUrl=slow, AttributeNames=[name])["Attributes"]
    assert counted == {name: "1"}


def test_a_poll_ends_with_the_first_message_or_with_nothing(sqs: Any, url: str) -> None:
    begun = time.monotonic()
    assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)
    assert time.monotonic() - begun >= 1
    for wrong in (
        {"WaitTimeSeconds": 21}, {"MaxNumberOfMessages": 11}, {"MaxNumberOfMessages": 0},
        {"VisibilityTimeout": 43_201},
    ):  # fmt: skip
        assert refused(sqs.receive_message, QueueUrl=url, **wrong)[0] == "InvalidParameterValue"


def test_a_poll_whose_caller_hung_up_takes_nothing(
    gateway: Gateway, sqs: Any, url: str, shop: Client
) -> None:
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    assert shop.key is not None
    request = AWSRequest(
        "POST", f"http://127.0.0.1:{shop.port}/", data=body,
        headers={"X-Amz-Target": "AmazonSQS.ReceiveMessage"},
    )  # fmt: skip
    SigV4Auth(Credentials(shop.key.key_id, shop.key.secret), "sqs", "eu-west-1").add_auth(request)
    with closing(http.client.HTTPConnection("127.0.0.1", shop.port)) as connection:
        connection.request("POST", "/", body, dict(request.headers))
        wait_until(lambda: gateway.worker.gauges()["gateway_polls"] == 1, "it waits")
    wait_until(lambda: gateway.worker.gauges()["gateway_polls"] == 0, "it is gone")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (found,) = received(sqs, url, AttributeNames=["ApproximateReceiveCount"])
    assert found["Attributes"] == {"ApproximateReceiveCount": "1"}


@proves("a handle of SQS")
@pytest.mark.parametrize("error", [DatabaseUnavailable("away"), BackPressure("full")])
def test_a_receive_answers_no_error_and_a_send_says_when_to_come_again(
    sqs: Any, url: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(messages, "_HELD_SECONDS", 0.2)
    sqs.send_message(QueueUrl=url, MessageBody="known")

    async def fails(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "_in_turn", fails)
        begun = time.monotonic()
        assert "Messages" not in sqs.receive_message(QueueUrl=url)
        assert time.monotonic() - begun >= 0.2
        code = refused(sqs.send_message, QueueUrl=url, MessageBody="x")
    away = isinstance(error, DatabaseUnavailable)
    assert (code[0], code[2]) == (
        ("ServiceUnavailable", 503) if away else ("RequestThrottled", 429)
    )


def test_errors_have_both_names_in_json_and_a_header(shop: Client, url: str) -> None:
    reply = raw(shop, "GetQueueUrl", b'{"QueueName": "none"}')
    assert reply.status == 400
    assert reply.headers["content-type"] == "application/x-amz-json-1.0"
    assert reply.json()["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
    old = "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert reply.headers["x-amzn-query-error"] == old
    for target, body, type_ in [
        ("Nothing", b"{}", "UnknownOperationException"),
        ("AddPermission", b"{}", "UnsupportedOperation"),
        ("SendMessage", b"{", "SerializationException"),
        ("SendMessage", b"[]", "SerializationException"),
        ("SendMessage", b"{}", "MissingRequiredParameterException"),
        ("ListQueues", b'{"MaxResults": "x"}', "InvalidParameterValueException"),
    ]:
        reply = raw(shop, target, body)
        assert reply.json()["__type"].endswith(f"#{type_}"), (target, body)
    # Without what was left out there are no empty lists and no nulls.
    assert (
        json.loads(raw(shop, "ReceiveMessage", json.dumps({"QueueUrl": url}).encode()).body) == {}
    )


def test_the_code_of_the_page_runs(shop: Client, sqs: Any) -> None:
    assert shop.key is not None
    (block,) = blocks_of("docs/reference/sqs.md")
    for place, value in {
        "http://127.0.0.1:8080": f"http://127.0.0.1:{shop.port}",
        "KEY_ID": shop.key.key_id,
        "SECRET": shop.key.secret,
    }.items():
        assert place in block
        block = block.replace(place, value)
    exec(compile(block, "docs/reference/sqs.md", "exec"), {})
    counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    url = sqs.get_queue_url(QueueName="mails")["QueueUrl"]
    left = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=counts)["Attributes"]
    assert left == dict.fromkeys(counts, "0")


def test_waiting_polls_rest_between_looks() -> None:
    """A poll of SQS waits no longer than polls of the gateway may."""
    assert polls.LONGEST_SECONDS >= messages._LONGEST_WAIT
