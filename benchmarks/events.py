"""The events of every figure, in the forms for Penstock and for the bare table."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from penstock.publishing.event_ids import uuid7s
from penstock.records import Message

PAYLOAD_BYTES = 200
KEYS = 5_000
TYPE = "account.changed"
CONTENT_TYPE = "application/octet-stream"
JSONB_VERSION = b"\x01"
CHUNK = 500

#: The types for COPY of the columns of ``copy_rows``. The headers are raw binary jsonb.
COPY_TYPES = ("uuid", "text", "text", "text", "bytea", "bytea")


def messages(topic: str, count: int) -> list[Message]:
    """Full-width events, the same in every run: key, type, content type, headers and 200 bytes."""
    chance = random.Random(20)
    return [
        Message(
            topic,
            chance.randbytes(PAYLOAD_BYTES),
            key=f"account-{chance.randrange(KEYS)}",
            type=TYPE,
            content_type=CONTENT_TYPE,
            headers={"source": "bench", "number": number},
        )
        for number in range(count)
    ]


def copy_rows(events: Iterable[Message]) -> Iterator[tuple[Any, ...]]:
    """Rows of the bare table for COPY, with the headers in binary form: psycopg's fastest way."""
    for event, new_id in with_ids(events):
        headers = JSONB_VERSION + json.dumps(event.headers).encode()
        yield new_id, event.key, event.type, event.content_type, headers, event.payload


def arrow_table(events: Sequence[Message]) -> pa.Table:
    """Events as the table that `publish_table` takes."""
    return pa.table({
        "key": [event.key for event in events],
        "type": [event.type for event in events],
        "content_type": [event.content_type for event in events],
        "headers": [json.dumps(event.headers) for event in events],
        "payload": [event.payload for event in events],
    })  # fmt: skip


def table_rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows of such a table for COPY, with new ids."""
    for batch in table.to_batches(max_chunksize=CHUNK):
        columns: list[list[Any]] = [each.to_pylist() for each in batch.columns]
        keys, types, content_types, headers, payloads = columns
        written = [JSONB_VERSION + each.encode() for each in headers]
        ids = uuid7s(batch.num_rows)
        yield from zip(ids, keys, types, content_types, written, payloads, strict=True)


def with_ids(events: Iterable[Message]) -> Iterator[tuple[Message, uuid.UUID]]:
    """Each event with an id that rises with time.  The id is made when the event is taken."""
    source = iter(events)
    while chunk := list(islice(source, CHUNK)):
        yield from zip(chunk, uuid7s(len(chunk)), strict=True)
