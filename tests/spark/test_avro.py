"""Avro payloads as columns: schemas, values, what does not fit, and payloads that name a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from fastavro import schemaless_writer
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

import penstock.spark
from penstock.errors import InvalidArgument, PayloadMisfit
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.spark.avro_schemas import avro_schema
from penstock.spark.avro_values import AvroPayloads
from penstock.spark.drift import MISSING, NEW, OTHER_TYPE, Walk
from penstock.spark.json_values import MISFIT
from penstock.spark.schemas import parse_schema
from penstock.spark.source import PenstockSource
from tests.contract.databases import ContractDatabase, PostgresDatabase
from tests.kit.log import TOPIC, drain, topic
from tests.spark.kit import frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}


def record(**fields: Any) -> dict[str, Any]:
    """The schema of a record."""
    return {
        "type": "record",
        "name": "shop.Order",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


def logical(stored: str, name: str) -> dict[str, str]:
    """A logical type."""
    return {"type": stored, "logicalType": name}


def written(schema: dict[str, Any], **fields: object) -> bytes:
    """A payload of a schema."""
    stream = BytesIO()
    schemaless_writer(stream, schema, fields)
    return stream.getvalue()


def converted(kind: Any, payload: bytes) -> tuple[Any, list[str]]:
    """The field ``f`` of a payload, and what did not fit."""
    text, bad = json.dumps(record(f=kind)), list[str]()
    reads = AvroPayloads(text, None)
    value = reads.parse(payload)
    if value is MISFIT:
        return MISFIT, bad
    return reads.converter(avro_schema(text).columns)(value, bad)["f"], bad


POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
SUIT = {"type": "enum", "name": "Suit", "symbols": ["CLUBS", "HEARTS"]}


@pytest.mark.parametrize(
    ("kind", "stored", "value", "column", "expected"),
    [
        ("boolean", None, True, "boolean", True),
        ("int", None, -(1 << 31), "int", -(1 << 31)),
        ("long", None, 1 << 62, "bigint", 1 << 62),
        ("float", None, 0.5, "float", 0.5),
        ("double", None, float("inf"), "double", float("inf")),
        ("string", None, "grün 🟢", "string", "grün 🟢"),
        ("bytes", None, b"\x00\xff", "binary", b"\x00\xff"),
        (["null", "int"], None, None, "int", None),
        (["int", "null"], None, 7, "int", 7),
        (SUIT, None, "HEARTS", "string", "HEARTS"),
        ({"type": "fixed", "name": "F", "size": 2}, None, b"ab", "binary", b"ab"),
        ({"type": "array", "items": ["null", "int"]}, None, [1, None], "array<int>", [1, None]),
        ({"type": "map", "values": "int"}, None, {"a": 1}, "map<string,int>", [("a", 1)]),
        (POINT, None, {"x": 1}, "struct<x:int>", {"x": 1}),
        (DECIMAL, None, Decimal("-123.45"), "decimal(5,2)", Decimal("-123.45")),
        (logical("int", "date"), None, date(2026, 3, 1), "date", date(2026, 3, 1)),
        (
            logical("long", "timestamp-millis"), "long", 1_000,
            "timestamp", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        ),
        (
            logical("long", "timestamp-micros"), "long", -1,
            "timestamp", datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ),
        (
            logical("long", "local-timestamp-micros"), "long", 1,
            "timestamp_ntz", datetime(1970, 1, 1, 0, 0, 0, 1),
        ),
        (logical("string", "uuid"), "string", "not one", "string", "not one"),
        (logical("int", "time-millis"), "int", -5, "int", -5),
        (logical("long", "timestamp-nanos"), "long", 5, "bigint", 5),
    ],
)  # fmt: skip
def test_types_and_values(
    kind: Any, stored: Any, value: object, column: str, expected: object
) -> None:
    found = avro_schema(json.dumps(record(f=kind))).columns
    assert found.simpleString() == f"struct<f:{column}>"
    assert found == parse_schema(found.json())
    assert converted(kind, written(record(f=stored or kind), f=value)) == (expected, [])


@pytest.mark.parametrize(
    ("kind", "stored", "value"),
    [
        (DECIMAL, "bytes", (123456).to_bytes(4, "big")),
        (DECIMAL, "bytes", (100000).to_bytes(4, "big")),
    ],
)
def test_a_decimal_of_too_many_digits_does_not_fit(kind: Any, stored: str, value: object) -> None:
    """Guard: fastavro's rounding is seen by the exponent."""
    assert converted(kind, written(record(f=stored), f=value)) == (None, ["f"])


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("string", b"\x06ab"),
        ("string", b"\x02a!"),
        ("string", b"\x02\xff"),
        ("string", b"\x01"),
        ("string", b"\xff" * 12),
        (SUIT, b"\x08"),
        (["null", "int"], b"\x06"),
        (logical("int", "date"), written(record(f="int"), f=(1 << 31) - 1)),
        (logical("long", "timestamp-micros"), written(record(f="long"), f=1 << 62)),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02"),
    ],
    ids=["cut", "longer", "latin", "negative", "endless", "enum", "union", "date", "time", "array"],
)
def test_what_is_no_avro_of_the_schema(kind: Any, payload: bytes) -> None:
    """Guard: the payload has to end where the record does."""
    assert converted(kind, payload) == (MISFIT, [])


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ("", "no Avro schema"),
        ("{}", "no Avro schema"),
        ("[1]", "no Avro schema"),
        ('"int"', "no record"),
        ('{"type": "struct", "fields": []}', "no Avro schema"),
        ("[" * 50_000, "no Avro schema"),
        (record(), "struct without fields"),
        (record(f="Unknown"), "no Avro schema"),
        (record(f=["int", "string"]), "union of several types at f,"),
        (record(f=["null"]), "union of several types"),
        (record(f="null"), "has null at f"),
        (record(f={"type": "array", "items": "null"}), r"has null at f\[\]"),
        (record(f=["null", "Order"]), "a record within itself at f"),
        (record(f={"type": "fixed", "name": "F", "size": 0}), "fixed type without a size"),
        (record(f={**DECIMAL, "precision": 39}), "more than 38 digits"),
    ],
)
def test_a_schema_that_has_no_columns_is_refused(schema: Any, match: str) -> None:
    """Guard: nothing of no bytes can be repeated, so a short payload cannot keep a task busy."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(InvalidArgument, match=match):
        avro_schema(text)


def test_a_type_that_was_named_before() -> None:
    found = avro_schema(json.dumps(record(a=POINT, b=["null", "Point"]))).columns
    assert found.simpleString() == "struct<a:struct<x:int>,b:struct<x:int>>"


FIRST, SECOND = record(id="int", name="string"), record(id="long", price=["null", DECIMAL])
WANTED = record(id="long", price=["null", DECIMAL])
WANTED["fields"][1]["default"] = None
WRITERS = json.dumps({"1": json.dumps(FIRST), "700": json.dumps(SECOND)})
NAMED = [
    b"\0\0\0\0\x01" + written(FIRST, id=1, name="secret"),
    b"\0\0\0\x02\xbc" + written(SECOND, id=2, price=Decimal("1.25")),
    b"\0\0\0\0\x09" + written(FIRST, id=3, name="secret"),
    written(FIRST, id=4, name="secret"),
    b"\0\0\0",
    b"",
]


@pytest.mark.parametrize(
    ("writers", "match"),
    [
        ("1", "no JSON object"),
        ("{}", "no JSON object"),
        ('{"x": "{}"}', "'x' for the number"),
        ('{"9999999999": "{}"}', "for the number"),
        ('{"1": {}}', "schema 1 of decodeWriters is no text"),
        ('{"1": "[]"}', "schema 1 of decodeWriters: "),
    ],
)
def test_bad_schemas_of_writers_are_refused(writers: str, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        AvroPayloads(json.dumps(WANTED), writers)


def _published(db: ContractDatabase, payloads: Iterable[bytes]) -> None:
    with closing(db.connect()) as own:
        topic(own, 1)
        publish_batch(own, [Message(TOPIC, each, partition=0) for each in payloads])
        drain(own)


def _rows(
    db: ContractDatabase, schema: StructType | None = None, **options: object
) -> list[dict[str, Any]]:
    """What Spark would get, without Spark."""
    given = {"url": db.url, "topic": TOPIC, "decode": "avro", "decodeSchema": json.dumps(WANTED)}
    source = PenstockSource(
        CaseInsensitiveDict(given | {name: str(each) for name, each in options.items()})
    )
    if schema is None:
        found = source.schema()
        assert isinstance(found, StructType)
        schema = found
    reader = source.reader(schema)
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_payloads_name_the_schema_that_wrote_them(db: ContractDatabase) -> None:
    """Guard: a number that is not known is never read with another schema; no payload in errors."""
    _published(db, NAMED)
    found = _rows(db, decodeWriters=WRITERS)
    assert [row["value"] for row in found] == [
        {"id": 1, "price": None}, {"id": 2, "price": Decimal("1.25")}, None, None, None, None
    ]  # fmt: skip
    assert [row["_malformed"] for row in found] == [None, None, *NAMED[2:5], None]
    kept = _rows(db, decodeWriters=WRITERS, decodeMode="dropmalformed")
    assert [row["sequence"] for row in kept] == [1, 2, 6]
    with pytest.raises(PayloadMisfit, match=r"sequence 3 .* it is no Avro of these") as refused:
        _rows(db, decodeWriters=WRITERS, decodeMode="failfast")
    assert "secret" not in str(refused.value)


def test_a_schema_of_the_user_has_to_be_the_same(db: ContractDatabase) -> None:
    _published(db, [written(WANTED, id=5, price=None)])
    value = parse_schema("id bigint, price decimal(5,2)")
    assert _rows(db, StructType().add("value", value)) == [{"value": {"id": 5, "price": None}}]
    with pytest.raises(InvalidArgument, match="not what decodeSchema says"):
        _rows(db, StructType().add("value", parse_schema("id int")))
    with pytest.raises(InvalidArgument, match="decode=avro and a schema whose column value"):
        _rows(db, StructType().add("key", "string"))


def test_differences_are_those_of_what_was_written() -> None:
    walk = Walk(
        avro_schema(json.dumps(WANTED)).columns,
        AvroPayloads(json.dumps(WANTED), WRITERS, resolve=False),
    )
    assert walk.differences(NAMED[0]) == {
        ("price", MISSING, "decimal(5,2)", None), ("name", NEW, None, "string")
    }  # fmt: skip
    assert walk.differences(NAMED[1]) == set()
    assert walk.differences(NAMED[2]) == {("", OTHER_TYPE, "record", None)}
    other = AvroPayloads(json.dumps(FIRST), json.dumps({"1": json.dumps(FIRST)}), resolve=False)
    walk = Walk(parse_schema("id string, name date"), other)
    assert walk.differences(NAMED[0]) == {
        ("id", OTHER_TYPE, "string", "integer"), ("name", OTHER_TYPE, "date", "string")
    }  # fmt: skip


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_reads_the_columns_and_finds_drift(spark: SparkSession, database_url: str) -> None:
    penstock.spark.register(spark)
    db = PostgresDatabase("postgres", database_url)
    _published(db, NAMED)
    schema = json.dumps(WANTED)
    read = frame(spark, db, decode="avro", decodeSchema=schema, decodeWriters=WRITERS)
    found = read.orderBy("sequence").select("value.*", "_malformed").toArrow().to_pylist()
    assert [(row["id"], row["price"]) for row in found[:3]] == [
        (1, None), (2, Decimal("1.25")), (None, None)
    ]  # fmt: skip
    drift = penstock.spark.schema_drift(
        spark, TOPIC, schema, url=db.url, decode="avro", decodeWriters=WRITERS
    )
    assert [(each.field, each.kind, each.events) for each in drift] == [
        ("", OTHER_TYPE, 3), ("name", NEW, 1), ("price", MISSING, 1)
    ]  # fmt: skip
    with pytest.raises(InvalidArgument, match="no Avro schema"):
        penstock.spark.schema_drift(spark, TOPIC, parse_schema("id int"), decode="avro")
    db.close()
