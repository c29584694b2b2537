"""The SQS and SNS sinks, on a server in this process that speaks their protocols."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import boto3
import pytest

from ops.sinks import aws
from ops.sinks.address import open_sink
from ops.sinks.aws import AwsSink
from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    Sink,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
)
from ops.sinks.cloudevents import to_json
from ops.sinks.lanes import Lanes
from ops.sinks.sent import SentEvents
from penstock.errors import ConfigurationError
from tests.kit.proof import proves
from tests.relay.aws_server import ACCOUNT, REGION, Queue
from tests.relay.blocks import TOPIC, block, event
from tests.relay.receivers import Says, receiving

LEASE = SinkLease("to-the-sink", TOPIC, TOPIC, 0, 1, 1)


pytestmark = pytest.mark.usefixtures("aws_login")


def sink_of(queue: Queue) -> AwsSink:
    """A sink on a queue."""
    sink = open_sink(queue.address)
    assert isinstance(sink, AwsSink)
    return sink


def send(sink: Sink, sent: RelayBlock) -> None:
    """Send a block over a channel of its own, as a relay does after every error."""
    with closing(sink.open(LEASE)) as channel:
        channel.send_block(sent)


Sent = list[list[int]]


def watched(sink: AwsSink, answer: Callable[[int], dict[str, Any] | None] = lambda _: None) -> Sent:
    """Notes the sequences of each call.

    Events for which ``answer`` returns a failure do not reach the server.
    """
    calls: Sent = []
    forward = sink.place.send

    def through(entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        calls.append([int(each["Id"]) for each in entries])
        failed = {each["Id"]: answer(int(each["Id"])) for each in entries}
        taken = [each for each in entries if not failed[each["Id"]]]
        refused = [{"Id": name, **why} for name, why in failed.items() if why]
        return [*refused, *(forward(taken) if taken else [])]

    sink.place.send = through  # type: ignore[method-assign]
    return calls


def test_a_queue_gets_each_event_in_calls_of_ten(endpoint: str) -> None:
    queue = Queue(endpoint)
    sink = sink_of(queue)
    sink.preflight(TOPIC, 1)
    calls = watched(sink)
    send(sink, block(1, 25))
    assert sorted(map(len, calls)) == [5, 10, 10]
    found = {json.loads(each["Body"])["id"]: each for each in queue.read()}
    assert len(found) == 25
    first = found[str(event(1).event_id)]
    assert first["Body"].encode() == to_json(event(1))
    attributes = {name: each["StringValue"] for name, each in first["MessageAttributes"].items()}
    assert attributes == {
        "content-type": "application/cloudevents+json",
        "ce_id": str(event(1).event_id),
        "ce_source": "/bank/accounts",
        "ce_type": "moved",
    }


@proves("a sink that only takes gets everything")
def test_a_fifo_queue_keeps_the_order_of_keys_and_drops_what_is_sent_again(endpoint: str) -> None:
    queue = Queue(endpoint, fifo=True)
    send(sink_of(queue), block(1, 40))
    send(sink_of(queue), block(1, 40, reopened=True))  # a successor: another process
    messages = queue.read()
    found = [int(json.loads(each["Body"])["sequence"]) for each in messages]
    assert sorted(found) == list(range(1, 41))
    for key in range(7):
        assert [n for n in found if n % 7 == key] == [n for n in range(1, 41) if n % 7 == key]
    assert {each["Attributes"]["MessageGroupId"] for each in messages} == {
        f"account-{key}" for key in range(7)
    }


def _of_one_key(calls: Sent) -> int:
    """How many calls hold two events of a key."""
    return sum(len({n % 7 for n in call}) < len(call) for call in calls)


@proves("a sink that only takes gets everything", guard="one event of a group a call")
def test_a_call_to_a_fifo_queue_has_one_event_of_a_key(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(Queue(endpoint, fifo=True))
    calls = watched(sink)
    send(sink, block(1, 40))
    assert _of_one_key(calls) == 0
    monkeypatch.setattr(
        aws, "Lanes", lambda *given, **named: Lanes(*given, **named | {"most_of_a_lane": 10})
    )
    sink = sink_of(Queue(endpoint, fifo=True))
    calls = watched(sink)
    send(sink, block(1, 40))
    assert _of_one_key(calls) > 0


def test_groups_are_keys_that_aws_takes() -> None:
    assert aws.group_of(event(1, key="ann")) == "ann"
    assert aws.group_of(event(1, key="")) == "partition-0"
    for strange in ("a b", "ü", "x" * 129):
        assert len(aws.group_of(event(1, key=strange))) == 64


def _partly(queue: Queue) -> list[int]:
    """Two of a block are not taken at first."""
    sink = sink_of(queue)
    failures = {3: 1, 17: 1}

    def answer(sequence: int) -> dict[str, Any] | None:
        if failures.pop(sequence, 0):
            return {"SenderFault": False, "Code": "InternalError"}
        return None

    watched(sink, answer)
    for reopened in (False, True, True):
        try:
            send(sink, block(1, 20, reopened=reopened))
        except SinkUnavailable as error:
            assert "InternalError" in str(error)
    return sorted(queue.sequences())


@proves("a sink that only takes gets everything")
def test_what_went_is_not_sent_again_with_what_failed(endpoint: str) -> None:
    assert _partly(Queue(endpoint)) == list(range(1, 21))


@proves("a sink that only takes gets everything", guard="the memory of what was sent")
def test_without_the_memory_it_is(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SentEvents, "of", lambda *_: set())
    assert len(_partly(Queue(endpoint))) > 20


def test_an_event_that_aws_refuses_goes_to_the_dead_letters(endpoint: str) -> None:
    queue = Queue(endpoint)
    sink = sink_of(queue)
    refused = {"SenderFault": True, "Code": "InvalidMessageContents", "Message": "no"}
    watched(sink, lambda sequence: refused if sequence == 5 else None)
    with pytest.raises(EventRefused, match=r"InvalidMessageContents \(no\)") as caught:
        send(sink, block(1, 9))
    assert caught.value.sequence == 5
    rest = tuple(event(n) for n in range(1, 10) if n != 5)
    send(sink, block(1, 9, events=rest, reopened=True))
    assert sorted(queue.sequences()) == [1, 2, 3, 4, 6, 7, 8, 9]


def test_a_call_that_one_event_spoils_is_sent_event_by_event(endpoint: str) -> None:
    """The queue's limit was lowered after the relay had asked for it."""
    queue = Queue(endpoint, MaximumMessageSize="2048")
    sink = sink_of(queue)
    sink.preflight(TOPIC, 1)
    sink.place.limit = aws.SQS_BYTES
    payloads = {4: json.dumps("x" * 3_000).encode()}
    spoiled = tuple(event(n, payload=payloads.get(n, b"{}")) for n in range(1, 8))
    with pytest.raises(EventRefused, match="InvalidParameterValue") as caught:
        send(sink, block(1, 7, events=spoiled))
    assert caught.value.sequence == 4
    send(sink, block(1, 7, events=(*spoiled[:3], *spoiled[4:]), reopened=True))
    assert sorted(queue.sequences()) == [1, 2, 3, 5, 6, 7]


