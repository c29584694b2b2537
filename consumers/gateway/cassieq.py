"""CassieQ's API of queues: its paths, bodies and codes.

The queue `orders` of the account `shop` is the topic `shop/orders` and a subscription of that name
in queue mode.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import msgspec

from consumers.gateway.answers import GatewayAnswer, Refused, as_json
from consumers.gateway.calls import HttpCall, number
from consumers.gateway.operations import Operation, Parameter
from consumers.gateway.queues import handed_out
from consumers.gateway.topics import MOST_LISTED
from penstock.errors import MalformedReceipt, SubscriptionNotFound
from penstock.records import Message
from penstock.subscriptions import list_subscriptions, queue, stream
from penstock.subscriptions.queue import Delivery, QueueSettings, Receipt
from penstock.topics import names

_NAME = re.compile(r"[a-zA-Z_\-0-9.]{1,500}", re.ASCII)
_TAG = re.compile(r"[0-9a-f]{8}", re.ASCII)
_LONGEST_DELAY = 2_592_000
_LONGEST_CLAIM = 43_200


class QueueDefinition(msgspec.Struct):
    """The body of a creation.  Fields about CassieQ's own storage are taken and mean nothing."""

    queueName: str
    maxDeliveryCount: int | None = None
    strictFifo: bool = False
    dlqName: str | None = None


class MessageUpdate(msgspec.Struct):
    """The body of an update."""

    message: str | None = None
    newInvisibilitySeconds: float = 0


async def list_queues(call: HttpCall) -> GatewayAnswer:
    """The queues of the account, so many at a time; the header Link says where to go on."""
    given, account = call.queries(), call.caller.account
    most = number(given, "max_rows", MOST_LISTED, 1, MOST_LISTED)

    def work(connection: Any) -> tuple[list[dict[str, Any]], bool]:
        found = list_subscriptions(
            connection,
            account,
            mode="queue",
            after=f"{account}/{given.get('after', '')}",
            max_rows=most + 1,
        )
        rows = [
            _definition(account, each.name.removeprefix(f"{account}/"), settings)
            for each in found[:most]
            for settings in [queue.describe(connection, each.name)]
        ]
        return rows, len(found) > most

    rows, has_more = await call.run(work)
    more = {}
    if has_more:
        after = quote(rows[-1]["queueName"], safe="")
        address = f"{call.shown.path}?max_rows={most}&after={after}"
        more = {"Link": f'<{address}>; rel="next"'}
    return as_json(200, rows, more)


async def create_queue(call: HttpCall) -> GatewayAnswer:
    """Make a queue; one that is there already is left as it is."""
    wanted = call.body(QueueDefinition)
    if not _NAME.fullmatch(wanted.queueName):
        raise Refused(400, "a queue's name has letters, digits, . _ and - only")
    if wanted.strictFifo or wanted.dlqName:
        raise Refused(400, "strictFifo and dlqName are not there: leave them out")
    address = f"{call.caller.account}/{wanted.queueName}"
    fails = call.queries().get("errorIfExists", "false").lower() == "true"

    def work(connection: Any) -> None:
        names.create_topic(connection, address, if_not_exists=True)
        queue.subscribe(connection, address, [address])
        if wanted.maxDeliveryCount is not None:
            queue.configure(connection, address, max_deliveries=wanted.maxDeliveryCount)

    try:
        await call.run(lambda connection: queue.describe(connection, address))
    except SubscriptionNotFound:
        await call.run(work)
        return GatewayAnswer(201)
    if fails:
        raise Refused(409, "the queue exists")
    return GatewayAnswer(200)


async def describe_queue(call: HttpCall) -> GatewayAnswer:
    """The settings of a queue."""
    address = _address(call)
    settings = await call.run(lambda connection: queue.describe(connection, address))
    return as_json(200, _definition(call.caller.account, call.params["queue"], settings))


async def delete_queue(call: HttpCall) -> GatewayAnswer:
    """Delete a queue with its messages.  409 while another subscription reads its topic."""
    address = _address(call)

    def work(connection: Any) -> None:
        queue.describe(connection, address)  # refuses a stream
        stream.unsubscribe(connection, address)
        names.delete_topic(connection, address)

    await call.run(work)
    return GatewayAnswer(200)


async def statistics(call: HttpCall) -> GatewayAnswer:
    """How many messages are unfinished."""
    address = _address(call)
    found = await call.run(lambda connection: queue.statistics(connection, address))
    return as_json(200, {"size": found.size})


async def next_message(call: HttpCall) -> GatewayAnswer:
    """Receive one message, hidden from others for a while."""
    address = _address(call)
    seconds = number(call.queries(), "invisibilityTimeSeconds", 30, 0, _LONGEST_CLAIM)
    found = await handed_out(call, address, 1, seconds)
    if not found:
        return GatewayAnswer(204)
    return as_json(200, _message(found[0]))


async def put_message(call: HttpCall) -> GatewayAnswer:
    """Publish the body as it is."""
    given = call.queries()
    # Clients of CassieQ send it misspelled.
    misspelled = number(given, "initialInvisiblityTime", 0, 0, _LONGEST_DELAY)
    delay = number(given, "initialInvisibilitySeconds", misspelled, 0, _LONGEST_DELAY)
    message = Message(
        _address(call),
        call.shown.body,
        content_type=call.shown.header("content-type") or "application/octet-stream",
        not_before=datetime.now(UTC) + timedelta(seconds=delay) if delay else None,
    )
    await call.services.publishes.publish(call.caller.principal, message)
    return GatewayAnswer(201)


