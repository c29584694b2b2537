"""Operations on queues: create, find, describe, change, empty and delete them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from consumers.gateway.sqs.attributes import (
    FIFO_SUFFIX,
    MOST_DELIVERIES,
    USUAL_RETENTION,
    checked,
    no_target,
    policy,
    require_fitting,
    wanted,
)
from consumers.gateway.sqs.calls import (
    QueueFacts,
    SqsCall,
    facts_of,
    locked_facts_of,
    no_such_queue,
)
from consumers.gateway.sqs.errors import SqsError, missing
from penstock.errors import SubscriptionNotFound
from penstock.subscriptions import forwarding, labels, list_subscriptions, queue, stream
from penstock.subscriptions.queue import QueueStatistics
from penstock.subscriptions.scheduled import scheduled
from penstock.topics import names

_NAME = re.compile(r"(?=.{1,80}\Z)[A-Za-z0-9_-]+(\.fifo)?", re.ASCII)
_MOST_LISTED = 1_000
_MOST_TAGS = 50
_TAG = re.compile(r".{1,128}", re.DOTALL)
_LONGEST_VALUE = 256
_PURGE_SECONDS = 60


async def create(call: SqsCall) -> dict[str, Any]:
    """Make a queue; the same one again is no error, another one of its name is."""
    name = call.given.get("QueueName")
    if not name:
        raise missing("QueueName")
    attributes = call.given.get("Attributes")
    is_fifo = _is_fifo(name, attributes)
    if call.http.caller.queue not in {None, name}:
        raise SqsError("AccessDenied", "The key is for another queue.")
    given = checked(attributes, call.account, is_fifo=is_fifo)
    if is_fifo:
        require_fitting(given)
    tags = _tags(call.given.get("tags"))
    address = f"{call.account}/{name}"

    def work(connection: Any) -> None:
        names.create_topic(connection, address, if_not_exists=True)
        queue.subscribe(connection, address, [address])
        order = {"order": "key"} if is_fifo else {}
        usual = {"max_deliveries": MOST_DELIVERIES, "retention_seconds": USUAL_RETENTION}
        queue.configure(connection, address, **usual, **order)
        _keep(connection, call, address, QueueFacts(given, tags, 0, 0), given)

    try:
        there = await call.run(lambda connection: facts_of(connection, address))
    except SubscriptionNotFound:
        # In a transaction of its own: the refusal has ended that of the look.
        await call.run(work)
        return {"QueueUrl": call.url(name)}
    present = there.effective()
    if any(present.get(each, "") != value for each, value in given.items()):
        raise SqsError(
            "QueueNameExists",
            "A queue already exists with the same name and a different value for an attribute.",
        )
    return {"QueueUrl": call.url(name)}


async def delete(call: SqsCall) -> dict[str, Any]:
    """Delete a queue with its messages."""
    address = call.address()

    def work(connection: Any) -> None:
        queue.describe(connection, address)
        stream.unsubscribe(connection, address)
        names.delete_topic(connection, address)

    await call.run(work)
    call.forget()
    return {}


async def url(call: SqsCall) -> dict[str, Any]:
    """The address of a queue by its name."""
    name = call.given.get("QueueName")
    if not isinstance(name, str) or not name:
        raise missing("QueueName")
    if call.given.get("QueueOwnerAWSAccountId") not in {None, call.account}:
        raise no_such_queue()
    found = replace(call, given={"QueueUrl": call.url(name)})
    await found.facts()
    return {"QueueUrl": call.url(name)}


async def list_all(call: SqsCall) -> dict[str, Any]:
    """The queues of the account, page by page."""
    prefix = call.given.get("QueueNamePrefix") or ""
    if not isinstance(prefix, str):
        raise SqsError("MalformedInput", "QueueNamePrefix is a text.")
    found = [each for each, _ in await _queues(call) if each.startswith(prefix)]
    return _page(call, found, "QueueUrls")


async def sources(call: SqsCall) -> dict[str, Any]:
    """The queues whose dead letters go to this one."""
    await call.facts()
    found = await sources_of(call, call.name())
    return {"queueUrls": []} | _page(call, found, "queueUrls")


async def sources_of(call: SqsCall, name: str) -> list[str]:
    """The queues of the account whose dead letters go to the one of this name."""
    address = f"{call.account}/{name}"
    return [each for each, target in await _queues(call) if target == address]


async def attributes(call: SqsCall) -> dict[str, Any]:
    """The attributes that were asked for."""
    names_ = wanted(call.texts("AttributeNames"))
    address = call.address()

    def work(connection: Any) -> tuple[QueueFacts, QueueStatistics, int]:
        facts, counts = facts_of(connection, address), queue.statistics(connection, address)
        asked = "ApproximateNumberOfMessagesDelayed" in names_
        return facts, counts, scheduled(connection, address) if asked else 0

    facts, counts, later = await call.run(work)
    told = facts.effective() | {
        "ApproximateNumberOfMessages": str(counts.ready),
        "ApproximateNumberOfMessagesDelayed": str(counts.delayed + later),
        "ApproximateNumberOfMessagesNotVisible": str(counts.in_flight),
        "CreatedTimestamp": str(facts.created_at),
        "LastModifiedTimestamp": str(facts.changed_at),
        "QueueArn": call.arn(call.name()),
    }
    found = {name: value for name, value in told.items() if name in names_}
    return {"Attributes": found} if found else {}


async def set_attributes(call: SqsCall) -> dict[str, Any]:
    """Change attributes; the others stay."""
    if not call.given.get("Attributes"):
        raise missing("Attributes")
    given = checked(call.given["Attributes"], call.account, is_fifo=call.is_fifo)
    address = call.address()

    def work(connection: Any) -> None:
        there = locked_facts_of(connection, address)
        made = replace(there, attributes={**there.attributes, **given})
        if made.is_fifo:
            require_fitting(made.attributes)
        _keep(connection, call, address, made, given)

    await call.run(work)
    call.forget()
    return {}


async def purge(call: SqsCall) -> dict[str, Any]:
    """Throw away all messages, once a minute at most."""
    address, now = call.address(), time.time()

    def work(connection: Any) -> None:
        there = locked_facts_of(connection, address)
        if 0 <= now - there.purged_at < _PURGE_SECONDS:
            raise SqsError(
                "PurgeQueueInProgress",
                "Only one PurgeQueue operation on a queue is allowed every 60 seconds.",
            )
        queue.purge(connection, address)
        labels.label(connection, address, replace(there, purged_at=now).labels())

    await call.run(work)
    return {}


async def tags(call: SqsCall) -> dict[str, Any]:
    """The tags of a queue."""
    address = call.address()
    facts = await call.run(lambda connection: facts_of(connection, address))
    return {"Tags": facts.tags} if facts.tags else {}


async def tag(call: SqsCall) -> dict[str, Any]:
    """Add tags, or give them other values."""
    more = _tags(call.given.get("Tags"))
    if not more:
        raise missing("Tags")
    return await _retagged(call, more, ())


async def untag(call: SqsCall) -> dict[str, Any]:
    """Take tags away."""
    gone = call.texts("TagKeys")
    if not gone:
        raise missing("TagKeys")
    return await _retagged(call, {}, gone)


def _is_fifo(name: object, attributes: object) -> bool:
    """Whether a queue of this name is to be a FIFO queue: name and attribute both say so."""
    told = attributes.get("FifoQueue", "false") if isinstance(attributes, dict) else "false"
    is_fifo = str(told).lower() == "true"
    if (
        not isinstance(name, str)
        or not _NAME.fullmatch(name)
        or name.endswith(FIFO_SUFFIX) is not is_fifo
    ):
        end = "must end with .fifo suffix and be " if is_fifo else ""
        raise SqsError(
            "InvalidParameterValue",
            "Can only include alphanumeric characters, hyphens, or underscores,"
            f" {end}1 to 80 in length.",
        )
    return is_fifo


async def _retagged(
    call: SqsCall, more: Mapping[str, str], gone: list[str] | tuple[()]
) -> dict[str, Any]:
    address = call.address()

    def work(connection: Any) -> None:
        there = locked_facts_of(connection, address)
        kept = {name: value for name, value in there.tags.items() if name not in gone}
        made = replace(there, tags=_tags(kept | dict(more)))
        labels.label(connection, address, made.labels())

    await call.run(work)
    return {}


def _keep(
    connection: Any, call: SqsCall, address: str, facts: QueueFacts, given: Mapping[str, str]
) -> None:
    """Keep the attributes of a queue, and tell the queue those that it knows itself."""
    if "VisibilityTimeout" in given:
        queue.configure(connection, address, visibility_seconds=int(given["VisibilityTimeout"]))
    if "MessageRetentionPeriod" in given:
        seconds = int(given["MessageRetentionPeriod"])
        queue.configure(connection, address, retention_seconds=seconds)
    if "RedrivePolicy" in given:
        found = policy(given, call.account)
        most = found.most if found else MOST_DELIVERIES
        target = f"{call.account}/{found.target}" if found else None
        queue.configure(connection, address, max_deliveries=most)
        if target is not None:
            if found and call.http.caller.queue not in {None, found.target}:
                raise no_target(given["RedrivePolicy"])  # the key may not send there
            try:
                queue.describe(connection, target)
            except SubscriptionNotFound:
                raise no_target(given["RedrivePolicy"]) from None
        forwarding.set_dead_letters_to(connection, address, target)
    labels.label(connection, address, facts.labels())


async def _queues(call: SqsCall) -> list[tuple[str, str | None]]:
    """The queues of the account by name, each with the topic of its dead letters."""
    root, only = f"{call.account}/", call.http.caller.queue

    def work(connection: Any) -> list[tuple[str, str | None]]:
        return sorted(
            (each.name.removeprefix(root), each.dead_letters_to)
            for each in list_subscriptions(connection, call.account, mode="queue")
        )

    return [each for each in await call.run(work) if only in {None, each[0]}]


def _page(call: SqsCall, found: list[str], name: str) -> dict[str, Any]:
    most = call.number("MaxResults", _MOST_LISTED, 1, _MOST_LISTED)
    after = call.given.get("NextToken") or ""
    left = [each for each in found if each > str(after)]
    made: dict[str, Any] = {name: [call.url(each) for each in left[:most]]} if left else {}
    if len(left) > most and "MaxResults" in call.given:
        made["NextToken"] = left[most - 1]
    return made


def _tags(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > _MOST_TAGS:
        raise SqsError("InvalidParameterValue", f"A queue has {_MOST_TAGS} tags at most.")
    for name, value in given.items():
        if not _TAG.fullmatch(name) or not isinstance(value, str) or len(value) > _LONGEST_VALUE:
            raise SqsError(
                "InvalidParameterValue",
                "A tag has a name of 1 to 128 letters and a value of 256 at most.",
            )
    return given
