"""Operations on messages: send, receive, delete, and change how long they are hidden."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from consumers.gateway.sqs.calls import QueueFacts, SqsCall, as_sqs_error
from consumers.gateway.sqs.contents import (
    GROUP,
    MOST_BYTES,
    TRACE,
    Attributes,
    Contents,
    attributes_md5,
    attributes_of,
    contents,
    md5,
)
from consumers.gateway.sqs.errors import SqsError, missing
from consumers.gateway.sqs.handles import handle, receipt_of
from penstock.errors import StaleReceipt
from penstock.records import Message
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Delivery, Receipt

_MOST_ENTRIES = 10
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_LONGEST_DELAY, _LONGEST_CLAIM, _LONGEST_WAIT = 900, 43_200, 20
#: While the database cannot hand anything out, a poll is held for so long at least.
_HELD_SECONDS = 1.0
#: What a poll answers with nothing instead of an error: clients of Celery die of errors.
_HELD = frozenset({"RequestThrottled", "ServiceUnavailable"})
_TEXT = "text/plain; charset=utf-8"

Entry = Mapping[str, Any]
Work = Callable[[SqsCall, Entry], Awaitable[dict[str, Any]]]


async def send(call: SqsCall) -> dict[str, Any]:
    """Send one message."""
    facts = await call.facts()
    return await _sent(call, facts, _contents(call, call.given, facts), call.given)


async def send_batch(call: SqsCall) -> dict[str, Any]:
    """Send up to ten messages, each for itself."""
    facts = await call.facts()
    entries = _entries(call)
    ready: dict[str, Contents] = {}

    async def checked(_: SqsCall, entry: Entry) -> dict[str, Any]:
        ready[entry["Id"]] = _contents(call, entry, facts)
        return {}

    async def work(_: SqsCall, entry: Entry) -> dict[str, Any]:
        return await _sent(call, facts, ready[entry["Id"]], entry)

    refused = (await _each(call, checked, entries)).get("Failed", [])
    if sum(each.size for each in ready.values()) > MOST_BYTES:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MOST_BYTES} bytes.",
        )
    made = await _each(call, work, [each for each in entries if each["Id"] in ready])
    failed = refused + made.pop("Failed", [])
    return made | ({"Failed": failed} if failed else {})


async def receive(call: SqsCall) -> dict[str, Any]:
    """Receive up to ten messages, or wait for the first one.

    Once the caller is known and the parameters are good, it answers no error: no room, or no
    database, is a poll that finds nothing.
    """
    address, loop = call.address(), asyncio.get_running_loop()
    most = call.number("MaxNumberOfMessages", 1, 1, 10)
    given = call.given
    seconds = (
        call.number("VisibilityTimeout", 0, 0, _LONGEST_CLAIM)
        if given.get("VisibilityTimeout") is not None
        else None
    )
    call.number("WaitTimeSeconds", 0, 0, _LONGEST_WAIT)
    until = loop.time() + _HELD_SECONDS
    try:
        wait = given.get("WaitTimeSeconds")
        if wait is None:
            wait = (await call.facts()).number("ReceiveMessageWaitTimeSeconds")
        until = loop.time() + max(wait, _HELD_SECONDS)
        found = await _polled(call, address, most, seconds, wait)
    except Exception as error:
        problem = as_sqs_error(error)
        if problem is None or problem.kind not in _HELD:
            raise
        await call.http.unless_gone(asyncio.sleep(max(0.0, until - loop.time())))
        return {}
    wanted = _Wanted(call)
    return {"Messages": [_message(address, each, wanted) for each in found]} if found else {}


async def _polled(
    call: SqsCall, address: str, most: int, seconds: int | None, wait: int
) -> list[Delivery]:
    async def look() -> list[Delivery]:
        return await call.run(
            lambda connection: queue.hand_out(connection, address, most, visibility_seconds=seconds)
        )

    async def give_back(found: list[Delivery]) -> None:
        receipts = [each.receipt for each in found]
        await call.run(lambda connection: queue.release(connection, address, receipts, partly=True))

    polls = call.http.services.polls
    return await call.http.unless_gone(polls.wait(address, wait, look, give_back))


async def delete(call: SqsCall) -> dict[str, Any]:
    """Finish a message; one that is finished already, or somebody else's now, is no error."""
    return await _deleted(call, call.given)


async def delete_batch(call: SqsCall) -> dict[str, Any]:
    """The same for up to ten."""
    return await _each(call, _deleted, _entries(call))


async def change(call: SqsCall) -> dict[str, Any]:
    """Hide a message for so long from now on.  Its handle stays good; 0 puts it back."""
    return await _changed(call, call.given)


async def change_batch(call: SqsCall) -> dict[str, Any]:
    """The same for up to ten."""
    return await _each(call, _changed, _entries(call))


