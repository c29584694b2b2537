"""Our own API of topics: create, publish, fetch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import msgspec

import penstock
from consumers.gateway import cloudevents
from consumers.gateway.answers import GatewayAnswer, Refused, as_json
from consumers.gateway.calls import HttpCall, number
from consumers.gateway.operations import Operation, Parameter
from consumers.gateway.room import size_of
from consumers.gateway.tails import fetch_fitting
from ops.sinks.cloudevents import to_json
from penstock.errors import TopicNotFound
from penstock.log.positions import sequence_of
from penstock.publishing.publish import publish_once
from penstock.records import Message, Topic
from penstock.topics import names

_HIGHEST = 2**63 - 1
MOST_FETCHED = 1_000
#: An event's id in an answer.
_ID_BYTES = 40
#: Topics of one answer.
MOST_LISTED = 1_000
#: Events of a batch in plain JSON.
MOST_PUBLISHED = 10_000


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a creation; ``topic`` is its name below the account's namespace."""

    topic: str
    partitions: int = 1
    strategy: str = "crc32"


class NewEvent(msgspec.Struct, forbid_unknown_fields=True):
    """An event of a batch: its data as JSON, as text, or as base64."""

    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    base64: bytes | msgspec.UnsetType = msgspec.UNSET
    key: str | None = None
    type: str = ""
    content_type: str | None = None
    headers: dict[str, Any] | None = None
    partition: int | None = None
    not_before: datetime | None = None
    dedup_key: str | None = None


