"""Queues of the SQS door: made, found, described, changed, and who may."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from consumers.gateway import front
from consumers.gateway.sqs import calls
from penstock.subscriptions import queue
from penstock.upkeep.sweeping import sweep
from tests.contract.gateway.kit import Client, Gateway, send
from tests.contract.gateway.sqs_kit import raw, received, refused, sqs_of
from tests.kit.log import wait_until
from tests.kit.queue import all_older

pytestmark = pytest.mark.usefixtures("sequencing")


def test_queues_are_found_listed_and_deleted(sqs: Any, url: str, shop: Client) -> None:
    assert sqs.get_queue_url(QueueName="mails")["QueueUrl"] == url
    assert url == f"http://127.0.0.1:{shop.port}/{shop.account}/mails"
    for name in ("b", "a"):
        sqs.create_queue(QueueName=name)
    urls = [each.rpartition("/")[2] for each in sqs.list_queues()["QueueUrls"]]
    assert urls == ["a", "b", "mails"]
    assert sqs.list_queues(QueueNamePrefix="m")["QueueUrls"] == [url]
    page = sqs.list_queues(MaxResults=2)
    assert len(page["QueueUrls"]) == 2
    assert sqs.list_queues(MaxResults=2, NextToken=page["NextToken"])["QueueUrls"] == [url]
    sqs.delete_queue(QueueUrl=url)
    gone = ("AWS.SimpleQueueService.NonExistentQueue", 400)
    tried: list[tuple[Any, dict[str, Any]]] = [
        (sqs.get_queue_url, {"QueueName": "mails"}),
        (sqs.send_message, {"QueueUrl": url, "MessageBody": "x"}),
        (sqs.receive_message, {"QueueUrl": url}),
        (sqs.receive_message, {"QueueUrl": url, "WaitTimeSeconds": 1}),
        (sqs.get_queue_attributes, {"QueueUrl": url}),
        (sqs.delete_queue, {"QueueUrl": url}),
    ]
    for call, given in tried:
        found = refused(call, **given)
        assert (found[0], found[2]) == gone
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="m")


def test_of_an_address_only_the_path_counts(sqs: Any, url: str, shop: Client) -> None:
    for text in (
        f"https://elsewhere:1/{shop.account}/mails",
        f"http://x/{shop.account}/mails/",
        f"/{shop.account}/mails",
    ):
        body = json.dumps({"QueueUrl": text, "MessageBody": "x"}).encode()
        # SDKs may post to the path of the queue.
        assert raw(shop, "SendMessage", body, f"/{shop.account}/mails").status == 200
    other = json.dumps({"QueueUrl": "http://x/other/mails", "MessageBody": "x"}).encode()
    assert raw(shop, "SendMessage", other).status == 400
    # What is no address at all is nobody's queue, too.
    assert raw(shop, "SendMessage", b'{"QueueUrl": "http://[x", "MessageBody": "x"}').status == 400


def test_what_a_caller_sends_is_remembered_only_when_it_is_short(
    sqs: Any, url: str, shop: Client
) -> None:
    """Guard: the limit of QueueUrl.  Else a tenant fills the memory of all, 8 MiB at a time."""
    calls._places.cache_clear()
    for longest in (calls.LONGEST_URL, calls.LONGEST_URL + 1):
        tail = f"/{shop.account}/mails"
        text = "http://" + "x" * (longest - 7 - len(tail)) + tail
        body = json.dumps({"QueueUrl": text, "MessageBody": "x"}).encode()
        reply = raw(shop, "SendMessage", body)
        if longest == calls.LONGEST_URL:
            assert reply.status == 200
        else:
            assert reply.headers["x-amzn-query-error"].startswith(
                "AWS.SimpleQueueService.NonExistentQueue"
            )
    assert calls._places.cache_info().currsize == 1


def test_an_address_that_a_proxy_passes_on_is_cut() -> None:
    """Guard: the cut.  Addresses are remembered, to count the failures of each."""
    headers = {"x-forwarded-for": "1.2.3.4, " + "x" * 10_000}
    found = front.origin_of({"client": ("9.9.9.9", 1), "scheme": "http"}, headers, {"9.9.9.9"})
    assert found.address == "x" * front.LONGEST_ADDRESS


def test_a_queue_is_created_again_only_as_it_is(sqs: Any, url: str) -> None:
    assert sqs.create_queue(QueueName="mails")["QueueUrl"] == url
    usual = {"VisibilityTimeout": "30", "DelaySeconds": "0"}
    assert sqs.create_queue(QueueName="mails", Attributes=usual)["QueueUrl"] == url
    other = {"VisibilityTimeout": "31"}
    found = refused(sqs.create_queue, QueueName="mails", Attributes=other)
    assert found[0] == "QueueAlreadyExists"
    for name in ("a b", "ä", "x" * 81, "a.fifo"):
        assert refused(sqs.create_queue, QueueName=name)[2] == 400


def test_attributes_of_a_queue_are_told_and_changed(sqs: Any, url: str, shop: Client) -> None:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["QueueArn"] == f"arn:aws:sqs:eu-west-1:{shop.account}:mails"
    assert found["VisibilityTimeout"] == "30"
    assert abs(int(found["CreatedTimestamp"]) - time.time()) < 60
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)
    sqs.set_queue_attributes(
        QueueUrl=url, Attributes={"VisibilityTimeout": "7", "DelaySeconds": "900"}
    )
    some = ["VisibilityTimeout", "DelaySeconds", "MaximumMessageSize"]
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=some)["Attributes"]
    assert told == dict(zip(some, ["7", "900", "1048576"], strict=True))
    sqs.send_message(QueueUrl=url, MessageBody="delayed, from the change on")
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    for wrong, code in [
        ({"DelaySeconds": "901"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "x"}, "InvalidAttributeValue"),
        ({"Unknown": "1"}, "InvalidAttributeName"),
        ({"RedrivePolicy": "{}"}, "InvalidParameterValue"),
        ({"FifoQueue": "true"}, "InvalidAttributeName"),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
        ({"Policy": "{}"}, "AWS.SimpleQueueService.UnsupportedOperation"),
    ]:
        assert refused(sqs.set_queue_attributes, QueueUrl=url, Attributes=wrong)[0] == code
    unknown = refused(sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["X"])
    assert unknown[0] == "InvalidAttributeName"


def test_messages_that_are_too_old_are_dropped(sqs: Any, url: str, gateway: Gateway) -> None:
    """Four days unless the queue was told another period."""
    some = ["MessageRetentionPeriod"]
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=some)["Attributes"]
    assert told == {"MessageRetentionPeriod": "345600"}
    address = "/".join(url.rsplit("/", 2)[1:])
    assert queue.describe(gateway.owner, address).retention_seconds == 345_600
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": "60"})
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=some)["Attributes"]
    assert told == {"MessageRetentionPeriod": "60"}
    sqs.send_message(QueueUrl=url, MessageBody="old")
    wait_until(lambda: queue.statistics(gateway.owner, address).size == 1, "it has its sequence")
    all_older(gateway.owner, 100)
    sqs.send_message(QueueUrl=url, MessageBody="young")
    wait_until(lambda: queue.statistics(gateway.owner, address).size == 2, "it has its sequence")
    sweep(gateway.owner)
    assert [each["Body"] for each in received(sqs, url)] == ["young"]
    assert queue.statistics(gateway.owner, address).size == 1


def test_tags_and_a_purge(sqs: Any, url: str) -> None:
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)
    sqs.tag_queue(QueueUrl=url, Tags={"a": "1", "b": "2"})
    sqs.tag_queue(QueueUrl=url, Tags={"b": "3"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["a"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"b": "3"}
    sqs.send_message(QueueUrl=url, MessageBody="x")
    received(sqs, url, VisibilityTimeout=0)
    sqs.purge_queue(QueueUrl=url)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    again = refused(sqs.purge_queue, QueueUrl=url)
    assert (again[0], again[2]) == ("AWS.SimpleQueueService.PurgeQueueInProgress", 403)


def test_messages_that_are_received_too_often_go_to_another_queue(
    sqs: Any, url: str, shop: Client
) -> None:
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    arn = f"arn:aws:sqs:eu-west-1:{shop.account}:dead"
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": "2"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    assert sqs.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"] == []
    color = {"color": {"DataType": "String", "StringValue": "blue"}}
    sqs.send_message(QueueUrl=url, MessageBody="bad", MessageAttributes=color)
    for _ in range(2):
        (held,) = received(sqs, url)
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=held["ReceiptHandle"], VisibilityTimeout=0
        )
    asked: dict[str, Any] = {
        "MessageAttributeNames": ["All"],
        "AttributeNames": ["DeadLetterQueueSourceArn"],
    }
    (letter,) = received(sqs, dead, VisibilityTimeout=0, **asked)
    # As it was sent: its reason is no attribute, and is there for those who ask for it by name.
    assert (letter["Body"], letter["MessageAttributes"]) == ("bad", color)
    source = letter["Attributes"]["DeadLetterQueueSourceArn"]
    assert source == f"arn:aws:sqs:eu-west-1:{shop.account}:mails"
    (letter,) = received(sqs, dead, MessageAttributeNames=["penstock-letter-reason"])
    assert letter["MessageAttributes"].keys() == {"penstock-letter-reason"}
    missing = policy | {"deadLetterTargetArn": f"{arn}2"}
    wrong = {"RedrivePolicy": json.dumps(missing)}
    found = refused(sqs.set_queue_attributes, QueueUrl=url, Attributes=wrong)
    assert (found[0], found[2]) == ("InvalidParameterValue", 400)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == []


def test_only_a_good_key_with_the_level_may_call(
    gateway: Gateway, sqs: Any, url: str, shop: Client, bank: Client
) -> None:
    assert shop.key is not None
    wrong = replace(shop, key=replace(shop.key, secret="x" * 43))
    unknown = replace(shop, key=replace(shop.key, key_id="0" * 24))
    answers = [raw(each, "ListQueues", b"{}") for each in (wrong, unknown)]
    assert [each.status for each in answers] == [403, 403]
    assert answers[0].body == answers[1].body
    foreign = sqs_of(bank)
    tried: list[tuple[Any, dict[str, Any]]] = [
        (foreign.send_message, {"MessageBody": "x"}),
        (foreign.receive_message, {}),
        (foreign.purge_queue, {}),
        (foreign.get_queue_attributes, {"AttributeNames": ["All"]}),
    ]
    for call, given in tried:
        assert refused(call, QueueUrl=url, **given)[0].endswith("NonExistentQueue")
        assert refused(call, QueueUrl=url + "2", **given)[0].endswith("NonExistentQueue")
    assert "QueueUrls" not in foreign.list_queues()
    limited = sqs_of(gateway.client(shop.account, levels="rp", queue="mails"))
    limited.send_message(QueueUrl=url, MessageBody="x")
    (held,) = received(limited, url)
    gone = refused(limited.delete_message, QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])
    assert (gone[0], gone[2]) == ("AccessDenied", 403)
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    assert refused(limited.send_message, QueueUrl=other, MessageBody="x")[0] == "AccessDenied"


def test_the_older_protocol_is_told_what_to_use(shop: Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    reply = send(shop.port, "POST", "/", b"Action=ListQueues", form)
    assert (reply.status, reply.headers["content-type"]) == (400, "text/xml")
    assert b"JSON" in reply.body


def test_a_process_believes_attributes_for_a_moment_only() -> None:
    known = calls.KnownQueues()
    facts = calls.QueueFacts({}, {}, 0, 0)
    known.put("a", "q", facts)
    assert known.get("a", "q") is facts
    assert known.get("b", "q") is None
    known.put("a", "q", None)
    assert known.get("a", "q") is None
