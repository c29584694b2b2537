"""``penstock publish``, ``penstock fetch`` and ``penstock tail``."""

from __future__ import annotations

import heapq
import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import database
from penstock.cli.archive_targets import ArchiveTargets, archive_targets
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
from penstock.cli.fetching import Since
from penstock.cli.output import (
    Format,
    LineOutput,
    Lines,
    Output,
    say,
    show,
    show_line,
)
from penstock.cli.topics import Topic
from penstock.database import config
from penstock.doctor.waiting import Silence
from penstock.errors import InvalidArgument
from penstock.records import Event, Message
from penstock.topics.names import describe_topic

_NEWEST = 10
#: How many events `fetch` reads of a partition at a time.
_PAGE = 100


def publish(
    topic: Topic,
    payload: Payload = None,
    *,
    file: PayloadFile = None,
    key: Key = None,
    type_: Type = "",
    content_type: ContentType = "application/octet-stream",
    header: Headers = None,
    event_id: Annotated[uuid.UUID | None, typer.Option(help="A UUID of yours.")] = None,
    partition: Partition = None,
    not_before: NotBefore = None,
    dedup_key: DedupKey = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Keep each key in commit order.")
    ] = False,
    checked: Annotated[
        bool, typer.Option("--checked", help="Refuse what does not fit the topic's schema.")
    ] = False,
    output: LineOutput = Lines.text,
) -> None:
    """Publish one event, in a transaction of its own; writes its event id."""
    from penstock.publishing.publish import publish_once

    message = Message(
        topic,
        payload_of(payload, file),
        key=key,
        type=type_,
        content_type=content_type,
        headers=dict(header_of(each) for each in header) if header else None,
        event_id=event_id,
        partition=partition,
        not_before=not_before.replace(tzinfo=UTC) if not_before else None,
        dedup_key=dedup_key,
    )
    with database.connect() as connection:
        done = publish_once(connection, message, strict=strict, checked=checked)
    show_published(topic, done.event_id, done.duplicate, output)


def fetch(
    topic: Topic,
    *,
    partition: OnlyPartition = None,
    from_sequence: Annotated[
        int | None,
        typer.Option("--from", help="The first sequence, else the first that the database holds."),
    ] = None,
    from_lsn: Annotated[
        str | None,
        typer.Option(
            "--from-lsn",
            help="LOG_EPOCH.SEQUENCE or a sequence: also what only the archive has. "
            "Needs --partition.",
        ),
    ] = None,
    from_bookmark: Annotated[
        str | None,
        typer.Option("--from-bookmark", help="Its name: also what only the archive has."),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from-time", help="Sequenced then or later (ISO 8601), wherever it is."),
    ] = None,
    max_events: MostEvents = 20,
    target: ArchiveTargets = None,
    output: Output = Format.table,
) -> None:
    """Read events by sequence, up to the high watermark; of several partitions the oldest first."""
    if from_bookmark is not None or from_time is not None:
        beginnings = (from_sequence, from_lsn, from_bookmark, from_time)
        since = Since.of(topic, partition, beginnings)
        show(since.events(max_events, archive_targets(target)), output)
        return
    if from_lsn is not None or target:
        _fetch_from_lsn(
            topic,
            partition=partition,
            from_sequence=from_sequence,
            from_lsn=from_lsn,
            max_events=max_events,
            target=target,
            output=output,
        )
        return
    with database.connect() as connection:
        ranges = {each.partition: each for each in describe_topic(connection, topic).partitions}
        chosen = sorted(ranges) if partition is None else [partition]
        first = dict.fromkeys(chosen, from_sequence or 1)
        if from_sequence is None:
            first |= {each: ranges[each].low_sequence for each in chosen if each in ranges}
            gone = sum(first[each] > 1 for each in chosen)
            if gone:
                say(f"the database no longer holds the first events of {gone} of these partitions")
        elif from_sequence < 1:
            raise InvalidArgument(f"{from_sequence} is not a sequence", hint="the first one is 1")
        read = [_fetched(connection, topic, each, first[each], max_events) for each in chosen]
        merged = heapq.merge(*read, key=lambda event: (event.sequenced_at, event.partition))
        show(islice(merged, max_events), output)


def _fetch_from_lsn(
    topic: str,
    *,
    partition: int | None,
    from_sequence: int | None,
    from_lsn: str | None,
    max_events: int,
    target: list[str] | None,
    output: Format,
) -> None:
    """Read over the database and the archive; what it must not be given together is refused."""
    from penstock import archive

    if from_lsn is None or from_sequence is not None or partition is None:
        raise InvalidArgument(
            "the archive is read from one position of one partition",
            hint="give --partition and --from-lsn, and no --from",
        )
    start = int(from_lsn) if from_lsn.isascii() and from_lsn.isdigit() else from_lsn
    places = archive_targets(target)
    url = config.database_url()
    with archive.read(url, topic, partition, start, max_events, targets=places) as reader:
        show(reader.events(), output)


def _fetched(
    connection: Any, topic: str, partition: int, first: int, max_events: int
) -> Iterator[Event]:
    """The events, page by page.  Of many partitions only the first page is in memory."""
    from penstock import log

    page = min(max_events, _PAGE)
    while events := log.fetch(connection, topic, partition, first, page):
        yield from events
        first = events[-1].sequence + 1


def tail(
    topic: Topic,
    start: TailStart = str(_NEWEST),
    follow: Follow = False,
    max_events: MostTailed = None,
    output: LineOutput = Lines.text,
) -> None:
    """Write a topic's events, a line for each, partition by partition; keeps no position."""
    from penstock.log.tail import tail as tail_events

    begin = int(start) if start.isascii() and start.isdigit() else start
    with until_interrupted(), database.connect(application_name="penstock tail") as connection:
        silence = Silence(lambda why: say(f"nothing comes: {why}"))

        def after_look(found: bool) -> None:
            silence.ended() if found else silence.look(connection)

        found = tail_events(connection, topic, begin, follow=follow, after_look=after_look)
        for event in islice(found, max_events):
            if output is Lines.json:
                show_line(event)
            else:
                sys.stdout.write(f"{as_line(event)}\n")
            if follow:
                sys.stdout.flush()


@contextmanager
def until_interrupted() -> Iterator[None]:
    """End without an error at Ctrl-C, at SIGTERM, or when the reader stops (`| head`)."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Otherwise the rest of the buffer would be written, and fail again, when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        signal.signal(signal.SIGTERM, before)


def as_line(event: Event) -> str:
    """An event as one line, whatever it contains.  Text that is not plain is quoted like JSON."""
    at = event.sequenced_at.isoformat(sep=" ", timespec="milliseconds")
    key = "-" if event.key is None else _plain(event.key)
    try:
        payload = _plain(event.payload.decode())
    except UnicodeDecodeError:
        payload = f"<{len(event.payload)} bytes>"
    return f"{at} {event.partition}:{event.sequence} {key} {_plain(event.type) or '-'} {payload}"


def _plain(text: str) -> str:
    """Text that is quoted where it could end the line or control a terminal."""
    return text if text.isprintable() else json.dumps(text)


def payload_of(payload: str | None, file: Path | None) -> bytes:
    """The payload that a command was given."""
    if (payload is None) == (file is None):
        raise InvalidArgument(
            "the command needs one payload", hint="give a text, - for standard input, or --file"
        )
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            raise InvalidArgument(f"cannot read {file}: {error.strerror}") from None
    return sys.stdin.buffer.read() if payload == "-" else str(payload).encode()


def header_of(text: str) -> tuple[str, Any]:
    """A header that was written as name=value."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise InvalidArgument(f"the header {text!r} is not name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
