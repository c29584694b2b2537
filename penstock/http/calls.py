"""Each call of the gateway as what is sent and how its answer is read."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode
from uuid import UUID

from penstock.errors import InvalidArgument, TopicNotFound
from penstock.http.heard import HeardEvent, deliveries_of, events_of
from penstock.http.verbs import JSON, HttpReply, HttpVerb, as_body, nothing
from penstock.records import Event, PartitionRange, Published
from penstock.subscriptions.dead_letters import DeadLetter
from penstock.subscriptions.queue import Delivery, QueueStatistics, Receipt


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One event of a batch.  Its topic is that of the batch."""

    payload: bytes
    key: str | None = None
    type: str = ""
    content_type: str = "application/octet-stream"
    headers: Mapping[str, Any] | None = None
    partition: int | None = None
    not_before: datetime | None = None
    dedup_key: str | None = None


def publish(topic: str, message: NewMessage, *, resend: bool) -> HttpVerb[Published]:
    """One event.  With ``resend`` it has a dedup key, so it can be sent again.

    One with headers goes as a batch, whose answer does not tell duplicates.
    """
    own_key = None if message.dedup_key or not resend else _new_key()
    dedup_key = message.dedup_key or own_key
    if message.headers:
        verb = publish_batch(topic, [message], resend=resend)
        return _changed(verb, lambda reply: Published(verb.read(reply)[0], False))
    query = {
        "key": message.key,
        "type": message.type or None,
        "partition": message.partition,
        "not_before": _time(message.not_before),
        "dedup_key": dedup_key,
    }

    def read(reply: HttpReply) -> Published:
        told = reply.json()
        # A key of our own can only have met our own first attempt.
        return Published(UUID(told["event_id"]), told["duplicate"] and own_key is None)

    return HttpVerb(
        "POST", f"/topics/{_topic(topic)}/events{_query(query)}", read, bytes(message.payload),
        {"Content-Type": message.content_type}, dedup_key is not None, missing=TopicNotFound,
    )  # fmt: skip


def publish_batch(
    topic: str, messages: Iterable[NewMessage], *, resend: bool
) -> HttpVerb[list[UUID]]:
    """Many events of one topic: all or none."""
    given = list(messages)
    own_key = _new_key()
    told = []
    for number, each in enumerate(given):
        dedup_key = each.dedup_key or (f"{own_key}-{number}" if resend else None)
        fields = {
            "base64": base64.b64encode(each.payload).decode(),
            "content_type": each.content_type,
            "key": each.key,
            "type": each.type or None,
            "headers": dict(each.headers) if each.headers else None,
            "partition": each.partition,
            "not_before": _time(each.not_before),
            "dedup_key": dedup_key,
        }
        told.append({name: value for name, value in fields.items() if value is not None})
    return HttpVerb(
        "POST", f"/topics/{_topic(topic)}/batches", lambda reply: _ids(reply.json()),
        as_body({"events": told}), {"Content-Type": JSON},
        resend or all(each.dedup_key for each in given), missing=TopicNotFound,
    )  # fmt: skip


def fetch(topic: str, partition: int, sequence: int, max_events: int) -> HttpVerb[list[Event]]:
    """Events of a partition from a sequence on."""
    query = {"partition": partition, "from": sequence, "max_events": max_events}
    path = f"/topics/{_topic(topic)}/events{_query(query)}"
    return HttpVerb(
        "GET", path, lambda reply: events_of(reply.body.decode()),
        is_repeatable=True, missing=TopicNotFound,
    )  # fmt: skip


def partitions(topic: str) -> HttpVerb[list[PartitionRange]]:
    """Which sequences of each partition can be fetched."""
    return HttpVerb(
        "GET", f"/topics/{_topic(topic)}/partitions",
        lambda reply: [PartitionRange(**each) for each in reply.json()["partitions"]],
        is_repeatable=True, missing=TopicNotFound,
    )  # fmt: skip


def topics(after: str | None = None) -> HttpVerb[tuple[list[str], str | None]]:
    """Addresses of the account's topics, and after which one to go on; None: that is all."""

    def read(reply: HttpReply) -> tuple[list[str], str | None]:
        told = reply.json()
        return [each["address"] for each in told["topics"]], told.get("next")

    return HttpVerb("GET", f"/topics{_query({'after': after})}", read, is_repeatable=True)


def create_topic(topic: str, partitions: int) -> HttpVerb[bool]:
    """Make a topic, if it is not there."""
    return _created("/topics", {"topic": topic, "partitions": partitions})


def create_queue(queue: str) -> HttpVerb[bool]:
    """Make a queue, if it is not there."""
    return _created("/queues", {"queueName": queue})


def create_subscription(subscription: str, topics: Sequence[str], start: str) -> HttpVerb[bool]:
    """Make a subscription, or add topics."""
    body = {"subscription": subscription, "topics": list(topics), "start": start}
    return _created("/subscriptions", body, TopicNotFound)


def receive(
    queue: str, max_events: int, visibility_seconds: float | None, wait_seconds: float
) -> HttpVerb[list[Delivery]]:
    """Receive messages."""
    body = {
        "max_events": max_events,
        "visibility_seconds": visibility_seconds,
        "wait_seconds": wait_seconds,
    }

    def read(reply: HttpReply) -> list[Delivery]:
        return [
            Delivery(
                event,
                Receipt.parse(told["receipt"]),
                told["deliveries"],
                told["failures"],
                datetime.fromisoformat(told["deadline"]),
            )
            for told, event in deliveries_of(reply.body.decode())
        ]

    return _post(f"/queues/{_name(queue)}/receive", body, read, wait_seconds)