class NewEvents(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a batch in plain JSON."""

    events: Annotated[list[NewEvent], msgspec.Meta(max_length=MOST_PUBLISHED)]


async def list_topics(call: HttpCall) -> GatewayAnswer:
    """The topics of the account, so many at a time; ``next`` says where to go on."""
    given, root = call.queries(), call.caller.account
    most = number(given, "max_rows", MOST_LISTED, 1, MOST_LISTED)

    def work(connection: Any) -> list[Topic]:
        after = given.get("after", "")
        return names.list_topics(connection, root, after=after, max_rows=most + 1)

    found = await call.run(work)
    told = {"topics": [asdict(each) for each in found[:most]]}
    return as_json(200, told | ({"next": found[most - 1].address} if len(found) > most else {}))


async def create_topic(call: HttpCall) -> GatewayAnswer:
    """Make a topic; one that is there already has to be like it."""
    wanted = call.body(NewTopic)
    address = f"{call.caller.account}/{wanted.topic}"
    try:
        await call.run(lambda connection: names.describe_topic(connection, address))
    except TopicNotFound:
        status = 201
    else:
        status = 200

    def work(connection: Any) -> None:
        names.create_topic(
            connection,
            address,
            wanted.partitions,
            strategy=wanted.strategy,
            create_namespaces=True,
            if_not_exists=True,
        )

    await call.run(work)
    return as_json(status, {"topic": address})


async def describe_topic(call: HttpCall) -> GatewayAnswer:
    """The partitions of a topic, and which sequences of each can be fetched."""
    address = call.address("topic")
    found = await call.run(lambda connection: names.partition_ranges(connection, address))
    return as_json(200, {"topic": address, "partitions": [asdict(each) for each in found]})


async def delete_topic(call: HttpCall) -> GatewayAnswer:
    """Delete a topic with its events."""
    address = call.address("topic")
    await call.run(lambda connection: names.delete_topic(connection, address))
    return GatewayAnswer(204)


async def publish(call: HttpCall) -> GatewayAnswer:
    """Publish one event, or what a request of CloudEvents has."""
    topic, shown = call.address("topic"), call.shown
    media = shown.header("content-type").partition(";")[0].strip().lower()
    if media in {cloudevents.STRUCTURED, cloudevents.BATCH} or cloudevents.is_binary(shown):
        found = cloudevents.messages(topic, shown)
        if media == cloudevents.BATCH:
            return await _batch(call, found)
        return await _single(call, found[0], strict=False)
    given = call.queries()
    message = Message(
        topic,
        shown.body,
        key=given.get("key"),
        type=given.get("type", ""),
        content_type=shown.header("content-type") or "application/octet-stream",
        partition=_partition(given),
        not_before=_time(given.get("not_before")),
        dedup_key=given.get("dedup_key"),
    )
    return await _single(call, message, strict=given.get("strict", "false").lower() == "true")


async def publish_batch(call: HttpCall) -> GatewayAnswer:
    """Publish many events in plain JSON: all or none."""
    topic = call.address("topic")
    return await _batch(call, [_message(topic, each) for each in call.body(NewEvents).events])


async def fetch(call: HttpCall) -> GatewayAnswer:
    """Events of a partition from a sequence, or a position of the log, on."""
    given, topic = call.queries(), call.address("topic")
    partition = number(given, "partition", 0, 0, 65_535)
    most = number(given, "max_events", 100, 1, MOST_FETCHED)
    if ("from" in given) == ("lsn" in given):
        raise Refused(400, "say where to begin: from=SEQUENCE, or lsn=LOG_EPOCH.SEQUENCE")
    sequence = number(given, "from", 1, 1, _HIGHEST)

    room = await call.share.take(size_of(most))

    def work(connection: Any) -> bytes:
        begin = sequence
        if "lsn" in given:
            begin = sequence_of(connection, topic, partition, given["lsn"])
        events = fetch_fitting(connection, topic, partition, begin, most=most, room=room)
        return b"[" + b",".join(map(to_json, events)) + b"]"

    return GatewayAnswer(200, await call.run(work), cloudevents.BATCH)


async def _single(call: HttpCall, message: Message, *, strict: bool) -> GatewayAnswer:
    principal = call.caller.principal
    if message.dedup_key is None and not strict:
        event_id = await call.services.publishes.publish(principal, message)
        return as_json(201, {"event_id": str(event_id), "duplicate": False})
    # These wait for other transactions, so nobody else's event is in theirs, and no other call
    # waits for a connection of theirs.
    made = await call.services.ordered.run(
        principal, lambda connection: publish_once(connection, message, strict=strict)
    )
    status = 200 if made.duplicate else 201
    return as_json(status, {"event_id": str(made.event_id), "duplicate": made.duplicate})


async def _batch(call: HttpCall, messages: list[Message]) -> GatewayAnswer:
    # Before they are published: without room nothing is done.
    await call.share.hold(len(messages) * _ID_BYTES)
    made = await call.run(lambda connection: penstock.publish_batch(connection, messages))
    return as_json(201, {"event_ids": [str(each) for each in made]})


def _message(topic: str, given: NewEvent) -> Message:
    if given.text is not msgspec.UNSET:
        payload, kind = given.text.encode(), "text/plain; charset=utf-8"
    elif given.base64 is not msgspec.UNSET:
        payload, kind = given.base64, "application/octet-stream"
    elif given.data is not msgspec.UNSET:
        payload, kind = bytes(given.data), "application/json"
    else:
        raise Refused(400, "an event has data, text or base64")
    return Message(
        topic,
        payload,
        key=given.key,
        type=given.type,
        content_type=given.content_type or kind,
        headers=given.headers,
        partition=given.partition,
        not_before=given.not_before,
        dedup_key=given.dedup_key,
    )


def _partition(given: Mapping[str, str]) -> int | None:
    return int(number(given, "partition", 0, 0, 65_535)) if "partition" in given else None


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(400, "not_before has to be a time like 2026-11-26T20:00:00Z") from None
    if found.tzinfo is None:
        raise Refused(400, "not_before needs a zone: 2026-11-26T20:00:00Z")
    return found


_MISSING = {404: "there is no such topic"}
_EVENT = (
    Parameter("key", "string", "events of one key keep their order"),
    Parameter("type", "string", "what kind of event it is"),
    Parameter("partition", "integer", "instead of the one that the key chooses"),
    Parameter("not_before", "string", "a time until which it is delayed"),
    Parameter("dedup_key", "string", "no other event of the topic with it is taken for a time"),
    Parameter("strict", "boolean", "events of a key in the order of their commits; false"),
)
_FROM = (
    Parameter("partition", "integer", "its number; 0"),
    Parameter("from", "integer", "the first sequence"),
    Parameter("lsn", "string", "the same as a position: log epoch, a dot, sequence"),
    Parameter("max_events", "integer", "100"),
)
_TOPICS = (
    Parameter("max_rows", "integer", f"{MOST_LISTED:,}, which is the most"),
    Parameter("after", "string", "the next page: topics after this address, which next has told"),
)

OPERATIONS = (
    Operation(
        "POST", "/topics/{topic:path}/events", "p", "publish",
        "Publish one event, or CloudEvents (structured, binary, batch)", publish,
        {201: "published", 200: "a duplicate of an earlier one", 413: "it is too long"} | _MISSING,
        queries=_EVENT, takes=("*/*", cloudevents.STRUCTURED, cloudevents.BATCH),
    ),
    Operation(
        "POST", "/topics/{topic:path}/batches", "p", "publishBatch",
        "Publish many events in plain JSON: all or none", publish_batch,
        {201: "published", 413: "one is too long"} | _MISSING, takes=("application/json",),
    ),
    Operation(
        "GET", "/topics/{topic:path}/events", "r", "fetch",
        "Events of a partition in the order of the log", fetch,
        {200: "the events, none above the high watermark; fewer than asked for when they are long",
         410: "the database does not hold them any more"} | _MISSING,
        queries=_FROM, gives=cloudevents.BATCH,
    ),
    Operation(
        "GET", "/topics", "g", "listTopics", "List the topics of the account", list_topics,
        {200: "the topics by address, and next when there are more"}, queries=_TOPICS,
    ),
    Operation(
        "POST", "/topics", "c", "createTopic", "Create a topic", create_topic,
        {201: "created", 200: "it exists", 409: "it exists, with other properties"},
        takes=("application/json",),
    ),
    Operation(
        "GET", "/topics/{topic:path}/partitions", "g", "describeTopic",
        "Which sequences of each partition can be fetched", describe_topic,
        {200: "the partitions"} | _MISSING,
    ),
    Operation(
        "DELETE", "/topics/{topic:path}", "d", "deleteTopic", "Delete a topic with its events",
        delete_topic, {204: "deleted", 409: "a subscription reads it"} | _MISSING,
    ),
)  # fmt: skip
