"""JSON payloads as columns: schemas, values, what does not fit, and what is inferred."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from ops.seal import seal
from penstock.archive.targets import Target
from penstock.errors import InvalidArgument, PayloadMisfit
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from penstock.spark import json_values
from penstock.spark.decoding import Decoded
from penstock.spark.json_values import MISFIT, converter, has_decimal, parse
from penstock.spark.options import Decode
from penstock.spark.sampling import inferred
from penstock.spark.schemas import parse_schema
from penstock.spark.source import PenstockSource
from tests.contract.databases import ContractDatabase
from tests.kit.copies import copy_all, drop
from tests.kit.log import TOPIC, drain, topic

DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000


def converted(kind: str, text: str) -> tuple[Any, list[str]]:
    """The field ``f`` of a payload, and what did not fit."""
    schema, bad = parse_schema(f"f {kind}"), list[str]()
    value = parse(f'{{"f": {text}}}'.encode(), exact=has_decimal(schema))
    if value is MISFIT:
        return MISFIT, bad
    return converter(schema)(value, bad)["f"], bad


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("int", "2147483647", 2147483647),
        ("tinyint", "-128", -128),
        ("bigint", "null", None),
        ("double", "1", 1.0),
        ("double", "1e3", 1000.0),
        ("float", "0.5", 0.5),
        ("boolean", "true", True),
        ("string", '"grün 🟢"', "grün 🟢"),
        ("string", "1.5", "1.5"),
        ("string", '{"a": [1, null]}', '{"a":[1,null]}'),
        ("decimal(5,2)", "123.45", Decimal("123.45")),
        ("decimal(38,20)", "0.12345678901234567890", Decimal("0.12345678901234567890")),
        ("decimal(5,2)", '"1.5"', Decimal("1.5")),
        ("decimal(5,2)", "0e50", Decimal("0.00")),
        ("decimal(5,2)", "-0e999999", Decimal("0.00")),
        ("decimal(5,2)", '"0e-50"', Decimal("0.00")),
        ("binary", '"AP8="', b"\x00\xff"),
        ("date", '"2026-03-01"', date(2026, 3, 1)),
        ("timestamp", '"2026-03-01T10:00:00+02:00"', datetime(2026, 3, 1, 8, tzinfo=UTC)),
        ("timestamp_ntz", '"2026-03-01T10:00:00"', datetime(2026, 3, 1, 10)),
        ("array<int>", "[1, null]", [1, None]),
        ("map<string, int>", '{"a": 1}', [("a", 1)]),
        ("struct<a: int, b: string>", '{"a": 1, "c": 2}', {"a": 1, "b": None}),
    ],
)
def test_what_fits_is_converted(kind: str, text: str, expected: object) -> None:
    value, bad = converted(kind, text)
    assert (value, bad) == (expected, [])
    pa.array([value], to_arrow_type(parse_schema(f"f {kind}")["f"].dataType, timezone="UTC"))


def _payloads(*given: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "partition": [3] * len(given),
            "sequence": list(range(7, 7 + len(given))),
            "payload": list(given),
        }
    )


@pytest.mark.parametrize("mode", ["permissive", "failfast", "dropmalformed"])
def test_a_value_that_arrow_does_not_take_is_a_misfit_of_its_event(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: whatever a converter lets through, one event never ends the read without its place."""
    atoms: dict[Any, Any] = {**json_values._ATOMS, t.LongType: lambda value, _: value}
    monkeypatch.setattr(json_values, "_ATOMS", atoms)
    monkeypatch.setattr(json_values, "_BITS", {})
    schema = parse_schema("f bigint")
    made = Decoded("a/b", ("sequence",), ("sequence", "_malformed", "value"), schema,
                   Decode("json", None, None, 9, mode))  # fmt: skip
    events = _payloads(b'{"f": 1}', b'{"f": 99999999999999999999}', b'{"f": 2}')
    if mode == "failfast":
        with pytest.raises(PayloadMisfit, match="sequence 8 in partition 3 of a/b"):
            list(made.batches(iter([events])))
        return
    (batch,) = made.batches(iter([events]))
    rows = [tuple(row.values()) for row in batch.to_pylist()]
    whole = [(7, None, {"f": 1}), (8, b'{"f": 99999999999999999999}', None), (9, None, {"f": 2})]
    assert rows == [row for row in whole if mode == "permissive" or row[1] is None]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "2147483648"),
        ("int", "1.0"),
        ("int", '"1"'),
        ("bigint", "true"),
        ("double", "1e999"),
        ("double", '"1"'),
        ("double", "1" + "0" * 400),
        ("float", "1e39"),
        ("boolean", "1"),
        ("string", '"\\ud800"'),
        ("decimal(5,2)", "1.234"),
        ("decimal(5,2)", "1234.5"),
        ("decimal(5,2)", '"NaN"'),
        ("decimal(5,2)", "1e999999"),
        ("binary", '"?"'),
        ("date", '"yesterday"'),
        ("timestamp", '"2026-03-01T10:00:00"'),
        ("timestamp", '"0001-01-01T00:00:00+10:00"'),
        ("timestamp_ntz", '"2026-03-01T10:00:00Z"'),
        ("array<int>", "{}"),
        ("map<string, int>", "[]"),
        ("struct<a: int>", "[]"),
    ],
)
def test_what_does_not_fit_is_null_and_named(kind: str, text: str) -> None:
    assert converted(kind, text) == (None, ["f"])


