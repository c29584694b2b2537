"""Writing events in two steps: many programs stage them, one transaction publishes them.

Each attempt of a task stages its events under a UUID of its own.  The program that coordinates the
write then claims its version, which only one transaction can, and publishes the stages of the
attempts that count.  So an attempt that was repeated, and a write that was repeated, leave nothing
behind.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import tee
from typing import Any

from penstock import database
from penstock.database.steps import run
from penstock.errors import InvalidArgument, PenstockError
from penstock.publishing import rows as outgoing
from penstock.publishing.columns import packed
from penstock.publishing.known_topics import known_topics
from penstock.publishing.rows import Row
from penstock.publishing.steps import columns_of
from penstock.records import Message

#: An event to stage, and the message that it was made of.
_Given = tuple[Row, Message]

_CHUNK_EVENTS, _CHUNK_BYTES = 1_000, 1 << 20
_DIGEST_BYTES = 16
_DIGESTS = 1 << 8 * _DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class Stage:
    """What an attempt has staged."""

    id: uuid.UUID
    events: int
    #: The sum of its rows' digests: the same for the same rows in any order, in any tasks.
    digest: int = 0


def stage(connection: Any, messages: Iterable[Message]) -> Stage:
    """Stage events, chunk by chunk, each in a transaction of its own.

    The connection has to commit by itself.  Events that are invalid are refused here already, and
    the error names their place.  Dedup keys are not known to a stage and are refused.
    """
    own = Stage(uuid.uuid4(), 0)
    given, rows = tee(messages)
    try:
        for number, chunk in enumerate(_chunks(zip(outgoing.rows(rows), given, strict=True))):
            _stage_chunk(connection, own, number, [row for row, _ in chunk])
            digest = sum(_digest(row, message) for row, message in chunk)
            own = replace(
                own, events=own.events + len(chunk), digest=(own.digest + digest) % _DIGESTS
            )
    except BaseException:
        # What is left behind is swept after a day; it is no reason to hide the error.
        with suppress(Exception):
            discard(connection, [replace(own, events=1)])
        raise
    return own


def _stage_chunk(connection: Any, own: Stage, number: int, chunk: list[Row]) -> None:
    placed = [_placed(connection, own.events + place, row) for place, row in enumerate(chunk)]
    columns = columns_of(placed)
    del columns["dedup_keys"]
    binds = packed(connection, **columns)
    database.call(connection, "stage_events", stage=str(own.id), chunk=number, **binds)


def publish_staged(
    connection: Any, writer: str, version: int, stages: Sequence[Stage]
) -> int | None:
    """Publish stages in the caller's transaction, in their order.  Returns how many events.

    None when this version of the writer was published before: then the stages are removed.
    WriteDiffers when it was published with other rows.  WriteLost when a stage is not complete.
    """
    binds = {"writer": writer, "version": version, **_which(stages)}
    if not database.call(connection, "claim_rows", **binds)[0][0]:
        discard(connection, stages)
        return None
    total = 0
    for each in stages:
        if each.events:
            rows = database.call(
                connection, "publish_staged", stage=str(each.id), events=each.events
            )
            total += int(rows[0][0])
    return total


def _which(stages: Sequence[Stage]) -> dict[str, Any]:
    """How a claim says which rows it is for."""
    digest = sum(each.digest for each in stages) % _DIGESTS
    return {
        "events": sum(each.events for each in stages),
        "digest": f"{digest:0{2 * _DIGEST_BYTES}x}",
    }


def _digest(row: Row, message: Message) -> int:
    """What a row is known by.

    It is what the caller gave: not an id that was made here, nor a trace or a partition that was
    added, which a repetition has otherwise.
    """
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for each in (
        row.topic,
        row.payload,
        row.key,
        row.type,
        row.content_type,
        None if message.headers is None else json.dumps(message.headers, sort_keys=True),
        message.event_id,
        message.partition,
        row.not_before and row.not_before.astimezone(UTC),
    ):
        given = each if isinstance(each, bytes) else str(each).encode()
        found.update(b"-" if each is None else b"%d:%b" % (len(given), given))
    return int.from_bytes(found.digest())


def discard(connection: Any, stages: Iterable[Stage]) -> None:
    """Remove stages that are not to be published."""
    ids = [str(each.id) for each in stages if each.events]
    if ids:
        database.call(connection, "discard_staged", stages=ids)


def _placed(connection: Any, place: int, row: Row) -> Row:
    known = known_topics(connection)
    if row.dedup_key is not None:
        raise InvalidArgument(
            f"event {place}: a stage knows no dedup keys",
            hint="the version of the write guards against repetitions",
        )
    placed = known.placed(row)
    if placed is not None:
        return placed
    try:
        return run(connection, known.asked_for(row))
    except PenstockError as error:
        raise outgoing.at(place, error) from None


def _chunks(source: Iterable[_Given]) -> Iterator[list[_Given]]:
    chunk: list[_Given] = []
    size = 0
    for row, message in source:
        chunk.append((row, message))
        size += len(row.payload)
        if len(chunk) == _CHUNK_EVENTS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
