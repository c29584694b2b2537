"""Operations on messages that were sent: receive, delete, and change how long they are hidden."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, NamedTuple

from consumers.gateway.queues import handed_out
from consumers.gateway.sqs.calls import SqsCall, as_sqs_error
from consumers.gateway.sqs.contents import (
    DEDUPLICATION,
    GROUP,
    TRACE,
    Attributes,
    attributes_md5,
    attributes_of,
    md5,
)
from consumers.gateway.sqs.entries import Entry, entries_of, outcomes, told
from consumers.gateway.sqs.errors import SqsError, invalid, missing, of_fifo_only
from consumers.gateway.sqs.handles import handle, receipt_of
from consumers.gateway.sqs.sequences import number
from penstock import database
from penstock.errors import StaleReceipt
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Delivery, Receipt

_LONGEST_CLAIM, _LONGEST_WAIT = 43_200, 20
#: While the database cannot hand anything out, a poll is held for so long at least.
_HELD_SECONDS = 1.0
#: What a poll answers with nothing instead of an error: clients of Celery die of errors.
_HELD = frozenset({"RequestThrottled", "ServiceUnavailable"})
#: The header of a letter that names the queue in which its message died.
_LETTER_OF = "penstock-letter-subscription"


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
    if not call.is_fifo and given.get("ReceiveRequestAttemptId") is not None:
        raise of_fifo_only(given["ReceiveRequestAttemptId"], "ReceiveRequestAttemptId")
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
        return await handed_out(call.http, address, most, seconds)

    async def give_back(found: list[Delivery]) -> None:
        receipts = [each.receipt for each in found]
        await call.run(lambda connection: queue.release(connection, address, receipts, partly=True))

    polls = call.http.services.polls
    return await call.http.unless_gone(polls.wait(address, wait, look, give_back))


async def delete(call: SqsCall) -> dict[str, Any]:
    """Finish a message; one that is finished already, or somebody else's now, is no error."""
    return await _deleted(call, call.given)


async def delete_batch(call: SqsCall) -> dict[str, Any]:
    """The same for up to ten, in one transaction."""
    address, entries = call.address(), entries_of(call)
    given = outcomes(lambda entry: _receipt(call, entry), entries)
    receipts = list(dict.fromkeys(each for each in given if isinstance(each, Receipt)))
    done: dict[Receipt, bool] = {}
    if receipts:
        found = await call.http.alone(
            lambda connection, by: queue.acknowledge(
                connection, address, receipts, partly=True, by=by
            )
        )
        done = dict(zip(receipts, found, strict=True))
    else:
        await call.facts()  # without a queue the whole call is refused

    def result(entry: Entry, receipt: Receipt | Exception) -> dict[str, Any] | Exception:
        if isinstance(receipt, Exception):
            return receipt
        return _expired(entry) if call.is_fifo and not done[receipt] else {}

    return told(entries, map(result, entries, given))


async def change(call: SqsCall) -> dict[str, Any]:
    """Hide a message for so long from now on.  Its handle stays good; 0 puts it back."""
    return await _changed(call, call.given)


async def change_batch(call: SqsCall) -> dict[str, Any]:
    """The same for up to ten: in one transaction if all can be done, else each for itself."""
    address, entries = call.address(), entries_of(call)
    given = outcomes(lambda entry: _change(call, entry), entries)
    wanted = [each for each in given if isinstance(each, _Change)]
    times: dict[int, list[Receipt]] = {}
    for each in wanted:
        times.setdefault(each.seconds, []).append(each.receipt)

    def work(connection: Any) -> None:
        for seconds, receipts in times.items():
            queue.extend(connection, address, receipts, seconds, keeps_receipts=True)

    together = len(wanted) == len(entries) == len({each.receipt for each in wanted})
    if together:
        try:
            await call.run(work)
        except Exception as error:
            # Also when others lock some of them: each timeout locks its messages by itself, so two
            # batches can wait for each other.
            if not isinstance(error, StaleReceipt) and not database.is_contention(error):
                raise
            together = False
    if together:
        return told(entries, [{}] * len(entries))
    each_alone = (_changed(call, each) for each in entries)
    return told(entries, await asyncio.gather(*each_alone, return_exceptions=True))


async def _deleted(call: SqsCall, given: Entry) -> dict[str, Any]:
    address, receipt = call.address(), _receipt(call, given)
    (is_good,) = await call.http.alone(
        lambda connection, by: queue.acknowledge(connection, address, [receipt], partly=True, by=by)
    )
    if call.is_fifo and not is_good:
        raise _expired(given)
    return {}


def _expired(given: Entry) -> SqsError:
    return invalid(given["ReceiptHandle"], "ReceiptHandle", "The receipt handle has expired.")


class _Change(NamedTuple):
    """How long a message is to be hidden from now on."""

    receipt: Receipt
    seconds: int


def _change(call: SqsCall, given: Entry) -> _Change:
    receipt, seconds = _receipt(call, given), given.get("VisibilityTimeout")
    if seconds is None:
        raise missing("VisibilityTimeout")
    if not isinstance(seconds, int) or not 0 <= seconds <= _LONGEST_CLAIM:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {str(seconds)[:40]} for parameter VisibilityTimeout is invalid. Reason: Must be"
            " between 0 and 43200.",
        )
    return _Change(receipt, seconds)


async def _changed(call: SqsCall, given: Entry) -> dict[str, Any]:
    address, (receipt, seconds) = call.address(), _change(call, given)
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


class _Wanted:
    """What a receive asks for beside the body: nothing by itself."""

    def __init__(self, call: SqsCall) -> None:
        self.system = set(call.texts("AttributeNames", "MessageSystemAttributeNames"))
        self.named = call.texts("MessageAttributeNames")
        self.account = call.account
        self.arn = call.arn
        self.is_fifo = call.is_fifo

    def of(self, delivery: Delivery) -> dict[str, str]:
        """The system's attributes of a message."""
        event = delivery.event
        first = datetime.now(UTC) if delivery.deliveries == 1 else event.sequenced_at
        headers = event.headers or {}
        _, _, source = str(headers.get(_LETTER_OF, "")).partition("/")
        found = {
            "SenderId": self.account,
            "SentTimestamp": _milliseconds(event.created_at),
            "ApproximateReceiveCount": str(delivery.deliveries),
            "ApproximateFirstReceiveTimestamp": _milliseconds(first),
            "AWSTraceHeader": headers.get(TRACE),
            "MessageGroupId": headers.get(GROUP),
            "DeadLetterQueueSourceArn": self.arn(source) if source else None,
        }
        if self.is_fifo:
            found["SequenceNumber"] = number(event.sequence)
            found["MessageDeduplicationId"] = headers.get(DEDUPLICATION)
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