def test_a_part_that_does_not_fit_costs_only_itself() -> None:
    assert converted("array<int>", '[1, "x"]') == ([1, None], ["an element"])
    assert converted("struct<a: int, b: int>", '{"a": "x", "b": 2}') == ({"a": None, "b": 2}, ["a"])


@pytest.mark.parametrize(
    "payload",
    [b"[1]", b"1", b"{", b'{"a": NaN}', b'{"a": "\xff"}', b"\xef\xbb\xbf{}", DEEP.encode()],
    ids=["array", "number", "cut", "NaN", "latin", "mark", "deep"],
)
def test_what_is_no_json_object(payload: bytes) -> None:
    assert parse(payload) is MISFIT


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a int, b string", "struct<a:int,b:string>"),
        ("struct<a: INTEGER>", "struct<a:int>"),
        ("`odd, name` long, `struct` date", "struct<odd, name:bigint,struct:date>"),
        ("a array<map<string,struct<b:decimal(5,2)>>>",
         "struct<a:array<map<string,struct<b:decimal(5,2)>>>>"),
        (StructType().add("a", "long", nullable=False).json(), "struct<a:bigint>"),
    ],
)  # fmt: skip
def test_schemas(text: str, plain: str) -> None:
    found = parse_schema(text)
    assert found.simpleString() == plain
    assert all(field.nullable for field in found.fields)


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "a int,", "a int b", "a array<int", "a number", "a decimal(39)", "a decimal(2,3)",
        "a int NOT NULL", "a map<int, int>", "a int, a int", "a int>, b struct<c int", "{}", "{",
        '{"type": "struct"}', '{"fields": 1, "type": "struct"}', "a ;", "a variant",
        "a " + "array<" * 100 + "int" + ">" * 100,
    ],
)  # fmt: skip
def test_a_bad_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="schema"):
        parse_schema(text)


def test_what_is_inferred() -> None:
    samples: list[object] = [
        {"n": 1, "x": 1, "s": "a", "mixed": 1, "o": {"a": 1}, "list": [], "none": None},
        {"n": 2, "x": 1.5, "mixed": "a", "o": {"b": True}, "list": [1, None], "late": {}},
        {"big": 1 << 70, "bad\x00": 1, "": 1},
        [1],
    ]
    found = inferred(json.dumps(each).encode() for each in samples)
    assert found is not None
    assert found.simpleString() == (
        "struct<n:bigint,x:double,s:string,mixed:string,o:struct<a:bigint,b:boolean>,"
        "list:array<bigint>,none:string,late:string,big:string>"
    )
    assert inferred([b"", b"{}", b"[]"]) is None
    with pytest.raises(InvalidArgument, match="more than 1000 fields"):
        inferred([json.dumps({f"k{n}": n for n in range(1_001)}).encode()])


