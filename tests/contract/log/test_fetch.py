"""Reading the log by sequence: the same rows of the same types on every engine."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import log
from penstock.errors import BelowLowSequence, InvalidArgument, InvalidPartition, TopicNotFound
from penstock.publishing.publish import publish, publish_batch
from penstock.records import Message
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.kit.log import TOPIC, drain, put, read, texts, topic

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "kit" / "partition_vectors.json").read_text("utf-8")
)
#: Keys that an event may have.
VECTORS = [each for each in GOLDEN["vectors"] if len(each[0]) <= 255]

#: What a round trip must not change: quotes, backslashes, every plane of Unicode, all bytes.
TEXTS = [
    "",
    "a",
    "it's",
    'a"b',
    "back\\slash",
    "100%",
    "%(x)s",
    "日本",
    "😀",
    "tab\tline\n",
    "\\u0041",
]
HEADERS: list[dict[str, Any]] = [
    {},
    {"b": 1, "a": [1, 2.5, None, True, {"deep": 'ü😀\\"'}]},
    {"large": 10**40, "small": 1e-7},
    {"": "", "it's": "%s"},
]


def test_every_column_comes_back_as_it_went_in(db: ContractDatabase) -> None:
    """Guard: what the procedure stores and the driver decodes is what was given."""
    own = db.connect()
    topic(own)
    event_id, before = uuid.uuid4(), datetime.now(UTC)
    publish(
        own, TOPIC, bytes(range(256)), key="k", type="t", content_type="c/d",
        headers={"a": 1}, event_id=event_id,
    )  # fmt: skip
    drain(own)
    (event,) = read(own)
    assert (event.topic, event.partition, event.sequence) == (TOPIC, 0, 1)
    assert (event.event_id, event.key, event.type) == (event_id, "k", "t")
    assert (event.content_type, event.headers, event.history) == ("c/d", {"a": 1}, 1)
    assert event.payload == bytes(range(256))
    for moment in (event.created_at, event.sequenced_at):
        assert moment.utcoffset() == timedelta(0)
        assert abs(moment - before) < timedelta(minutes=1)


@pytest.mark.parametrize("way", ["single", "batch"])
def test_texts_and_headers_are_kept(db: ContractDatabase, way: str) -> None:
    """Guard: utf8mb4 and a text column for headers, which JSON would change."""
    own = db.connect()
    topic(own)
    messages = [
        Message(TOPIC, text.encode(), key=text, type=text, content_type=text, headers=headers)
        for text in TEXTS
        for headers in HEADERS
    ]
    if way == "batch":
        publish_batch(own, messages)
    else:
        for each in messages:
            publish(
                own, TOPIC, each.payload, key=each.key, type=each.type,
                content_type=each.content_type, headers=each.headers,
            )  # fmt: skip
    drain(own)
    found = read(own)
    for event, message in zip(found, messages, strict=True):
        assert (event.key, event.type) == (message.key, message.type)
        assert (event.content_type, event.payload) == (message.content_type, message.payload)
        assert event.headers == message.headers


def test_a_null_key_is_not_an_empty_one(db: ContractDatabase) -> None:
    """Guard: NULL stays NULL on the way."""
    own = db.connect()
    topic(own)
    publish(own, TOPIC, b"1")
    publish(own, TOPIC, b"2", key="")
    publish_batch(own, [Message(TOPIC, b"3"), Message(TOPIC, b"4", key="")])
    drain(own)
    assert [event.key for event in read(own)] == [None, "", None, ""]


@pytest.mark.parametrize(("start", "most", "expected"), [
    (1, 3, [1, 2, 3]), (4, 100, [4, 5, 6, 7]), (7, 1, [7]), (8, 10, []), (10**18, 5, []),
])  # fmt: skip
def test_a_range_is_cut_where_it_is_asked(
    db: ContractDatabase, start: int, most: int, expected: list[int]
) -> None:
    """Guard: the bounds of read_log, over chunks of one and of several events."""
    own = db.connect()
    topic(own)
    for size in (1, 3, 1, 2):
        publish_batch(own, [Message(TOPIC, b"x")] * size)
        drain(own)
    found = log.fetch(own, TOPIC, 0, start, most)
    assert [event.sequence for event in found] == expected


def test_long_chunks_are_read_from_the_middle(db: ContractDatabase) -> None:
    """Guard: a sequence is a place in the packed ids of its chunk."""
    own = db.connect()
    topic(own)
    publish_batch(own, [Message(TOPIC, b"%d" % n) for n in range(2500)])
    drain(own)
    for start in (1, 2, 999, 1000, 1001, 1999, 2500):
        (event,) = log.fetch(own, TOPIC, 0, start, 1)
        assert (event.sequence, int(event.payload)) == (start, start - 1)
    assert len(log.fetch(own, TOPIC, 0, 900, 1200)) == 1200


def test_what_is_not_sequenced_is_not_read(db: ContractDatabase) -> None:
    """S8. Guard: fetch goes by the index of the log."""
    own = db.connect()
    topic(own)
    put(own, "1")
    with open_transaction(db) as other:
        put(other, "2")
        drain(own)
        put(own, "3")
        assert texts(own) == ["1"]
        assert log.high_watermarks(own, TOPIC) == {0: 1}


def test_refusals_are_typed(db: ContractDatabase) -> None:
    """Guards: each check in front of a fetch."""
    own = db.connect()
    topic(own)
    put(own, "1")
    drain(own)
    db.run("UPDATE penstock.partitions SET low_sequence = 2")
    with pytest.raises(BelowLowSequence, match="below the low sequence 2"):
        log.fetch(own, TOPIC, 0, 1)
    with pytest.raises(TopicNotFound):
        log.fetch(own, "tests/nothing", 0, 1)
    with pytest.raises(InvalidPartition):
        log.fetch(own, TOPIC, 1, 2)
    wrong: list[tuple[Any, Any]] = [(0, 1), (2, 0), (2, 100_001), (10**19, 1)]
    for start, most in [*wrong, (True, 1), (2, 1.5), ("2", 1), (2, None)]:
        with pytest.raises(InvalidArgument):
            log.fetch(own, TOPIC, 0, start, most)


def test_keys_go_where_the_golden_vectors_say(db: ContractDatabase) -> None:
    """S7. Guard: CRC-32 of the UTF-8 key modulo partitions, in single publishes and in batches."""
    own = db.connect()
    partitions = 7
    placed = {key: places[GOLDEN["partitions"].index(partitions)] for key, _, places in VECTORS}
    topic(own, partitions)
    for key in placed:
        publish(own, TOPIC, b"single", key=key)
    publish_batch(own, [Message(TOPIC, b"batch", key=key) for key in placed])
    drain(own)
    found = [(event.key, partition) for partition in range(7) for event in read(own, partition)]
    assert sorted(found) == sorted([*placed.items()] * 2)


def test_events_without_a_key_are_spread(db: ContractDatabase) -> None:
    """Guard: partitions take turns."""
    own = db.connect()
    topic(own, 4)
    for _ in range(8):
        put(own, "single")
    publish_batch(own, [Message(TOPIC, b"batch")] * 40)
    drain(own)
    assert all(8 <= mark <= 16 for mark in log.high_watermarks(own, TOPIC).values())


def test_a_gap_in_the_index_is_told(db: ContractDatabase) -> None:
    """Guard: sequence_gaps; never seen in a sound log."""
    own = db.connect()
    topic(own)
    for _ in range(3):
        put(own, "x")
        drain(own)
    assert log.gaps(own, TOPIC) == []
    db.run("DELETE FROM penstock.chunks WHERE first_sequence = 2")
    (gap,) = log.gaps(own, TOPIC)
    assert (gap.partition, gap.expected, gap.found) == (0, 2, 3)
    # What an earlier look has found whole is not read again; the chunk of its end has to be there.
    assert log.gaps(own, TOPIC, [1]) == log.gaps(own, TOPIC, [2]) == [gap]
    assert log.gaps(own, TOPIC, [3]) == []