def settle(
    verb: str, queue: str, receipts: Iterable[Receipt | str], partly: bool, **more: Any
) -> HttpVerb[list[bool]]:
    """Acknowledge, release or reject: for each receipt whether it was good."""
    body = {"receipts": [str(each) for each in receipts], "partly": partly} | more
    return _post(f"/queues/{_name(queue)}/{verb}", body, lambda reply: reply.json()["done"])


def extend(
    queue: str, receipts: Iterable[Receipt | str], visibility_seconds: float
) -> HttpVerb[list[Receipt]]:
    """Hide messages for longer: the new receipts."""
    body = {
        "receipts": [str(each) for each in receipts],
        "visibility_seconds": visibility_seconds,
    }
    return _post(
        f"/queues/{_name(queue)}/extend", body,
        lambda reply: [Receipt.parse(each) for each in reply.json()["receipts"]],
    )  # fmt: skip


def counts(queue: str) -> HttpVerb[QueueStatistics]:
    """How many messages a queue has, by state."""
    return HttpVerb(
        "GET", f"/queues/{_name(queue)}/counts",
        lambda reply: QueueStatistics(**reply.json()), is_repeatable=True,
    )  # fmt: skip


def dead_letters(queue: str, filters: Mapping[str, Any]) -> HttpVerb[list[DeadLetter]]:
    """The dead letters of a queue, newest first."""
    path = f"/queues/{_name(queue)}/dead-letters{_query(filters)}"
    return HttpVerb(
        "GET", path, lambda reply: [_letter(each) for each in reply.json()["letters"]],
        is_repeatable=True,
    )  # fmt: skip


def redrive(queue: str, letters: Iterable[int] | None) -> HttpVerb[int]:
    """Make dead letters deliverable again."""
    body = {"letters": None if letters is None else list(letters)}
    return _post(f"/queues/{_name(queue)}/redrive", body, lambda reply: reply.json()["redriven"])


def commit(subscription: str, events: Iterable[HeardEvent]) -> HttpVerb[None]:
    """Commit the last of these events of each partition."""
    last: dict[tuple[str, int], HeardEvent] = {}
    consumers = set()
    for each in events:
        consumers.add(each.consumer)
        place = (each.topic, each.partition)
        if place not in last or last[place].sequence < each.sequence:
            last[place] = each
    if len(consumers) != 1:
        raise InvalidArgument(
            "a commit is about events of one listener, and at least one", hint="commit per listener"
        )
    body = {"consumer": consumers.pop(), "positions": [each.place() for each in last.values()]}
    return HttpVerb(
        "POST", f"/subscriptions/{_topic(subscription)}/commits", nothing, as_body(body),
        {"Content-Type": JSON}, is_repeatable=True,
    )  # fmt: skip


def tail(topic: str, start: str, partition: int | None, last_event_id: str) -> HttpVerb[None]:
    """The stream of a topic."""
    path = f"/topics/{_topic(topic)}/stream{_query({'from': start, 'partition': partition})}"
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    return HttpVerb(
        "GET", path, nothing, headers=headers, is_repeatable=True, missing=TopicNotFound
    )


def listen(
    subscription: str, max_uncommitted: int | None, commit_seconds: float | None
) -> HttpVerb[None]:
    """The stream of a subscription."""
    query = {"max_uncommitted": max_uncommitted, "commit_seconds": commit_seconds}
    path = f"/subscriptions/{_topic(subscription)}/stream{_query(query)}"
    return HttpVerb("GET", path, nothing, is_repeatable=True)


def _created(
    path: str, body: object, missing: type[TopicNotFound] = TopicNotFound
) -> HttpVerb[bool]:
    return HttpVerb(
        "POST", path, lambda reply: reply.status == 201, as_body(body),  # noqa: PLR2004
        {"Content-Type": JSON}, is_repeatable=True, missing=missing,
    )  # fmt: skip


def _post(path: str, body: object, read: Any, wait_seconds: float = 0.0) -> HttpVerb[Any]:
    return HttpVerb(
        "POST", path, read, as_body(body), {"Content-Type": JSON}, wait_seconds=wait_seconds
    )


def _changed(verb: HttpVerb[Any], read: Any) -> HttpVerb[Any]:
    return HttpVerb(
        verb.method, verb.path, read, verb.body, verb.headers, verb.is_repeatable,
        missing=verb.missing,
    )  # fmt: skip


def _ids(told: Any) -> list[UUID]:
    return [UUID(each) for each in told["event_ids"]]


def _letter(told: dict[str, Any]) -> DeadLetter:
    times = {name: datetime.fromisoformat(told[name]) for name in ("created_at", "died_at")}
    copy = told.get("forwarded_as")
    ids = {"event_id": UUID(told["event_id"]), "forwarded_as": UUID(copy) if copy else None}
    return DeadLetter(**(told | times | ids))


def _new_key() -> str:
    return f"http-{uuid.uuid4().hex}"


def _name(text: str) -> str:
    if not text or "/" in text:
        raise InvalidArgument(f"{text!r} is not a queue of a gateway", hint="its name has no slash")
    return quote(text, safe="")


def _topic(text: str) -> str:
    parts = text.split("/")
    if not all(parts) or {".", ".."} & {*parts}:
        raise InvalidArgument(f"{text!r} is not a name", hint="write it below the account, as a/b")
    return quote(text, safe="/")


def _time(moment: datetime | None) -> str | None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidArgument("not_before has no zone", hint="give a time with its zone")
    return None if moment is None else moment.isoformat()


def _query(given: Mapping[str, Any]) -> str:
    found = {name: value for name, value in given.items() if value is not None}
    return f"?{urlencode(found)}" if found else ""