async def update_message(call: HttpCall) -> GatewayAnswer:
    """Hide a message for longer, or give it another text."""
    address, (receipt, tag) = _address(call), _receipt(call)
    wanted = call.body(MessageUpdate)
    body = None if wanted.message is None else wanted.message.encode()
    made = await call.run(
        lambda connection: queue.extend(
            connection, address, [receipt], wanted.newInvisibilitySeconds, body=body
        )
    )
    # At 0 seconds the message is put back, and there is no new receipt.
    kept = made[0] if made else receipt
    return as_json(200, {"popReceipt": f"{kept}.{tag}", "messageTag": tag})


async def finish_message(call: HttpCall) -> GatewayAnswer:
    """Finish a message."""
    address, (receipt, _) = _address(call), _receipt(call)
    await call.run(lambda connection: queue.acknowledge(connection, address, [receipt]))
    return GatewayAnswer(204)


def _address(call: HttpCall) -> str:
    if not _NAME.fullmatch(call.params["queue"]):
        raise Refused(400, "a queue's name has letters, digits, . _ and - only")
    return call.address("queue")


def _receipt(call: HttpCall) -> tuple[Receipt, str]:
    text, _, tag = call.queries().get("popReceipt", "").rpartition(".")
    if not _TAG.fullmatch(tag):
        raise MalformedReceipt("the pop receipt is malformed", hint="pass it as it was returned")
    return Receipt.parse(text), tag


def _message(delivery: Delivery) -> dict[str, Any]:
    try:
        text = delivery.event.payload.decode()
    except UnicodeDecodeError:
        # CassieQ knows texts only.
        text = delivery.event.payload.decode("latin-1")
    return {
        "popReceipt": f"{delivery.receipt}.{delivery.tag}",
        "message": text,
        "deliveryCount": delivery.deliveries,
        "messageTag": delivery.tag,
    }


def _definition(account: str, name: str, settings: QueueSettings) -> dict[str, Any]:
    """As CassieQ describes a queue; what is about its storage is 0 here."""
    return {
        "accountName": account,
        "queueName": name,
        "maxDeliveryCount": settings.max_deliveries,
        "status": "Active",
        "version": 0,
        "strictFifo": False,
        "dlqName": None,
        "bucketSize": 0,
        "repairWorkerPollFrequencySeconds": 0,
        "repairWorkerTombstonedBucketTimeoutSeconds": 0,
        "deleteBucketsAfterFinalization": True,
    }


_MISSING = {404: "there is no such queue"}
_STALE = _MISSING | {409: "the receipt is not good, or no longer"}
_DELAY = Parameter("initialInvisibilitySeconds", "integer", "hidden for so long at first; 0")

OPERATIONS = (
    Operation(
        "POST", "/queues/{queue}/messages", "p", "putMessage", "Publish a message",
        put_message, {201: "published", 413: "the message is too long"} | _MISSING,
        queries=(_DELAY,), takes=("*/*",),
    ),
    Operation(
        "GET", "/queues/{queue}/messages/next", "r", "getMessage", "Receive a message",
        next_message, {200: "a message", 204: "there is none now"} | _MISSING,
        queries=(Parameter("invisibilityTimeSeconds", "number", "hidden for so long; 30"),),
    ),
    Operation(
        "PUT", "/queues/{queue}/messages", "u", "updateMessage", "Extend or change a message",
        update_message, {200: "the new receipt"} | _STALE,
        queries=(Parameter("popReceipt", "string", "as it was returned"),),
        takes=("application/json",),
    ),
    Operation(
        "DELETE", "/queues/{queue}/messages", "a", "ackMessage", "Finish a message",
        finish_message, {204: "finished"} | _STALE,
        queries=(Parameter("popReceipt", "string", "as it was returned"),),
    ),
    Operation(
        "GET", "/queues", "g", "getQueues", "List the queues of the account",
        list_queues, {200: "the queues by name; the header Link says where there are more"},
        queries=(
            Parameter("max_rows", "integer", f"{MOST_LISTED:,}, which is the most"),
            Parameter("after", "string", "the next page: queues after this name"),
        ),
    ),
    Operation(
        "POST", "/queues", "c", "createQueue", "Create a queue",
        create_queue,
        {201: "created", 200: "it exists", 409: "it exists, and errorIfExists=true"},
        queries=(Parameter("errorIfExists", "boolean", "false"),), takes=("application/json",),
    ),
    Operation(
        "GET", "/queues/{queue}", "g", "getQueue", "Describe a queue",
        describe_queue, {200: "the queue"} | _MISSING,
    ),
    Operation(
        "GET", "/queues/{queue}/statistics", "g", "getQueueStatistics", "Count a queue's messages",
        statistics, {200: "how many are unfinished"} | _MISSING,
    ),
    Operation(
        "DELETE", "/queues/{queue}", "d", "deleteQueue", "Delete a queue",
        delete_queue, {200: "deleted", 409: "its topic has other readers"} | _MISSING,
    ),
)  # fmt: skip
