"""Move tasks: the messages of a dead letter queue go back, or to another queue.

The daemon's sweep does them; this door only asks for them, tells of them and ends them.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from consumers.gateway.sqs.calls import SqsCall, no_such_queue
from consumers.gateway.sqs.errors import SqsError, invalid, missing
from consumers.gateway.sqs.queues import sources_of
from penstock.errors import AlreadyExists
from penstock.subscriptions import letter_moves, queue
from penstock.subscriptions.letter_moves import LetterMove

_STATES = {
    "running": "RUNNING",
    "done": "COMPLETED",
    "cancelled": "CANCELLED",
    "failed": "FAILED",
}
_MOST_PER_SECOND, _MOST_LISTED = 500, 10


async def start(call: SqsCall) -> dict[str, Any]:
    """Begin to move all messages of a dead letter queue."""
    source = _named(call, "SourceArn")
    target = _named(call, "DestinationArn") if call.given.get("DestinationArn") else None
    rate = None
    if call.given.get("MaxNumberOfMessagesPerSecond") is not None:
        rate = call.number("MaxNumberOfMessagesPerSecond", 0, 1, _MOST_PER_SECOND)
    if not await sources_of(call, source):
        raise invalid(
            call.given["SourceArn"],
            "SourceArn",
            "Source queue must be configured as a Dead Letter Queue.",
        )
    address = f"{call.account}/{source}"
    to = None if target is None else f"{call.account}/{target}"

    def work(connection: Any) -> int:
        if to is not None:
            queue.describe(connection, to)  # it has to be there
        return letter_moves.start(connection, address, to=to, most_per_second=rate)

    try:
        move_id = await call.run(work)
    except AlreadyExists:
        raise SqsError(
            "UnsupportedOperation",
            "There is already a task running. Only one active task is allowed for a source queue"
            " arn at a given time.",
        ) from None
    return {"TaskHandle": _handle(source, move_id)}


async def list_all(call: SqsCall) -> dict[str, Any]:
    """The newest tasks of a dead letter queue."""
    source = _named(call, "SourceArn")
    most = call.number("MaxResults", 1, 1, _MOST_LISTED)
    address = f"{call.account}/{source}"
    found = await call.run(lambda connection: letter_moves.moves(connection, address))
    return {"Results": [_told(call, source, each) for each in found[:most]]}


async def cancel(call: SqsCall) -> dict[str, Any]:
    """End a task that runs; what was moved stays moved."""
    source, move_id = _parsed(call)
    address = f"{call.account}/{source}"
    done = await call.run(lambda connection: letter_moves.cancel(connection, address, move_id))
    if done is None:
        raise SqsError("ResourceNotFound", "The task does not exist, or does not run.")
    return {"ApproximateNumberOfMessagesMoved": done}


def _named(call: SqsCall, parameter: str) -> str:
    """The queue of an ARN: one of this account."""
    given = call.given.get(parameter)
    if not isinstance(given, str) or not given:
        raise missing(parameter)
    parts = given.split(":")
    if parts[:3] != ["arn", "aws", "sqs"] or len(parts) != 6:  # noqa: PLR2004 - of an ARN
        raise invalid(given, parameter, "It is no ARN of a queue.")
    if parts[4] != call.account:
        raise SqsError("ResourceNotFound", "The resource that you specified does not exist.")
    return _allowed(call, parts[5])


def _allowed(call: SqsCall, name: str) -> str:
    if call.http.caller.queue not in {None, name}:
        raise no_such_queue()
    return name


def _told(call: SqsCall, source: str, move: LetterMove) -> dict[str, Any]:
    made: dict[str, Any] = {
        "Status": _STATES[move.state],
        "SourceArn": call.arn(source),
        "ApproximateNumberOfMessagesMoved": move.moved,
        "ApproximateNumberOfMessagesToMove": move.expected,
        "StartedTimestamp": int(move.started_at.timestamp() * 1000),
    }
    if move.state == "running":
        made["TaskHandle"] = _handle(source, move.id)
    if move.topic is not None:
        made["DestinationArn"] = call.arn(move.topic.removeprefix(f"{call.account}/"))
    if move.most_per_second is not None:
        made["MaxNumberOfMessagesPerSecond"] = move.most_per_second
    if move.problem:
        made["FailureReason"] = move.problem
    return made


def _handle(source: str, move_id: int) -> str:
    return urlsafe_b64encode(json.dumps([source, move_id]).encode()).decode()


def _parsed(call: SqsCall) -> tuple[str, int]:
    given = call.given.get("TaskHandle")
    if not isinstance(given, str) or not given:
        raise missing("TaskHandle")
    try:
        source, move_id = json.loads(urlsafe_b64decode(given.encode()))
        if isinstance(source, str) and isinstance(move_id, int) and 0 < move_id < 2**63:
            return _allowed(call, source), move_id
    except (ValueError, TypeError):
        pass
    raise invalid(given, "TaskHandle", "It is not the handle of a task.")
