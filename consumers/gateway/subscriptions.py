"""The calls of stream subscriptions: events of leased partitions as they come, and commits."""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

import msgspec

from consumers.gateway.answers import GatewayAnswer, Refused, as_json
from consumers.gateway.calls import HttpCall, number, send_parts
from consumers.gateway.group_members import GroupMember
from consumers.gateway.groups import ConsumerGroup
from consumers.gateway.operations import Operation, Parameter
from consumers.gateway.room import most_events, size_of
from consumers.gateway.streams import COMMENT_SECONDS, begin_stream, together, until_gone
from consumers.gateway.topics import MOST_LISTED
from ops.sinks.cloudevents import to_json
from penstock import subscriptions
from penstock.errors import StaleLease, WrongMode
from penstock.records import Event, Lease
from penstock.subscriptions import Subscription, stream
from penstock.subscriptions.stream import Membership

#: Events of one poll.
_AT_ONCE = 100
MOST_PARTITIONS = 1_024
MOST_TOPICS = 1_000


class NewSubscription(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a creation; names are below the account's namespace."""

    subscription: str
    topics: Annotated[list[str], msgspec.Meta(max_length=MOST_TOPICS)]
    start: str = "earliest"


class DonePlace(msgspec.Struct, forbid_unknown_fields=True):
    """A position that is done, as the event that stands there has told it."""

    topic: str
    partition: int
    lease_epoch: int
    sequence: int
    history: int


class Commits(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a commit: all or none."""

    consumer: str
    positions: Annotated[list[DonePlace], msgspec.Meta(min_length=1, max_length=MOST_PARTITIONS)]


class SubscriptionListener:
    """One caller that listens to a subscription."""

    def __init__(self, call: HttpCall, member: GroupMember) -> None:
        self._call = call
        self._member = member
        self._root = f"{call.caller.account}/"
        self._sent = time.monotonic()

    async def listen(self) -> None:
        """Send until the caller hangs up, or may listen no longer."""
        member = self._member
        await self._send(b": " + member.consumer.encode() + b"\n\n")
        while True:
            if member.problem is not None:
                raise member.problem
            lost, member.lost = member.lost, []
            for lease in lost:
                await self._send(b"event: lost\ndata: " + self._place(lease) + b"}\n\n")
            leases, room = member.readable()
            membership = member.membership
            if leases and membership is not None and await self._poll(membership, leases, room):
                continue
            if time.monotonic() - self._sent >= COMMENT_SECONDS:
                await self._send(b": \n\n")
            await member.changed(1.0)

    async def _poll(self, membership: Membership, leases: list[Lease], room: int) -> bool:
        """Send what is unread; False when there was nothing."""
        member = self._member
        share = self._call.share
        size = await share.take(size_of(min(room, _AT_ONCE)))
        try:
            polled = await self._call.run(
                partial(
                    stream.poll,
                    member=membership,
                    leases=leases,
                    max_events=min(room, _AT_ONCE, most_events(size)),
                )
            )
            share.keep(sum(len(each.payload) for _, events in polled for each in events))
            for lease, events in polled:
                if member.sending(lease, events):
                    for data in together(self._frame(lease, each) for each in events):
                        await self._send(data)
        finally:
            share.keep(0)
        if not polled:
            member.found_nothing(leases)
        return bool(polled)

    def _frame(self, lease: Lease, event: Event) -> bytes:
        told = b'%s,"sequence":%d,"event":%s}' % (
            self._place(lease), event.sequence, to_json(event),
        )  # fmt: skip
        return b"data: " + told + b"\n\n"

    def _place(self, lease: Lease) -> bytes:
        told = {
            "consumer": self._member.consumer,
            "topic": lease.topic.removeprefix(self._root),
            "partition": lease.partition,
            "lease_epoch": lease.lease_epoch,
            "history": lease.history,
        }
        return msgspec.json.encode(told)[:-1]

    async def _send(self, data: bytes) -> None:
        self._member.sending_since = time.monotonic()
        try:
            await send_parts(self._call.send, data)
        finally:
            self._member.sending_since = math.inf
        self._sent = time.monotonic()


async def listen(call: HttpCall) -> GatewayAnswer | None:
    """Events of the partitions that this listener is given, until it ends or stands still."""
    given = call.queries()
    member = GroupMember(
        call.address("subscription"),
        given.get("consumer") or f"http-{uuid.uuid4().hex}",
        most=int(number(given, "max_uncommitted", 1_000, 1, 100_000)),
        commit_seconds=number(given, "commit_seconds", 60.0, 0.1, 3_600.0),
    )
    if "\n" in member.consumer or "\r" in member.consumer:
        raise Refused(400, "a consumer's name has no line breaks")
    groups = call.services.groups
    group: ConsumerGroup = await groups.enter(call.caller.principal, member)
    try:
        await begin_stream(call)
        await until_gone(call, SubscriptionListener(call, member).listen())
    finally:
        group.end(member, Refused(409, "the listener has gone"))
        groups.forget_empty()
    return None


async def commit(call: HttpCall) -> GatewayAnswer:
    """Move positions forward: all or none, under the leases by which the events were read."""
    wanted, address = call.body(Commits), call.address("subscription")
    root = f"{call.caller.account}/"
    member = Membership(address, wanted.consumer, uuid.UUID(int=0), 0, 0)

    def work(connection: Any) -> list[tuple[Lease, int]]:
        held = {
            (lease.topic, lease.partition): lease
            for lease in stream.held_leases(connection, member)
        }
        if not held:
            _require_stream(connection, address)
        places = [_held(held, root, each) for each in wanted.positions]
        # A commit whose answer was lost is sent again: what is there already is no error.
        new = [
            (lease, position)
            for lease, position in places
            if (lease, position) != (held[lease.topic, lease.partition], lease.position)
        ]
        if new:
            stream.commit(connection, member, new)
        return places

    done = await call.run(work)
    call.services.groups.committed(call.caller.principal.account_id, address, wanted.consumer, done)
    return GatewayAnswer(204)


def _held(held: dict[tuple[str, int], Lease], root: str, place: DonePlace) -> tuple[Lease, int]:
    lease = held.get((root + place.topic, place.partition))
    if lease is None or lease.history != place.history:
        raise StaleLease(
            f"consumer does not hold partition {place.partition} of {place.topic!r}",
            hint="drop what was read: another listener may have it by now",
        )
    # With the lease_epoch that the event had: the database compares it.
    return replace(lease, lease_epoch=place.lease_epoch), place.sequence


async def list_subscriptions(call: HttpCall) -> GatewayAnswer:
    """The stream subscriptions of the account, so many at a time; ``next`` says where to go on."""
    given, account = call.queries(), call.caller.account
    most = number(given, "max_rows", MOST_LISTED, 1, MOST_LISTED)
    root = f"{account}/"

    def work(connection: Any) -> list[Subscription]:
        after = root + given.get("after", "")
        return subscriptions.list_subscriptions(
            connection, account, mode="stream", after=after, max_rows=most + 1
        )

    found = await call.run(work)
    more = {"next": found[most - 1].name.removeprefix(root)} if len(found) > most else {}
    return as_json(
        200,
        {
            "subscriptions": [
                {
                    "subscription": each.name.removeprefix(root),
                    "topics": [topic.removeprefix(root) for topic in each.topics],
                    "heartbeat_seconds": each.heartbeat_seconds,
                    "lease_seconds": each.lease_seconds,
                    "paused_at": each.paused_at,
                }
                for each in found[:most]
            ]
        }
        | more,
    )


async def create_subscription(call: HttpCall) -> GatewayAnswer:
    """Make a subscription, or add topics to one."""
    wanted = call.body(NewSubscription)
    root = f"{call.caller.account}/"
    topics = [root + each for each in wanted.topics]
    start: Any = int(wanted.start) if wanted.start.isdecimal() else wanted.start
    added = await call.run(
        lambda connection: stream.subscribe(
            connection, root + wanted.subscription, topics, start=start
        )
    )
    return as_json(201 if added else 200, {"added": added})


async def positions(call: HttpCall) -> GatewayAnswer:
    """Where a subscription stands on each partition, and who holds it."""
    root, address = f"{call.caller.account}/", call.address("subscription")

    def work(connection: Any) -> list[subscriptions.Lag]:
        _require_stream(connection, address)
        return subscriptions.lag(connection, address)

    told: list[dict[str, Any]] = []
    for each in await call.run(work):
        row = asdict(each) | {"topic": each.topic.removeprefix(root), "consumer": each.holder}
        del row["subscription"], row["holder"]
        told.append(row)
    return as_json(200, {"positions": told})


async def delete_subscription(call: HttpCall) -> GatewayAnswer:
    """Delete a subscription with its positions; the events stay."""
    address = call.address("subscription")

    def work(connection: Any) -> None:
        _require_stream(connection, address)
        stream.unsubscribe(connection, address)

    await call.run(work)
    return GatewayAnswer(204)


def _require_stream(connection: Any, address: str) -> None:
    if subscriptions.describe_subscription(connection, address).mode != "stream":
        raise WrongMode("this subscription is a queue", hint="use the calls of queues")


_MISSING = {404: "there is no such subscription"}

OPERATIONS = (
    Operation(
        "POST", "/subscriptions/{subscription:path}/commits", "a", "commit",
        "Commit positions of a subscription", commit,
        {204: "committed", 409: "the lease is not held, or no longer: nothing was committed"}
        | _MISSING,
        takes=("application/json",),
    ),
    Operation(
        "GET", "/subscriptions/{subscription:path}/stream", "r", "listen",
        "Events of a subscription as they come (server-sent events)", listen,
        {200: "events, each with its lease_epoch", 409: "this consumer listens already, or it is"
         " a queue"} | _MISSING,
        queries=(
            Parameter("consumer", "string", "the listener's id; one is made without it"),
            Parameter("max_uncommitted", "integer", "events that may lack a commit; 1000"),
            Parameter("commit_seconds", "number", "without a commit for so long it ends; 60"),
        ),
        gives="text/event-stream",
    ),
    Operation(
        "GET", "/subscriptions/{subscription:path}/positions", "g", "positions",
        "Where a subscription stands, and who holds what", positions,
        {200: "the positions", 409: "it is a queue"} | _MISSING,
    ),
    Operation(
        "GET", "/subscriptions", "g", "listSubscriptions",
        "List the stream subscriptions of the account", list_subscriptions,
        {200: "the subscriptions by name, and next when there are more"},
        queries=(
            Parameter("max_rows", "integer", f"{MOST_LISTED:,}, which is the most"),
            Parameter("after", "string", "the next page: subscriptions after this name"),
        ),
    ),
    Operation(
        "POST", "/subscriptions", "c", "createSubscription",
        "Create a stream subscription, or add topics", create_subscription,
        {201: "topics were added", 200: "it has them already", 404: "there is no such topic",
         409: "it is a queue"},
        takes=("application/json",),
    ),
    Operation(
        "DELETE", "/subscriptions/{subscription:path}", "d", "deleteSubscription",
        "Delete a subscription; its events stay", delete_subscription,
        {204: "deleted", 409: "it is a queue"} | _MISSING,
    ),
)  # fmt: skip