def test_calls_and_events_of_too_many_bytes(endpoint: str) -> None:
    queue = Queue(endpoint)
    sink = sink_of(queue)
    sink.preflight(TOPIC, 1)
    calls = watched(sink)
    large = tuple(event(n, payload=json.dumps("x" * 300_000).encode()) for n in range(1, 9))
    send(sink, block(1, 8, events=large))
    assert sorted(map(len, calls)) == [2, 3, 3]
    too_large = event(9, payload=json.dumps("x" * 1_100_000).encode())
    with pytest.raises(EventRefused, match="takes 1048576"):
        send(sink, block(9, 9, events=(too_large,)))


def test_the_queue_says_what_it_takes(endpoint: str) -> None:
    sink = sink_of(Queue(endpoint, MaximumMessageSize="2048"))
    sink.preflight(TOPIC, 1)
    with pytest.raises(EventRefused, match="takes 2048"):
        send(sink, block(1, 1, events=(event(1, payload=b"x" * 3_000),)))


def test_a_topic_gives_each_event_to_its_subscribers(endpoint: str) -> None:
    queue = Queue(endpoint, fifo=True)
    client = boto3.client("sns", region_name=REGION, endpoint_url=endpoint)
    name = queue.name
    arn = client.create_topic(Name=name, Attributes={"FifoTopic": "true"})["TopicArn"]
    of_queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue.name}"
    client.subscribe(
        TopicArn=arn, Protocol="sqs", Endpoint=of_queue, Attributes={"RawMessageDelivery": "true"}
    )
    sink = open_sink(f"sns://{REGION}/{ACCOUNT}/{name}?endpoint={endpoint}")
    sink.preflight(TOPIC, 1)
    send(sink, block(1, 30))
    found = queue.sequences()
    assert sorted(found) == list(range(1, 31))
    for key in range(7):
        assert [n for n in found if n % 7 == key] == [n for n in range(1, 31) if n % 7 == key]
    missing = open_sink(f"sns://{REGION}/{ACCOUNT}/none?endpoint={endpoint}")
    with pytest.raises(SinkMisconfigured, match="NotFound"):
        missing.preflight(TOPIC, 1)


