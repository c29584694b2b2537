"""Our own API of queues: many messages a call, long polls, dead letters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import msgspec

from consumers.gateway.answers import GatewayAnswer, as_json
from consumers.gateway.calls import HttpCall, number
from consumers.gateway.operations import Operation, Parameter
from consumers.gateway.polls import LONGEST_SECONDS
from consumers.gateway.room import most_events, size_of
from ops.sinks.cloudevents import to_json
from penstock.subscriptions import dead_letters, queue
from penstock.subscriptions.dead_letters import DeadLetter
from penstock.subscriptions.queue import Delivery, Receipt

MOST_RECEIVED = 100
MOST_SETTLED = 1_000


class Receiving(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a receive."""

    max_events: int = 1
    visibility_seconds: float | None = None
    wait_seconds: float = 0.0


class Receipts(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a call about messages in hand: one bad receipt refuses all, unless ``partly``."""

    receipts: Annotated[list[str], msgspec.Meta(max_length=MOST_SETTLED)]
    partly: bool = False
    visibility_seconds: float = 30.0
    reason: str = ""
    delay_seconds: float | None = None


class Redriving(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters are to be delivered again; None: all."""

    letters: list[int] | None = None


async def receive(call: HttpCall) -> GatewayAnswer:
    """Receive messages; with ``wait_seconds``, wait for the first one."""
    wanted, address = call.body(Receiving), call.address("queue")
    seconds = min(max(wanted.wait_seconds, 0.0), LONGEST_SECONDS)

    async def look() -> list[Delivery]:
        return await handed_out(call, address, wanted.max_events, wanted.visibility_seconds)

    async def give_back(found: list[Delivery]) -> None:
        receipts = [each.receipt for each in found]
        await call.run(lambda connection: queue.release(connection, address, receipts, partly=True))

    polled = call.services.polls.wait(address, seconds, look, give_back)
    found = await call.unless_gone(polled)
    return GatewayAnswer(200, b'{"messages":[' + b",".join(map(_delivery, found)) + b"]}")


async def handed_out(
    call: HttpCall, address: str, most: int, visibility_seconds: float | None
) -> list[Delivery]:
    """A look at a queue, with room for what it may find."""
    size = await call.share.take(size_of(min(max(1, most), MOST_RECEIVED)))
    fitting = min(most, most_events(size))
    found: list[Delivery] = []
    try:
        found = await call.alone(
            lambda connection, by: queue.hand_out(
                connection, address, fitting, visibility_seconds=visibility_seconds, by=by
            )
        )
    finally:
        call.share.keep(sum(len(each.event.payload) for each in found))
    return found


async def _hold(call: HttpCall) -> None:
    """Room for an answer about receipts, no longer than they: without it nothing is done."""
    await call.share.hold(len(call.shown.body))


async def _settle(
    settle: Callable[..., list[bool]], more: tuple[str, ...], call: HttpCall
) -> GatewayAnswer:
    wanted, address = call.body(Receipts), call.address("queue")
    receipts = [Receipt.parse(each) for each in wanted.receipts]
    told = {name: getattr(wanted, name) for name in more}
    await _hold(call)
    done = await call.run(
        lambda connection: settle(connection, address, receipts, partly=wanted.partly, **told)
    )
    return as_json(200, {"done": done})


async def extend(call: HttpCall) -> GatewayAnswer:
    """Hide messages for longer, from now on: all or none."""
    wanted, address = call.body(Receipts), call.address("queue")
    receipts = [Receipt.parse(each) for each in wanted.receipts]
    seconds = wanted.visibility_seconds
    await _hold(call)
    made = await call.run(lambda connection: queue.extend(connection, address, receipts, seconds))
    return as_json(200, {"receipts": [str(each) for each in made]})


async def describe(call: HttpCall) -> GatewayAnswer:
    """How many messages a queue has, by state."""
    address = call.address("queue")
    found = await call.run(lambda connection: queue.statistics(connection, address))
    return as_json(200, asdict(found))


async def purge(call: HttpCall) -> GatewayAnswer:
    """Throw away all that is not finished; dead letters stay."""
    address = call.address("queue")
    count = await call.run(lambda connection: queue.purge(connection, address))
    return as_json(200, {"purged": count})


async def letters(call: HttpCall) -> GatewayAnswer:
    """The dead letters of a queue, newest first."""
    given, address = call.queries(), call.address("queue")
    most = number(given, "max_rows", 100, 1, 1_000)
    before = number(given, "before_id", 0, 0, 2**63 - 1)

    def work(connection: Any) -> list[DeadLetter]:
        queue.describe(connection, address)  # refuses what is no queue
        return dead_letters.dead_letters(
            connection,
            address,
            most,
            key=given.get("key"),
            type=given.get("type"),
            state=given.get("state"),
            before_id=before or None,
        )

    found = await call.run(work)
    return as_json(200, {"letters": [asdict(each) for each in found]})


async def redrive(call: HttpCall) -> GatewayAnswer:
    """Make dead letters deliverable again."""
    wanted, address = call.body(Redriving), call.address("queue")
    count = await call.run(lambda connection: queue.redrive(connection, address, wanted.letters))
    return as_json(200, {"redriven": count})


def _delivery(delivery: Delivery) -> bytes:
    about = msgspec.json.encode(
        {
            "receipt": str(delivery.receipt),
            "deliveries": delivery.deliveries,
            "failures": delivery.failures,
            "deadline": delivery.deadline,
        }
    )
    return about[:-1] + b',"event":' + to_json(delivery.event) + b"}"


_MISSING = {404: "there is no such queue"}
_STALE = _MISSING | {409: "a receipt is not good, or no longer, and nothing was changed"}
_JSON = ("application/json",)
_LETTERS = (
    Parameter("max_rows", "integer", "100"),
    Parameter("before_id", "integer", "the next page: letters before this one"),
    Parameter("key", "string", "of this key only"),
    Parameter("type", "string", "of this type only"),
    Parameter("state", "string", "dead, parked or redriven"),
)

OPERATIONS = (
    Operation(
        "POST", "/queues/{queue}/receive", "r", "receive", "Receive messages, or wait for one",
        receive, {200: "messages, or none"} | _MISSING, takes=_JSON,
    ),
    Operation(
        "POST", "/queues/{queue}/acknowledge", "a", "acknowledge", "Finish messages",
        functools.partial(_settle, queue.acknowledge, ()),
        {200: "for each receipt whether it was good"} | _STALE, takes=_JSON,
    ),
    Operation(
        "POST", "/queues/{queue}/release", "r", "release", "Put messages back that nobody began",
        functools.partial(_settle, queue.release, ()),
        {200: "for each receipt whether it was good"} | _STALE, takes=_JSON,
    ),
    Operation(
        "POST", "/queues/{queue}/reject", "a", "reject", "Record that messages have failed",
        functools.partial(_settle, queue.reject, ("reason", "delay_seconds")),
        {200: "for each receipt whether it was good"} | _STALE, takes=_JSON,
    ),
    Operation(
        "POST", "/queues/{queue}/extend", "u", "extend", "Hide messages for longer",
        extend, {200: "the new receipts"} | _STALE, takes=_JSON,
    ),
    Operation(
        "GET", "/queues/{queue}/counts", "g", "countMessages", "Count messages by state",
        describe, {200: "the counts"} | _MISSING,
    ),
    Operation(
        "POST", "/queues/{queue}/purge", "d", "purge", "Throw away all that is not finished",
        purge, {200: "how many"} | _MISSING,
    ),
    Operation(
        "GET", "/queues/{queue}/dead-letters", "g", "deadLetters", "List dead letters",
        letters, {200: "the letters"} | _MISSING, queries=_LETTERS,
    ),
    Operation(
        "POST", "/queues/{queue}/redrive", "ra", "redrive", "Deliver dead letters again",
        redrive, {200: "how many"} | _MISSING, takes=_JSON,
    ),
)  # fmt: skip