async def _sent(call: SqsCall, facts: QueueFacts, made: Contents, given: Entry) -> dict[str, Any]:
    delay = given.get("DelaySeconds")
    if delay is None:
        delay = facts.number("DelaySeconds")
    if not isinstance(delay, int) or not 0 <= delay <= _LONGEST_DELAY:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {str(delay)[:40]} for parameter DelaySeconds is invalid. Reason: DelaySeconds"
            " must be >= 0 and <= 900.",
        )
    message = Message(
        call.address(),
        made.body.encode(),
        content_type=_TEXT,
        headers=made.headers(),
        not_before=datetime.now(UTC) + timedelta(seconds=delay) if delay else None,
    )
    publishes = call.http.services.publishes
    event_id = await publishes.publish(call.http.caller.principal, message)
    return {"MessageId": str(event_id)} | made.digests()


def _contents(call: SqsCall, given: Entry, facts: QueueFacts) -> Contents:
    trace = call.http.shown.header("x-amzn-trace-id")
    return contents(given, trace, facts.number("MaximumMessageSize"))


async def _deleted(call: SqsCall, given: Entry) -> dict[str, Any]:
    address, receipt = call.address(), _receipt(call, given)
    await call.run(
        lambda connection: queue.acknowledge(connection, address, [receipt], partly=True)
    )
    return {}


async def _changed(call: SqsCall, given: Entry) -> dict[str, Any]:
    address, receipt = call.address(), _receipt(call, given)
    seconds = given.get("VisibilityTimeout")
    if seconds is None:
        raise missing("VisibilityTimeout")
    if not isinstance(seconds, int) or not 0 <= seconds <= _LONGEST_CLAIM:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {str(seconds)[:40]} for parameter VisibilityTimeout is invalid. Reason: Must be"
            " between 0 and 43200.",
        )
    try:
        await call.run(
            lambda connection: queue.extend(
                connection, address, [receipt], seconds, keeps_receipts=True
            )
        )
    except StaleReceipt:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {str(given['ReceiptHandle'])[:100]} for parameter ReceiptHandle is invalid."
            " Reason: Message does not exist or is not available for visibility timeout change.",
        ) from None
    return {}


def _receipt(call: SqsCall, given: Entry) -> Receipt:
    if not given.get("ReceiptHandle"):
        raise missing("ReceiptHandle")
    return receipt_of(call.address(), given["ReceiptHandle"])


def _entries(call: SqsCall) -> list[dict[str, Any]]:
    entries = call.given.get("Entries")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise missing("Entries")
    if not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > _MOST_ENTRIES:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are 10. You have sent {len(entries)}.",
        )
    ids = [str(each.get("Id", "")) for each in entries]
    if not all(_ID.fullmatch(each) for each in ids):
        raise SqsError(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores."
            " It can be at most 80 letters long.",
        )
    for place, each in enumerate(ids):
        if each in ids[:place]:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {each} repeated.")
    return entries


async def _each(call: SqsCall, work: Work, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Do each entry for itself, and tell of each how it went."""
    results = await asyncio.gather(*(work(call, each) for each in entries), return_exceptions=True)
    done: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for entry, result in zip(entries, results, strict=True):
        if isinstance(result, dict):
            done.append({"Id": entry["Id"]} | result)
            continue
        problem = as_sqs_error(result) if isinstance(result, Exception) else None
        if problem is None:
            raise result
        if problem.kind == "QueueDoesNotExist":
            raise problem  # of the whole batch
        failed.append(
            {
                "Id": entry["Id"],
                "SenderFault": problem.is_senders,
                "Code": problem.code,
                "Message": problem.message,
            }
        )
    return {"Successful": done} | ({"Failed": failed} if failed else {})


class _Wanted:
    """What a receive asks for beside the body: nothing by itself."""

    def __init__(self, call: SqsCall) -> None:
        self.system = set(call.texts("AttributeNames", "MessageSystemAttributeNames"))
        self.named = call.texts("MessageAttributeNames")
        self.account = call.account

    def of(self, delivery: Delivery) -> dict[str, str]:
        """The system's attributes of a message."""
        event = delivery.event
        first = datetime.now(UTC) if delivery.deliveries == 1 else event.sequenced_at
        headers = event.headers or {}
        found = {
            "SenderId": self.account,
            "SentTimestamp": _milliseconds(event.created_at),
            "ApproximateReceiveCount": str(delivery.deliveries),
            "ApproximateFirstReceiveTimestamp": _milliseconds(first),
            "AWSTraceHeader": headers.get(TRACE),
            "MessageGroupId": headers.get(GROUP),
        }
        return {
            name: value
            for name, value in found.items()
            if value and ("All" in self.system or name in self.system)
        }


def _message(address: str, delivery: Delivery, wanted: _Wanted) -> dict[str, Any]:
    body = delivery.event.payload.decode("utf-8", "replace")
    made: dict[str, Any] = {
        "MessageId": str(delivery.event.event_id),
        "ReceiptHandle": handle(address, delivery.receipt),
        "MD5OfBody": md5(body.encode()),
        "Body": body,
    }
    system = wanted.of(delivery)
    if system:
        made["Attributes"] = system
    found: Attributes = attributes_of(delivery.event, wanted.named)
    if found:
        made["MessageAttributes"] = {name: each.as_json() for name, each in found.items()}
        made["MD5OfMessageAttributes"] = attributes_md5(found)
    return made


def _milliseconds(time: datetime) -> str:
    return str(int(time.timestamp() * 1000))
