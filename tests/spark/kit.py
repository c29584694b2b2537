"""Logs for the tests of the data source, and what a data frame has to hold of them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import penstock
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.spark.columns import COLUMNS
from penstock.spark.options import read_options
from penstock.spark.planning import batch_ranges
from penstock.spark.ranges import SourceRange
from tests.contract.databases import ContractDatabase
from tests.kit.log import TOPIC, drain, topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]

#: key, type, content type, headers, payload: what tends to be changed on the way.
_ODD: list[tuple[str | None, str, str, dict[str, Any] | None, bytes]] = [
    (None, "", "application/octet-stream", None, b""),
    ("", "t", "text/plain", {}, b"\x00\xff\x00"),
    ("zürich-🏦-账户", "größe", "text/plain; charset=utf-8", {"ü": "💶"}, "grün 🟢".encode()),
    ("line\nbreak", "a b", "x/y", {"n": 1.5, "big": 12345678901234567890}, b"\r\n"),
    ("k" * 255, "t" * 200, "c/d", {"b": [1, None, True]}, bytes(range(256)) * 40),
]


def published(db: ContractDatabase, events: int, *, partitions: int = 2, odd: bool = True) -> int:
    """A topic with so many sequenced events, by turns over the partitions.  Returns how many."""
    with closing(db.connect()) as connection:
        topic(connection, partitions)
    return publish_more(db, events, partitions=partitions, odd=odd)


def publish_more(
    db: ContractDatabase, events: int, *, partitions: int = 2, odd: bool = True, first: int = 0
) -> int:
    """The same for a topic that is there; ``first`` is the number of the first event."""
    messages = [
        Message(
            TOPIC, b"%d" % n, key=f"k{n}", type="even" if n % 2 == 0 else "odd",
            partition=n % partitions,
        )
        for n in range(first, first + events)
    ]  # fmt: skip
    if odd:
        messages += [
            Message(
                TOPIC, payload, key=key, type=kind, content_type=content, headers=headers,
                partition=number,
            )
            for number in range(partitions)
            for key, kind, content, headers, payload in _ODD
        ]  # fmt: skip
    with closing(db.connect(autocommit=False)) as connection:
        publish_batch(connection, messages)
        connection.commit()
    with closing(db.connect()) as connection:
        drain(connection)
    return len(messages)


def logged(db: ContractDatabase, *, partitions: int = 2) -> list[Row]:
    """Every event that fetch returns, as rows of the data frame's columns, in order."""
    rows = []
    with closing(db.connect()) as connection:
        for partition in range(partitions):
            position = 1
            while found := penstock.fetch(connection, TOPIC, partition, position, 1_000):
                rows += [
                    (
                        TOPIC, partition, None, event.sequence, str(event.event_id), event.key,
                        event.type, event.content_type, event.headers, bytes(event.payload),
                        event.created_at, event.sequenced_at, event.history,
                    )
                    for event in found
                ]  # fmt: skip
                position += len(found)
    return rows


def frame(spark: SparkSession, db: ContractDatabase, **options: object) -> DataFrame:
    """The topic as a data frame."""
    reader = spark.read.format("penstock").option("url", db.url).option("topic", TOPIC)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def planned(db: ContractDatabase, **options: object) -> list[SourceRange]:
    """The ranges that a batch read with these options has, without Spark."""
    given = {"url": db.url, "topic": TOPIC, **{name: str(each) for name, each in options.items()}}
    with closing(db.connect()) as connection:
        return batch_ranges(connection, read_options(given))


ALL = tuple(COLUMNS)