def test_a_queue_that_is_not_there_is_said(endpoint: str) -> None:
    sink = open_sink(f"sqs://{REGION}/none?endpoint={endpoint}")
    for attempt in (lambda: sink.preflight(TOPIC, 1), lambda: send(sink, block(1, 1))):
        with pytest.raises(SinkMisconfigured, match=r"NonExistentQueue|QueueDoesNotExist"):
            attempt()


ANSWERS: dict[str, type[Exception]] = {
    "KMS.ThrottlingException": SinkUnavailable,
    "InternalFailure": SinkUnavailable,
    "ExpiredToken": SinkMisconfigured,
    "AccessDenied": SinkMisconfigured,
}


@pytest.mark.parametrize("code", ANSWERS)
def test_what_an_error_means(code: str) -> None:
    with receiving() as receiver:
        body = json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": "so"}).encode()
        receiver.answer = lambda _: Says(400, {"Content-Type": "application/x-amz-json-1.0"}, body)
        sink = open_sink(f"sqs://{REGION}/q?endpoint=http://127.0.0.1:{receiver.port}")
        with pytest.raises(ANSWERS[code], match=code) as caught:
            send(sink, block(1, 1))
        assert type(caught.value) is ANSWERS[code]
        assert "hunter2" not in str(caught.value)
        assert len(receiver.calls) == 1  # boto3 does not try again by itself


def test_no_server_and_no_login_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        port = receiver.port
    sink = open_sink(f"sqs://{REGION}/q?endpoint=http://127.0.0.1:{port}")
    with pytest.raises(SinkUnavailable, match="did not answer"):
        send(sink, block(1, 1))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    sink = open_sink(f"sqs://{REGION}/q?endpoint=http://127.0.0.1:{port}")
    with pytest.raises(SinkMisconfigured, match="finds no login"):
        send(sink, block(1, 1))


def test_a_sink_beside_is_another_queue() -> None:
    for name, other in (("events", "events-again"), ("events.fifo", "events-again.fifo")):
        sink = open_sink(f"sqs://{REGION}/{name}", beside="again")
        assert isinstance(sink, AwsSink)
        assert sink.place.said == other


@pytest.mark.parametrize(
    "address",
    ["sqs://eu-central-1/", "sqs://eu-central-1/a/b", "sqs:///q", "sqs://eu-central-1/a%20b",
     "sns://eu-central-1/topic", "sqs://eu-central-1/q?retries=3", "sqs://eu central/q"],
)  # fmt: skip
def test_what_is_wrong_with_an_address_is_said(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_sink(address)
    assert "://region/" in (caught.value.hint or "").lower()
