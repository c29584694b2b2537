"""FIFO queues of the SQS door: order within a group, and no message twice for five minutes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from consumers.gateway.sqs import sequences
from tests.contract.gateway.kit import Client, Gateway
from tests.contract.gateway.sqs_kit import received, refused
from tests.kit.proof import proves

FIFO = {"FifoQueue": "true"}
ALL: dict[str, Any] = {"AttributeNames": ["All"]}


@pytest.fixture
def fifo(sqs: Any) -> str:
    """A FIFO queue without any option."""
    return str(sqs.create_queue(QueueName="mails.fifo", Attributes=FIFO)["QueueUrl"])


def send(sqs: Any, url: str, body: str, group: str = "g", **more: Any) -> Any:
    return sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **more)


def by_content(sqs: Any, name: str, **attributes: str) -> str:
    """A queue that tells messages apart by their bodies."""
    given = FIFO | {"ContentBasedDeduplication": "true"} | attributes
    return str(sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"])


@proves("a FIFO queue of SQS")
@pytest.mark.usefixtures("sequencing")
def test_a_group_comes_in_order_one_at_a_time(sqs: Any, fifo: str) -> None:
    sent = [
        send(sqs, fifo, f"{group}{n}", group, MessageDeduplicationId=f"{group}{n}")
        for group in "ab"
        for n in range(3)
    ]
    numbers = [each["SequenceNumber"] for each in sent]
    assert numbers == sorted(numbers)
    assert {len(each) for each in numbers} == {20}
    order: dict[str, list[str]] = {"a": [], "b": []}
    while sum(map(len, order.values())) < 6:
        batch = received(sqs, fifo, 1, MaxNumberOfMessages=10, **ALL)
        groups = [each["Attributes"]["MessageGroupId"] for each in batch]
        assert len(groups) == len(set(groups))  # a batch has at most one of a group
        for each in batch:
            told = each["Attributes"]
            assert told["MessageDeduplicationId"] == each["Body"]
            assert told["SequenceNumber"] in numbers
            order[told["MessageGroupId"]].append(each["Body"])
            sqs.delete_message(QueueUrl=fifo, ReceiptHandle=each["ReceiptHandle"])
    assert order == {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}


@proves("a FIFO queue of SQS")
@pytest.mark.usefixtures("sequencing")
def test_a_repeated_send_answers_the_first_one_with_the_digest_of_what_came_now(
    sqs: Any, fifo: str
) -> None:
    """Guard: the claim.  Another group or body changes nothing; the scope is the queue."""
    first = send(sqs, fifo, "one", MessageDeduplicationId="x")
    again = send(sqs, fifo, "two", "other", MessageDeduplicationId="x")
    same = ("MessageId", "SequenceNumber")
    assert [again[name] for name in same] == [first[name] for name in same]
    assert again["MD5OfMessageBody"] == hashlib.md5(b"two").hexdigest()
    entries = [
        {"Id": str(n), "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": dedup}
        for n, dedup in enumerate(["y", "x", "y"])
    ]
    made = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)["Successful"]
    ids = [each["MessageId"] for each in made]
    assert ids == [ids[0], first["MessageId"], ids[0]]
    assert len({each["SequenceNumber"] for each in made}) == 2
    bodies: list[str] = []
    while len(bodies) < 2:
        for each in received(sqs, fifo):
            bodies.append(each["Body"])
            sqs.delete_message(QueueUrl=fifo, ReceiptHandle=each["ReceiptHandle"])
    assert bodies == ["one", "x"]


@pytest.mark.usefixtures("sequencing")
def test_by_content_and_by_group(sqs: Any) -> None:
    url = by_content(sqs, "content.fifo")
    first = send(sqs, url, "same")["MessageId"]
    attributes = {"a": {"DataType": "String", "StringValue": "x"}}
    assert send(sqs, url, "same", "other", MessageAttributes=attributes)["MessageId"] == first
    assert send(sqs, url, "same", MessageDeduplicationId="explicit")["MessageId"] != first
    (found,) = received(sqs, url, **ALL)
    digest = hashlib.sha256(b"same").hexdigest()
    assert found["Attributes"]["MessageDeduplicationId"] == digest
    scoped = by_content(
        sqs,
        "scoped.fifo",
        DeduplicationScope="messageGroup",
        FifoThroughputLimit="perMessageGroupId",
    )
    ids = [send(sqs, scoped, "same", group)["MessageId"] for group in "aab"]
    assert ids[0] == ids[1] != ids[2]
    told = sqs.get_queue_attributes(QueueUrl=scoped, AttributeNames=["All"])["Attributes"]
    assert told["FifoQueue"] == "true"
    assert told["FifoThroughputLimit"] == "perMessageGroupId"


def test_what_a_kind_of_queue_does_not_take(sqs: Any, fifo: str, url: str) -> None:
    wrong = "InvalidParameterValue"
    given = {"MessageBody": "x", "MessageGroupId": "g"}
    assert refused(sqs.send_message, QueueUrl=fifo, MessageBody="x")[0] == "MissingParameter"
    assert refused(sqs.send_message, QueueUrl=fifo, **given)[0] == wrong
    given["MessageDeduplicationId"] = "d"
    assert refused(sqs.send_message, QueueUrl=fifo, DelaySeconds=1, **given)[0] == wrong
    sqs.send_message(QueueUrl=fifo, DelaySeconds=0, **given)
    assert refused(sqs.send_message, QueueUrl=url, **given)[0] == wrong
    bad = given | {"MessageDeduplicationId": "a b"}
    assert refused(sqs.send_message, QueueUrl=fifo, **bad)[0] == wrong
    attempt = {"ReceiveRequestAttemptId": "a"}
    assert refused(sqs.receive_message, QueueUrl=url, **attempt)[0] == wrong
    sqs.receive_message(QueueUrl=fifo, **attempt)
    create = sqs.create_queue
    for name, more in (("x", FIFO), ("x.fifo", {}), ("x.y.fifo", FIFO), ("y" * 80 + ".fifo", FIFO)):
        assert refused(create, QueueName=name, Attributes=more)[0] == wrong
    limit = FIFO | {"FifoThroughputLimit": "perMessageGroupId"}
    assert refused(create, QueueName="x.fifo", Attributes=limit)[0] == "InvalidAttributeValue"
    scope = {"DeduplicationScope": "none"}
    assert refused(sqs.set_queue_attributes, QueueUrl=fifo, Attributes=scope)[0] == (
        "InvalidAttributeValue"
    )
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    # A FIFO queue's dead letter queue is one, too.
    policy = {"deadLetterTargetArn": arn["QueueArn"], "maxReceiveCount": 1}
    redrive = {"RedrivePolicy": json.dumps(policy)}
    assert refused(sqs.set_queue_attributes, QueueUrl=fifo, Attributes=redrive)[0] == wrong


@pytest.mark.usefixtures("sequencing")
def test_a_dead_handle_is_an_error(sqs: Any, fifo: str) -> None:
    """On a standard queue it is none: test_a_message_is_sent_received_and_deleted."""
    send(sqs, fifo, "x", MessageDeduplicationId="d")
    (held,) = received(sqs, fifo, VisibilityTimeout=0)
    received(sqs, fifo)
    found = refused(sqs.delete_message, QueueUrl=fifo, ReceiptHandle=held["ReceiptHandle"])
    assert found[0] == "InvalidParameterValue"
    entries = [{"Id": "a", "ReceiptHandle": held["ReceiptHandle"]}]
    gone = sqs.delete_message_batch(QueueUrl=fifo, Entries=entries)
    assert [each["Code"] for each in gone["Failed"]] == ["InvalidParameterValue"]
    assert not gone.get("Successful")


def test_without_a_sequencer_a_send_is_answered_without_its_number(
    gateway: Gateway, shop: Client, sqs: Any, fifo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "LONGEST_SECONDS", 0.1)
    sent = send(sqs, fifo, "x", MessageDeduplicationId="d")
    assert "SequenceNumber" not in sent
    gateway.sequence()
    monkeypatch.undo()
    again = send(sqs, fifo, "x", MessageDeduplicationId="d")
    assert (again["MessageId"], int(again["SequenceNumber"])) == (sent["MessageId"], 1)
