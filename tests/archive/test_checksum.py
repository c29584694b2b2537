"""The canonical digest: fixed vectors, and the database's own function to compare with."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import random
import uuid
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.archive.checksum import EpochChecksum, digests
from penstock.archive.format import FILE_SCHEMA
from tests.archive.logs import ODD_EVENTS
from tests.kit.digests import DigestFields, batch_of, event_digest, microseconds, spelt_digest

EVENT_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
CREATED = dt.datetime(2026, 11, 21, 12, 34, 56, 789012, tzinfo=dt.UTC)

GOLDEN = {
    "plain": (
        DigestFields(1, EVENT_ID, "k", "t", "text/plain", '{"a": 1}', b"payload", 0),
        "4ee7c39a24c056e79a159dee921afff2281dc3be575b746fb16ad81cc614aeeb",
    ),
    "null key and headers, empty payload": (
        DigestFields(2, EVENT_ID, None, "", "application/octet-stream", None, b"", 1),
        "37bd67d85816638c755311ab810d65a9354be8269a01b8cf986b95bc8ef3896b",
    ),
    "empty key is not a null key": (
        DigestFields(2, EVENT_ID, "", "", "application/octet-stream", None, b"", 1),
        "31aae70f435e741e1d9053212a806a7e6fcaeb69620f3bbea3fda6e6f084e13f",
    ),
    "unicode": (
        DigestFields(
            2**63 - 1,
            EVENT_ID,
            "zürich-🏦",
            "größe",
            "text/plain",
            '{"ü": "💶"}',
            "grün 🟢".encode(),
            microseconds(CREATED),
        ),
        "92b630433549c2540fea7a5cf25dd541f77b797cb9ccc1281517916f84dca722",
    ),
    "before 1970": (
        DigestFields(3, EVENT_ID, "k", "t", "c/d", "{}", bytes(range(256)), -1),
        "ac63593c6edc9e8ac5951958ec6f9058e1bc573386fba5c6c3596db9c6a2ecc6",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str) -> None:
    """The digest never changes: archives of years ago must verify."""
    fields, expected = GOLDEN[name]

    assert event_digest(fields).hex() == expected


def test_by_hand() -> None:
    """One vector spelt out, so that another language can repeat it."""
    event = DigestFields(7, EVENT_ID, None, "t", "", "{}", b"\x00\x01", 1_000_000)
    spelt = (
        bytes.fromhex("0000000000000007")
        + bytes.fromhex(EVENT_ID.replace("-", ""))
        + bytes.fromhex("ffffffff")
        + bytes.fromhex("00000001")
        + b"t"
        + bytes.fromhex("00000000")
        + bytes.fromhex("00000002")
        + b"{}"
        + bytes.fromhex("00000002")
        + b"\x00\x01"
        + bytes.fromhex("00000000000f4240")
    )

    assert event_digest(event) == hashlib.sha256(spelt).digest()


@pytest.mark.parametrize("number", range(len(ODD_EVENTS)))
@pytest.mark.parametrize(
    "created",
    [
        CREATED,
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
        dt.datetime(2262, 4, 12, 1, 2, 3, 4, tzinfo=dt.timezone(dt.timedelta(hours=-9))),
    ],
)
def test_equals_the_database(
    connection: psycopg.Connection[tuple[Any, ...]], number: int, created: dt.datetime
) -> None:
    """Python's digest is the SQL function's, byte for byte."""
    key, kind, content_type, headers, payload = ODD_EVENTS[number]
    sent = None if headers is None else json.dumps(headers)
    connection.execute("SET search_path = penstock")
    row = connection.execute(
        "SELECT penstock.event_digest(%(n)s, %(id)s::uuid, %(key)s, %(type)s, %(content)s,"
        " %(headers)s::jsonb, %(payload)s, %(created)s), (%(headers)s::jsonb)::text",
        {
            "n": number,
            "id": EVENT_ID,
            "key": key,
            "type": kind,
            "content": content_type,
            "headers": sent,
            "payload": payload,
            "created": created,
        },
    ).fetchone()
    assert row is not None
    digest, stored_headers = row
    event = DigestFields(
        number,
        EVENT_ID,
        key,
        kind,
        content_type,
        stored_headers,
        payload,
        microseconds(created),
    )

    assert event_digest(event) == digest


def test_a_gap_is_refused() -> None:
    """An epoch with a hole, or in another order, has no checksum."""
    checksum = EpochChecksum()
    event = GOLDEN["plain"][0]
    checksum.add(batch_of(event))

    with pytest.raises(ValueError, match="3 follows 1"):
        checksum.add(batch_of(event._replace(sequence=3)))
    checksum.add(batch_of(event._replace(sequence=2)).slice(1))
    with pytest.raises(ValueError, match="5 follows 3"):
        checksum.add(batch_of(*(event._replace(sequence=each) for each in (2, 3, 5, 6))))
    assert checksum.event_count == 1


def test_epoch_checksum() -> None:
    """The checksum of an epoch is the hash of its events' digests."""
    checksum = EpochChecksum()
    events = [GOLDEN["plain"][0]._replace(sequence=number) for number in (5, 6, 7)]
    checksum.add(batch_of(*events[:2]))
    checksum.add(batch_of(events[2]))

    joined = b"".join(event_digest(event) for event in events)
    assert checksum.hexdigest() == hashlib.sha256(joined).hexdigest()
    assert (checksum.event_count, checksum.first_sequence, checksum.last_sequence) == (3, 5, 7)


def test_a_batch_has_the_digest_of_each_of_its_rows() -> None:
    """Also a part of a batch, whose buffers begin before its first row."""
    rng = random.Random(17)

    def text() -> str | None:
        return rng.choice([None, "", "k", "größe", "🏦" * rng.randint(1, 90)])

    events = [
        DigestFields(
            rng.randint(1, 2**63 - 1),
            str(uuid.UUID(int=rng.getrandbits(128))),
            text(),
            text(),
            text(),
            text(),
            rng.choice([None, b"", rng.randbytes(rng.randint(1, 400))]),
            rng.randint(-(2**60), 2**60),
        )
        for _ in range(300)
    ]
    batch, expected = batch_of(*events), [spelt_digest(event) for event in events]
    assert digests(batch) == expected
    assert digests(batch.slice(37, 101)) == expected[37:138]
    assert digests(batch.slice(300)) == []


@pytest.mark.parametrize("name", ["sequence", "event_id", "created_at"])
def test_what_every_event_has_cannot_be_missing(name: str) -> None:
    batch = batch_of(GOLDEN["plain"][0])
    at = batch.schema.get_field_index(name)
    empty = batch.set_column(at, FILE_SCHEMA.field(name), pa.nulls(1, batch.schema.field(at).type))
    with pytest.raises(ValueError, match="without sequence, event id or creation time"):
        digests(empty)