GOOD = [b'{"id": %d, "name": "n%d"}' % (n, n) for n in range(20)]
ODD = [b"secret", b'{"id": "secret", "name": "x"}', b""]


def _published(db: ContractDatabase, payloads: Iterable[bytes]) -> None:
    with closing(db.connect()) as own:
        topic(own, 1)
        publish_batch(own, [Message(TOPIC, each, partition=0) for each in payloads])
        drain(own)


def _rows(
    db: ContractDatabase, schema: StructType | None = None, **options: object
) -> list[dict[str, Any]]:
    """What Spark would get, without Spark."""
    given = {"url": db.url, "topic": TOPIC, "decode": "json"}
    given |= {name: str(each) for name, each in options.items()}
    source = PenstockSource(CaseInsensitiveDict(given))
    if schema is None:
        found = source.schema()
        assert isinstance(found, StructType)
        schema = found
    reader = source.reader(schema)
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_payloads_are_decoded_hot_and_cold(db: ContractDatabase, tmp_path: Path) -> None:
    _published(db, GOOD + ODD)
    hot = _rows(db, decodeSample=20)
    assert [row["value"] for row in hot[:20]] == [{"id": n, "name": f"n{n}"} for n in range(20)]
    assert [row["value"] for row in hot[20:]] == [None, {"id": None, "name": "x"}, None]
    assert [row["_malformed"] for row in hot[20:]] == [*ODD[:2], None]
    assert not any(row["_malformed"] for row in hot[:20])

    target = Target("nas", str(tmp_path / "nas"))
    with closing(db.connect()) as own:
        seal(own, TOPIC, max_events=5, max_age_seconds=0)
        copy_all(own, TOPIC, target)
        drop(own, TOPIC, [target])
    cold = _rows(db, decodeSample=20, targets=json.dumps({target.name: target.uri}))
    assert [(row["value"], row["_malformed"]) for row in cold] == [
        (row["value"], row["_malformed"]) for row in hot
    ]


def test_modes(db: ContractDatabase) -> None:
    """Guard: no payload is in an error."""
    _published(db, GOOD + ODD)
    kept = _rows(db, decodeSchema="id int", decodeMode="dropMalformed")
    assert [row["sequence"] for row in kept] == [*range(1, 21), 23]
    assert kept[20]["value"] is None
    for skipped, why in ((20, "it is no JSON object"), (21, "id")):
        with pytest.raises(PayloadMisfit) as refused:
            _rows(
                db, decodeSchema="id int", decodeMode="failfast",
                startingOffsets=json.dumps({"0": skipped}),
            )  # fmt: skip
        said = str(refused.value)
        assert f"sequence {skipped + 1} in partition 0 of {TOPIC} does not fit" in said
        assert why in said
        assert "secret" not in said


def test_a_schema_of_the_user_chooses(db: ContractDatabase) -> None:
    _published(db, GOOD[:2])
    value = parse_schema("id bigint")
    found = _rows(db, StructType().add("value", value).add("key", "string"))
    assert found == [{"value": {"id": n}, "key": None} for n in range(2)]
    with pytest.raises(InvalidArgument, match="value is missing or no struct"):
        _rows(db, StructType().add("key", "string"))
    with pytest.raises(InvalidArgument, match="not what decodeSchema says"):
        _rows(db, StructType().add("value", value), decodeSchema="id int")
    with pytest.raises(InvalidArgument, match="_malformed with another type"):
        _rows(db, StructType().add("value", value).add("_malformed", "string"))


def test_the_sample_is_shared_and_must_have_something(db: ContractDatabase) -> None:
    _published(db, [b"{}", *GOOD, b'{"late": 1}'])
    assert set(_rows(db, decodeSample=2)[1]["value"]) == {"id", "name"}
    assert set(_rows(db)[1]["value"]) == {"id", "name", "late"}
    with pytest.raises(InvalidArgument, match="first 1 events of the read have no JSON object"):
        _rows(db, decodeSample=1)
