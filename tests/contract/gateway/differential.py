"""The same calls of SQS against several servers; of their answers, what is not each one's own."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError

ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "blue"},
    "number": {"DataType": "Number", "StringValue": "1.50"},
    "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    "own": {"DataType": "String.json", "StringValue": "{}"},
}
#: Fields whose values are the server's own.
_OWN = {
    "MessageId", "ReceiptHandle", "SenderId", "CreatedTimestamp", "LastModifiedTimestamp",
    "SentTimestamp", "ApproximateFirstReceiveTimestamp", "NextToken", "SequenceNumber",
}  # fmt: skip
_URL = re.compile(r"https?://[^/]+/[^/]+/(.+)")
_ARN = re.compile(r"arn:aws:sqs:[^:]*:[^:]*:")


def normalised(value: Any, name: str = "") -> Any:
    """Without ids, times, accounts and the texts that people read."""
    if isinstance(value, dict):
        return {
            each: normalised(inner, each)
            for each, inner in value.items()
            if each not in {"ResponseMetadata", "Message"}
        }
    if isinstance(value, list):
        return [normalised(each, name) for each in value]
    if name in _OWN:
        return "..."
    if isinstance(value, str):
        return _ARN.sub("arn:", _URL.sub(r"url:\1", value))
    return value


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with where it stands."""
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in pairs:
            yield from flat(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


class Told:
    """Calls by name, and what each was answered."""

    def __init__(self, sqs: Any, patience: float) -> None:
        self.sqs = sqs
        self._patience = patience
        self.answers: dict[str, dict[str, Any]] = {}

    def call(self, name: str, operation: str, **given: Any) -> dict[str, Any]:
        """Make a call and keep its answer, or its error."""
        return self.keep(name, lambda: getattr(self.sqs, operation)(**given))

    def keep(self, name: str, work: Callable[[], Any]) -> dict[str, Any]:
        """The same for what is more than one call."""
        assert name not in self.answers, name
        try:
            answer = work()
        except ClientError as error:
            told = error.response
            answer = {
                "error": told["Error"]["Code"],
                "status": told["ResponseMetadata"]["HTTPStatusCode"],
            }
        except ParamValidationError as error:
            raise AssertionError(f"{name}: the SDK refuses it: {error}") from None
        self.answers[name] = dict(flat(normalised(answer)))
        return answer if isinstance(answer, dict) else {}

    def take(self, name: str, url: str, count: int = 1, **more: Any) -> list[Any]:
        """So many messages, by their bodies in order: no queue here promises one.

        A server that has refused what was sent has fewer; then it is asked with a handle of none.
        """
        found: list[Any] = []
        until = time.monotonic() + self._patience

        def work() -> list[Any]:
            while len(found) < count and time.monotonic() < until:
                given = {"MaxNumberOfMessages": count - len(found), "WaitTimeSeconds": 1} | more
                found.extend(self.sqs.receive_message(QueueUrl=url, **given).get("Messages", []))
            return sorted(found, key=lambda message: message["Body"])

        self.keep(name, work)
        missing = {"ReceiptHandle": "none", "Body": ""}
        return found + [missing] * (count - len(found))

    def end(self, url: str, message: Any) -> None:
        """Delete a message, if it is there."""
        with contextlib.suppress(ClientError):
            self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def all_calls(sqs: Any, patience: float) -> dict[str, dict[str, Any]]:
    """What a server answers to all of them; so long a message may take to come."""
    told = Told(sqs, patience)
    _of_queues(told)
    url = sqs.get_queue_url(QueueName="mails")["QueueUrl"]
    _of_messages(told, url)
    _of_batches(told, url)
    _of_handles(told, url)
    _refused(told)
    _dead(told)
    _fifo(told)
    _ended(told, url)
    return told.answers


def _of_queues(told: Told) -> None:
    call = told.call
    call("create", "create_queue", QueueName="mails")
    call("create again", "create_queue", QueueName="mails")
    call("create other", "create_queue", QueueName="b", Attributes={"VisibilityTimeout": "60"})
    call("create, equal", "create_queue", QueueName="b", Attributes={"VisibilityTimeout": "60"})
    call("create, fewer", "create_queue", QueueName="b")
    call("create, differing", "create_queue", QueueName="b", Attributes={"VisibilityTimeout": "1"})
    call("create, with tags", "create_queue", QueueName="tagged", tags={"a": "1"})
    call("create, bad name", "create_queue", QueueName="a b")
    call("create, long name", "create_queue", QueueName="x" * 81)
    call("create, bad attribute", "create_queue", QueueName="c", Attributes={"None": "1"})
    wrong = {"VisibilityTimeout": "43201"}
    call("create, bad value", "create_queue", QueueName="c", Attributes=wrong)
    call("url", "get_queue_url", QueueName="mails")
    call("url, none", "get_queue_url", QueueName="none")
    call("list", "list_queues")
    call("list, prefix", "list_queues", QueueNamePrefix="ma")
    call("list, nothing", "list_queues", QueueNamePrefix="nothing")
    call("list, a page", "list_queues", MaxResults=2)
    url = told.sqs.get_queue_url(QueueName="mails")["QueueUrl"]
    call("attributes, none", "get_queue_attributes", QueueUrl=url)
    call("attributes", "get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
    some = ["VisibilityTimeout", "QueueArn"]
    call("attributes, some", "get_queue_attributes", QueueUrl=url, AttributeNames=some)
    call("attributes, bad", "get_queue_attributes", QueueUrl=url, AttributeNames=["None"])
    changed = {"VisibilityTimeout": "45", "MaximumMessageSize": "2048"}
    call("change", "set_queue_attributes", QueueUrl=url, Attributes=changed)
    # In another queue: where it is taken, everything is delayed.
    other, wrong = told.sqs.get_queue_url(QueueName="b")["QueueUrl"], {"DelaySeconds": "901"}
    call("change, bad", "set_queue_attributes", QueueUrl=other, Attributes=wrong)
    call("attributes, changed", "get_queue_attributes", QueueUrl=url, AttributeNames=[*changed])
    call("tags, none", "list_queue_tags", QueueUrl=url)
    call("tag", "tag_queue", QueueUrl=url, Tags={"a": "1", "b": "2"})
    call("untag", "untag_queue", QueueUrl=url, TagKeys=["a"])
    call("tags", "list_queue_tags", QueueUrl=url)


def _of_messages(told: Told, url: str) -> None:
    call = told.call
    call("receive nothing", "receive_message", QueueUrl=url)
    call("send", "send_message", QueueUrl=url, MessageBody="hello ä\n")
    (one,) = told.take("receive", url)
    call("delete", "delete_message", QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    call("delete again", "delete_message", QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    given = {"QueueUrl": url, "MessageBody": "x", "MessageAttributes": ATTRIBUTES}
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    call("send attributes", "send_message", **given)
    for what, names in (
        ("none", []), ("all", ["All"]), ("dots", [".*"]), ("prefix", ["n.*"]), ("one", ["text"]),
        ("missing", ["missing"]),
    ):  # fmt: skip
        (one,) = told.take(
            f"receive attributes, {what}", url, MessageAttributeNames=names, VisibilityTimeout=0
        )
    (one,) = told.take("receive, hidden", url)
    told.end(url, one)
    call("send a trace", "send_message", **given, MessageSystemAttributes=trace)
    system = ["AWSTraceHeader", "SentTimestamp", "SenderId", "ApproximateReceiveCount"]
    (one,) = told.take("receive system", url, MessageSystemAttributeNames=system)
    told.end(url, one)
    call("send with a group", "send_message", QueueUrl=url, MessageBody="x", MessageGroupId="g")
    (one,) = told.take("receive a group", url, AttributeNames=["MessageGroupId"])
    told.end(url, one)
    call("send delayed", "send_message", QueueUrl=url, MessageBody="later", DelaySeconds=2)
    call("receive nothing yet", "receive_message", QueueUrl=url)
    (one,) = told.take("receive delayed", url)
    told.end(url, one)


def _of_batches(told: Told, url: str) -> None:
    call = told.call
    bodies = [{"Id": str(number), "MessageBody": f"m{number}"} for number in range(5)]
    call("send a batch", "send_message_batch", QueueUrl=url, Entries=bodies)
    found = told.take("receive a batch", url, 5)
    handles = [
        {"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]}
        for place, each in enumerate(found)
    ]
    longer = [each | {"VisibilityTimeout": 60} for each in handles]
    call("change a batch", "change_message_visibility_batch", QueueUrl=url, Entries=longer)
    longer[0]["VisibilityTimeout"] = 43_201
    longer[1]["ReceiptHandle"] = "never"
    call("change, in part", "change_message_visibility_batch", QueueUrl=url, Entries=longer)
    call("delete a batch", "delete_message_batch", QueueUrl=url, Entries=handles)
    other = told.sqs.create_queue(QueueName="in-part")["QueueUrl"]
    bad = [bodies[0] | {"MessageBody": "\x00"}, bodies[1] | {"DelaySeconds": 901}, bodies[2]]
    call("send, in part", "send_message_batch", QueueUrl=other, Entries=bad)
    for name, entries in (
        ("none", []),
        ("eleven", [bodies[0] | {"Id": str(number)} for number in range(11)]),
        ("twice", [bodies[0], bodies[0]]),
        ("bad id", [bodies[0] | {"Id": "a b"}]),
        ("long id", [bodies[0] | {"Id": "x" * 81}]),
    ):
        call(f"batch, {name}", "send_message_batch", QueueUrl=other, Entries=entries)
    missing = f"{url}2"
    one_entry = [{"Id": "a", "ReceiptHandle": "x"}]
    call("delete batch, no queue", "delete_message_batch", QueueUrl=missing, Entries=one_entry)


def _of_handles(told: Told, url: str) -> None:
    call = told.call
    told.sqs.send_message(QueueUrl=url, MessageBody="handles")
    (one,) = told.take("receive to change", url)
    given = {"QueueUrl": url, "ReceiptHandle": one["ReceiptHandle"]}
    call("change visibility", "change_message_visibility", **given, VisibilityTimeout=60)
    call("change it again", "change_message_visibility", **given, VisibilityTimeout=90)
    call("put back", "change_message_visibility", **given, VisibilityTimeout=0)
    (two,) = told.take("receive it again", url, AttributeNames=["ApproximateReceiveCount"])
    call("old handle, change", "change_message_visibility", **given, VisibilityTimeout=0)
    call("old handle, delete", "delete_message", **given)
    call("new handle, delete", "delete_message", QueueUrl=url, ReceiptHandle=two["ReceiptHandle"])
    call("no handle, delete", "delete_message", QueueUrl=url, ReceiptHandle="never")
    no_handle = {"QueueUrl": url, "ReceiptHandle": "never", "VisibilityTimeout": 1}
    call("no handle, change", "change_message_visibility", **no_handle)
    call("change too long", "change_message_visibility", **given, VisibilityTimeout=43_201)


def _refused(told: Told) -> None:
    """In a queue of its own: what one server takes and another refuses is not received."""
    call = told.call
    url = told.sqs.create_queue(QueueName="refused", Attributes={"MaximumMessageSize": "2048"})[
        "QueueUrl"
    ]

    def send(name: str, body: str = "x", **more: Any) -> None:
        call(name, "send_message", QueueUrl=url, MessageBody=body, **more)

    send("send nothing", "")
    send("send CR", "a\r\nb")
    send("send NUL", "\x00")
    send("send too much", "x" * 2_049)  # the queue's limit
    send("send, delay too long", DelaySeconds=901)
    for name, attribute, value in (
        ("of AWS", "AWS.x", {"DataType": "String", "StringValue": "x"}),
        ("dots", "a..b", {"DataType": "String", "StringValue": "x"}),
        ("empty", "n", {"DataType": "String", "StringValue": ""}),
        ("type", "n", {"DataType": "Text", "StringValue": "x"}),
        ("no number", "n", {"DataType": "Number", "StringValue": "x"}),
    ):
        send(f"attribute, {name}", MessageAttributes={attribute: value})
    many = {f"n{number}": ATTRIBUTES["text"] for number in range(11)}
    send("attributes, eleven", MessageAttributes=many)
    for name, more in (
        ("eleven", {"MaxNumberOfMessages": 11}),
        ("none", {"MaxNumberOfMessages": 0}),
        ("wait", {"WaitTimeSeconds": 21}),
        ("visibility", {"VisibilityTimeout": 43_201}),
    ):
        call(f"receive, {name}", "receive_message", QueueUrl=url, **more)
    missing = f"{url}2"
    call("send, no queue", "send_message", QueueUrl=missing, MessageBody="x")
    call("receive, no queue", "receive_message", QueueUrl=missing)
    call("attributes, no queue", "get_queue_attributes", QueueUrl=missing)
    call("delete, no queue", "delete_queue", QueueUrl=missing)


def _dead(told: Told) -> None:
    call, sqs = told.call, told.sqs
    source, dead, other = (
        sqs.create_queue(QueueName=each)["QueueUrl"] for each in ("source", "dead", "policies")
    )
    (arn,) = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])[
        "Attributes"
    ].values()
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": 1}
    right = {"RedrivePolicy": json.dumps(policy)}
    call("redrive policy", "set_queue_attributes", QueueUrl=source, Attributes=right)
    for name, wrong in (
        ("no queue", {"RedrivePolicy": json.dumps(policy | {"deadLetterTargetArn": f"{arn}2"})}),
        ("no count", {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn})}),
        ("no JSON", {"RedrivePolicy": "x"}),
    ):
        # In another queue: where it is taken, nothing can be received any more.
        call(f"policy, {name}", "set_queue_attributes", QueueUrl=other, Attributes=wrong)
    call("sources", "list_dead_letter_source_queues", QueueUrl=dead)
    call("sources, none", "list_dead_letter_source_queues", QueueUrl=source)
    sqs.send_message(QueueUrl=source, MessageBody="bad", MessageAttributes=ATTRIBUTES)
    (one,) = told.take("receive the bad one", source)
    given = {"QueueUrl": source, "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 0}
    call("put the bad one back", "change_message_visibility", **given)
    call("receive, dead", "receive_message", QueueUrl=source)
    told.take(
        "receive a letter", dead, MessageAttributeNames=["All"],
        AttributeNames=["ApproximateReceiveCount", "DeadLetterQueueSourceArn"],
    )  # fmt: skip


def _fifo(told: Told) -> None:
    call, fifo = told.call, {"FifoQueue": "true"}
    url = call("fifo, create", "create_queue", QueueName="a.fifo", Attributes=fifo)["QueueUrl"]
    call("fifo, create again", "create_queue", QueueName="a.fifo", Attributes=fifo)
    call("fifo, no suffix", "create_queue", QueueName="nofifo", Attributes=fifo)
    call("fifo, suffix only", "create_queue", QueueName="b.fifo")
    call("fifo, attributes", "get_queue_attributes", QueueUrl=url, AttributeNames=["All"])

    def send(name: str, **more: Any) -> dict[str, Any]:
        given = {"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g"} | more
        return call(name, "send_message", **{each: value for each, value in given.items() if value})

    first = send("fifo, send", MessageDeduplicationId="1")
    again = send("fifo, send again", MessageDeduplicationId="1", MessageBody="y")
    told.keep("fifo, one message", lambda: {"is": first["MessageId"] == again.get("MessageId")})
    send("fifo, no group", MessageDeduplicationId="2", MessageGroupId=None)
    send("fifo, no id")
    send("fifo, a delay", MessageDeduplicationId="3", DelaySeconds=5)
    send("fifo, second", MessageDeduplicationId="4", MessageBody="z")
    asked: dict[str, Any] = {
        "AttributeNames": ["MessageGroupId", "MessageDeduplicationId", "SequenceNumber"]
    }
    (one,) = told.take("fifo, receive", url, **asked)
    call("fifo, the group waits", "receive_message", QueueUrl=url)
    handle = {"QueueUrl": url, "ReceiptHandle": one["ReceiptHandle"]}
    call("fifo, delete", "delete_message", **handle)
    told.take("fifo, receive the second", url)
    call("fifo, delete again", "delete_message", **handle)


def _ended(told: Told, url: str) -> None:
    call, sqs = told.call, told.sqs
    sqs.send_message(QueueUrl=url, MessageBody="x")
    told.take("receive before the purge", url, VisibilityTimeout=0)
    call("purge", "purge_queue", QueueUrl=url)
    call("receive after the purge", "receive_message", QueueUrl=url)
    call("purge again", "purge_queue", QueueUrl=url)
    permission = {"Label": "x", "AWSAccountIds": ["1" * 12], "Actions": ["SendMessage"]}
    call("permission", "add_permission", QueueUrl=url, **permission)
    call("no permission", "remove_permission", QueueUrl=url, Label="x")
    call("delete queue", "delete_queue", QueueUrl=url)
    call("deleted, send", "send_message", QueueUrl=url, MessageBody="x")
    call("deleted, url", "get_queue_url", QueueName="mails")
