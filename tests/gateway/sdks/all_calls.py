"""Every operation of SQS, by whoever makes calls of a name and parameters."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

#: Makes a call; an error is raised as :class:`CallFailed`.
Caller = Callable[[str, dict[str, Any]], dict[str, Any]]


class CallFailed(Exception):
    """The name of an error, as the SDK has it."""


def all_calls(caller: Caller, binary: Callable[[bytes], Any]) -> dict[str, Any]:
    """What each was answered, and what was seen."""
    outcomes: dict[str, str] = {}
    seen: dict[str, Any] = {}

    def call(name: str, **given: Any) -> dict[str, Any]:
        try:
            answer = caller(name, given)
        except CallFailed as error:
            outcomes[name] = str(error).rpartition(".")[2]
            return {}
        outcomes.setdefault(name, "ok")
        return answer

    url = call("CreateQueue", QueueName="mails")["QueueUrl"]
    dead = call("CreateQueue", QueueName="dead")["QueueUrl"]
    seen["url"] = call("GetQueueUrl", QueueName="mails")["QueueUrl"] == url
    seen["listed"] = len(call("ListQueues")["QueueUrls"])
    told = call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["All"])
    arn = told["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 5})
    call("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": policy})
    seen["sources"] = len(call("ListDeadLetterSourceQueues", QueueUrl=dead)["queueUrls"])
    call("TagQueue", QueueUrl=url, Tags={"a": "1", "b": "2"})
    call("UntagQueue", QueueUrl=url, TagKeys=["a"])
    seen["tags"] = call("ListQueueTags", QueueUrl=url)["Tags"]
    _messages(call, url, seen, binary)
    permission = {"Label": "x", "AWSAccountIds": ["1" * 12], "Actions": ["SendMessage"]}
    call("AddPermission", QueueUrl=url, **permission)
    call("RemovePermission", QueueUrl=url, Label="x")
    call("StartMessageMoveTask", SourceArn=arn)
    call("ListMessageMoveTasks", SourceArn=arn)
    call("CancelMessageMoveTask", TaskHandle="x")
    call("PurgeQueue", QueueUrl=url)
    call("DeleteQueue", QueueUrl=url)
    try:
        caller("GetQueueUrl", {"QueueName": "mails"})
    except CallFailed as error:
        seen["missing"] = str(error).endswith(("NonExistentQueue", "QueueDoesNotExist"))
    return {"outcomes": outcomes, "seen": seen}


def _messages(
    call: Callable[..., dict[str, Any]],
    url: str,
    seen: dict[str, Any],
    binary: Callable[[bytes], Any],
) -> None:
    attributes = {
        "text": {"DataType": "String", "StringValue": "blue"},
        "bytes": {"DataType": "Binary", "BinaryValue": binary(b"\x00\xff")},
    }
    call("SendMessage", QueueUrl=url, MessageBody="one ä", MessageAttributes=attributes)
    entries = [{"Id": "0", "MessageBody": "two"}, {"Id": "1", "MessageBody": "three"}]
    call("SendMessageBatch", QueueUrl=url, Entries=entries)
    found: list[Any] = []
    wanted = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
    while len(found) < 3:
        given = {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20, **wanted}
        found += call("ReceiveMessage", **given).get("Messages", [])
    found.sort(key=lambda each: str(each["Body"]))
    seen["bodies"] = [each["Body"] for each in found]
    seen["text"] = found[0]["MessageAttributes"]["text"]["StringValue"]
    there = found[0]["MessageAttributes"]["bytes"]["BinaryValue"]
    seen["bytes"] = (there if isinstance(there, bytes) else base64.b64decode(there)).hex()
    handles = [
        {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
        for number, each in enumerate(found)
    ]
    first = {"QueueUrl": url, "ReceiptHandle": handles[0]["ReceiptHandle"]}
    longer = [each | {"VisibilityTimeout": 60} for each in handles[1:]]
    call("ChangeMessageVisibility", **first, VisibilityTimeout=60)
    call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=longer)
    call("DeleteMessage", **first)
    gone = call("DeleteMessageBatch", QueueUrl=url, Entries=handles[1:])
    seen["deleted"] = len(gone["Successful"])
