"""Sending messages: one, or up to ten.

An SDK that gets no answer sends its call again, with the same invocation id.  So the id is a part
of the text that a call claims for five minutes: the second attempt finds the first one's events.
Another process may believe something else of the queue, so nothing believed is in that text.
A message of a FIFO queue claims its deduplication id instead.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from consumers.gateway.lanes import Outgoing
from consumers.gateway.sqs.calls import QueueFacts, SqsCall
from consumers.gateway.sqs.contents import MOST_BYTES, Contents, contents, too_long
from consumers.gateway.sqs.entries import Entry, entries_of, outcomes, told
from consumers.gateway.sqs.errors import SqsError, invalid, missing, of_fifo_only
from penstock.records import Message

_LONGEST_DELAY = 900
_TEXT = "text/plain; charset=utf-8"
_INVOCATION = "amz-sdk-invocation-id"


@dataclass(frozen=True, slots=True)
class _Ready:
    """A message that is checked."""

    contents: Contents
    delay: int
    #: Its deduplication id in a FIFO queue, with the scope.
    claim: str | None
    is_numbered: bool
    #: Its place among the entries of the call.
    place: int = 0
    #: Why it is not sent, by what is believed of the queue; an earlier attempt may have sent it.
    refused: SqsError | None = None


async def send(call: SqsCall) -> dict[str, Any]:
    """Send one message."""
    facts = await call.facts()
    ready = _ready(call, call.given, facts)
    (published,) = _enqueue(call, [ready])
    return await _answer(call, ready, published)


async def send_batch(call: SqsCall) -> dict[str, Any]:
    """Send up to ten messages, each for itself."""
    facts = await call.facts()
    entries = entries_of(call)
    given = [
        replace(each, place=place) if isinstance(each, _Ready) else each
        for place, each in enumerate(outcomes(lambda entry: _ready(call, entry, facts), entries))
    ]
    ready = [each for each in given if isinstance(each, _Ready)]
    if sum(each.contents.size for each in ready) > MOST_BYTES:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MOST_BYTES} bytes.",
        )
    answers = iter(await _answers(call, ready, _enqueue(call, ready)))
    return told(entries, [each if isinstance(each, Exception) else next(answers) for each in given])


async def _answers(
    call: SqsCall, ready: list[_Ready], published: list[asyncio.Future[UUID]]
) -> list[dict[str, Any] | BaseException]:
    if any(each.is_numbered for each in ready):  # each waits for its number, and all do at once
        numbered = (_answer(call, *each) for each in zip(ready, published, strict=True))
        return await asyncio.gather(*numbered, return_exceptions=True)
    found: list[dict[str, Any] | BaseException] = []
    for each, future in zip(ready, published, strict=True):  # they come together: no tasks for that
        try:
            found.append(await _answer(call, each, future))
        except Exception as error:
            found.append(error)
    return found


def _ready(call: SqsCall, given: Entry, facts: QueueFacts) -> _Ready:
    trace = call.http.shown.header("x-amzn-trace-id")
    made = contents(given, trace)
    delay = _delay(given, facts)
    claim: str | None
    if facts.is_fifo:
        made, claim = _of_fifo(made, facts)
    elif made.deduplication is not None:
        raise of_fifo_only(made.deduplication, "MessageDeduplicationId")
    else:
        claim = None
    refused = _too_long(made, facts)
    if refused is not None and (claim is not None or not call.http.shown.header(_INVOCATION)):
        raise refused
    return _Ready(made, delay, claim, is_numbered=facts.is_fifo and not delay, refused=refused)


def _too_long(made: Contents, facts: QueueFacts) -> SqsError | None:
    most = facts.number("MaximumMessageSize")
    if made.size > most:
        return too_long(most)
    if len(made.body.encode()) > facts.max_payload_bytes:
        return invalid(
            f"{len(made.body)} letters",
            "MessageBody",
            f"The topic of the queue takes {facts.max_payload_bytes} bytes.",
        )
    return None


def _delay(given: Entry, facts: QueueFacts) -> int:
    delay = given.get("DelaySeconds")
    if facts.is_fifo and delay:
        raise of_fifo_only(delay, "DelaySeconds")
    if delay is None or facts.is_fifo:
        delay = facts.number("DelaySeconds")
    if not isinstance(delay, int) or not 0 <= delay <= _LONGEST_DELAY:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {str(delay)[:40]} for parameter DelaySeconds is invalid. Reason: DelaySeconds"
            " must be >= 0 and <= 900.",
        )
    return delay


def _of_fifo(made: Contents, facts: QueueFacts) -> tuple[Contents, str]:
    """The message with its deduplication id, and what it claims: an attempt has the same one."""
    told = facts.effective()
    if made.group is None:
        raise missing("MessageGroupId")
    text = made.deduplication
    if text is None:
        if told["ContentBasedDeduplication"] != "true":
            raise SqsError(
                "InvalidParameterValue",
                "The queue should either have ContentBasedDeduplication enabled or"
                " MessageDeduplicationId provided explicitly",
            )
        text = hashlib.sha256(made.body.encode()).hexdigest()
    scope = made.group if told["DeduplicationScope"] == "messageGroup" else ""
    return replace(made, deduplication=text), claim_of("deduplication", scope, text)


def _attempt(call: SqsCall) -> str | None:
    """What an attempt has in common with the others of the same call, and with no other call."""
    invocation = call.http.shown.header(_INVOCATION)
    if not invocation:
        return None
    return claim_of("attempt", invocation, call.operation, call.digest)


def claim_of(*parts: str) -> str:
    """A text to claim: the same for the same parts only."""
    digest = hashlib.blake2b(digest_size=24)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _enqueue(call: SqsCall, ready: list[_Ready]) -> list[asyncio.Future[UUID]]:
    if not ready:
        return []
    wanted = _outgoing(call, ready, None if call.is_fifo else _attempt(call))
    return call.http.services.publishes.enqueue(call.http.caller.principal, wanted)


def _outgoing(call: SqsCall, ready: list[_Ready], shared: str | None) -> list[Outgoing]:
    """The events of a call: in a FIFO queue each with a claim of its own, else with one for all."""
    address, is_fifo = call.address(), call.is_fifo
    now = datetime.now(UTC)
    found: list[Outgoing] = []
    for each in ready:
        message = Message(
            address,
            each.contents.body.encode(),
            key=each.contents.group if is_fifo else None,
            content_type=_TEXT,
            headers=each.contents.headers(),
            not_before=now + timedelta(seconds=each.delay) if each.delay else None,
        )
        place = each.place if shared else 0
        found.append(Outgoing(message, each.claim or shared, place, each.refused))
    return found


async def _answer(call: SqsCall, ready: _Ready, published: asyncio.Future[UUID]) -> dict[str, Any]:
    event_id = await published
    made = {"MessageId": str(event_id)} | ready.contents.digests()
    if ready.is_numbered:
        place = (call.http.caller.principal.account_id, call.address())
        number = await call.numbers.of(call.run, place, event_id)
        made |= {"SequenceNumber": number} if number else {}
    return made
