"""The commands of topics and streams through an HTTP gateway."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC
from itertools import islice
from typing import Annotated, Any

import typer

from penstock.cli.event_options import (
    ContentType,
    DedupKey,
    Follow,
    Headers,
    Key,
    MostEvents,
    MostTailed,
    NotBefore,
    OnlyPartition,
    Partition,
    Payload,
    PayloadFile,
    TailStart,
    Type,
    show_published,
)
from penstock.cli.events import as_line, header_of, payload_of, until_interrupted
from penstock.cli.output import Format, LineOutput, Lines, Output, say, show, show_line
from penstock.errors import InvalidArgument
from penstock.http import GatewayClient
from penstock.records import Event

_NEWEST = 10
_PAGE = 100
#: Who only looks commits nothing: as much, and for as long, as the gateway allows.
_UNCOMMITTED: dict[str, Any] = {"max_uncommitted": 100_000, "commit_seconds": 3_600.0}

Topic = Annotated[str, typer.Argument(help="Its name below the account: path/topic.")]

topics = typer.Typer(help="Create, list and describe topics.", no_args_is_help=True)
subscriptions = typer.Typer(help="Create subscriptions.", no_args_is_help=True)


def publish(
    topic: Topic,
    payload: Payload = None,
    *,
    file: PayloadFile = None,
    key: Key = None,
    type_: Type = "",
    content_type: ContentType = "application/octet-stream",
    header: Headers = None,
    partition: Partition = None,
    not_before: NotBefore = None,
    dedup_key: DedupKey = None,
    output: LineOutput = Lines.text,
) -> None:
    """Publish one event through the gateway; writes its event id."""
    with GatewayClient() as gateway:
        done = gateway.publish(
            topic,
            payload_of(payload, file),
            key=key,
            type=type_,
            content_type=content_type,
            headers=dict(header_of(each) for each in header) if header else None,
            partition=partition,
            not_before=not_before.replace(tzinfo=UTC) if not_before else None,
            dedup_key=dedup_key,
        )
    show_published(topic, done.event_id, done.duplicate, output)


def fetch(
    topic: Topic,
    *,
    partition: OnlyPartition = None,
    from_sequence: Annotated[
        int | None,
        typer.Option("--from", min=1, help="The first sequence, else the first that is there."),
    ] = None,
    max_events: MostEvents = 20,
    output: Output = Format.table,
) -> None:
    """Read events by sequence through the gateway; of several partitions the oldest first."""
    with GatewayClient() as gateway:
        ranges = {each.partition: each for each in gateway.partitions(topic)}
        chosen = sorted(ranges) if partition is None else [partition]
        if partition is not None and partition not in ranges:
            raise InvalidArgument(f"{topic!r} has no partition {partition}", hint="leave it out")
        read = [
            _read(gateway, topic, each, from_sequence or ranges[each].low_sequence, None)
            for each in chosen
        ]
        show(islice(_oldest_first(read), max_events), output)


def tail(
    topic: Topic,
    start: TailStart = str(_NEWEST),
    follow: Follow = False,
    max_events: MostTailed = None,
    output: LineOutput = Lines.text,
) -> None:
    """Write a topic's events through the gateway, a line for each; keeps no position."""
    with until_interrupted(), GatewayClient() as gateway:
        ranges = gateway.partitions(topic)
        done = {
            each.partition: _before(start, each.low_sequence, each.high_watermark)
            for each in ranges
        }
        if follow:
            places = "-".join(f"{number}.{place}" for number, place in sorted(done.items()))
            found: Iterable[Event] = gateway.tail(topic, after=f"{ranges[0].history}.{places}")
        else:
            found = _oldest_first(
                [
                    _read(gateway, topic, each.partition, done[each.partition] + 1, each)
                    for each in ranges
                ]
            )
        _write(islice(found, max_events), output, is_live=follow)


def consume(
    subscription: Annotated[str, typer.Argument(help="Its name below the account.")],
    *,
    commit: Annotated[
        bool, typer.Option("--commit", help="Move the position past what was written.")
    ] = False,
    max_events: MostTailed = None,
    format_: Annotated[Lines, typer.Option("--format", help="text, or JSON")] = Lines.text,
) -> None:
    """Listen to a subscription through the gateway, and write what it is handed."""
    limits = {} if commit else _UNCOMMITTED
    with until_interrupted(), GatewayClient() as gateway:
        for each in islice(gateway.listen(subscription, **limits), max_events):
            _write([each.event], format_, is_live=True)
            if commit:  # after it was written: what was not written comes again
                gateway.commit(subscription, [each])


@topics.command("list")
def list_(output: Output = Format.table) -> None:
    """List the topics of the account."""
    with GatewayClient() as gateway:
        show([{"address": each} for each in gateway.topics()], output)


@topics.command()
def create(
    topic: Topic,
    *,
    partitions: Annotated[int, typer.Option("--partitions", "-n", help="How many.")] = 1,
) -> None:
    """Create a topic, or leave it as it is."""
    with GatewayClient() as gateway:
        is_new = gateway.create_topic(topic, partitions)
    say(f"created topic {topic}" if is_new else f"topic {topic} is there")


@topics.command()
def describe(topic: Topic, output: Output = Format.table) -> None:
    """Show what of each partition can be fetched."""
    with GatewayClient() as gateway:
        show(gateway.partitions(topic), output)


@subscriptions.command("create")
def create_subscription(
    name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    topic: Annotated[list[str], typer.Option("--topic", "-t", help="A topic to read; repeat.")],
    start: Annotated[str, typer.Option(help="earliest, latest or a sequence")] = "earliest",
) -> None:
    """Create a stream subscription, or add topics to it."""
    with GatewayClient() as gateway:
        is_new = gateway.create_subscription(name, topic, start)
    say(f"subscription {name}: {'topics added' if is_new else 'nothing added'}")


@subscriptions.callback()
def of_streams() -> None:
    """Create subscriptions."""


def _before(start: str, low: int, high: int) -> int:
    """The sequence after which a partition is read."""
    if start == "latest":
        return high
    if start == "earliest":
        return low - 1
    if not (start.isascii() and start.isdigit()):
        raise InvalidArgument(f"cannot begin at {start!r}", hint="earliest, latest or a number")
    return max(low - 1, high - int(start))


def _read(
    gateway: GatewayClient, topic: str, partition: int, first: int, until: object
) -> Iterator[Event]:
    """The events of a partition, page by page, up to the high watermark of before."""
    end = getattr(until, "high_watermark", None)
    while end is None or first <= end:
        events = gateway.fetch(topic, partition, first, _PAGE)
        if not events:
            return
        yield from (each for each in events if end is None or each.sequence <= end)
        first = events[-1].sequence + 1


def _oldest_first(read: list[Iterator[Event]]) -> Iterator[Event]:
    return heapq.merge(*read, key=lambda event: (event.sequenced_at, event.partition))


def _write(events: Iterable[Event], output: Lines, *, is_live: bool) -> None:
    for event in events:
        if output is Lines.json:
            show_line(event)
        else:
            sys.stdout.write(f"{as_line(event)}\n")
        if is_live:
            sys.stdout.flush()
