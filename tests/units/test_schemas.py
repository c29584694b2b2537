"""What fits a schema, and which version may follow which: JSON Schema and Avro."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from penstock.errors import InvalidArgument
from penstock.publishing.schemas import avro, json_schema
from tests.kit.proof import proves

ACCOUNT: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string", "maxLength": 5}},
    "required": ["id"],
    "additionalProperties": False,
}


def changed(**more: Any) -> dict[str, Any]:
    """The schema with other properties or keywords."""
    properties = {**ACCOUNT["properties"], **more.pop("properties", {})}
    return ACCOUNT | {"properties": properties} | more


def reads(reader: Any, writer: Any) -> str:
    """Why one cannot read what was written with the other."""
    return json_schema.unreadable(
        json_schema.parsed(json.dumps(reader)), json_schema.parsed(json.dumps(writer))
    )


def test_a_payload_fits_or_the_place_is_named_and_nothing_of_it_repeated() -> None:
    schema = json_schema.parsed(json.dumps(ACCOUNT))
    assert json_schema.misfit(schema, b'{"id": 1}') == ""
    wrong = json_schema.misfit(schema, b'{"id": "secret"}')
    assert wrong == 'at /id it is not type "integer"'
    assert "not JSON" in json_schema.misfit(schema, b"{")
    assert "not JSON" in json_schema.misfit(schema, b"[" * 100_000)


@pytest.mark.parametrize(
    ("after", "reads_before", "is_read_before"),
    [
        (changed(properties={"more": {"type": "string"}}), True, False),
        (changed(properties={"name": {"type": "string"}}), True, False),
        (changed(properties={"name": {"type": "string", "maxLength": 4}}), False, True),
        (changed(properties={"id": {"type": "number"}}), True, False),
        (changed(properties={"id": {"type": ["integer", "null"]}}), True, False),
        (changed(properties={"id": {"type": "string"}}), False, False),
        (changed(required=["id", "name"]), False, True),
        (changed(required=[]), True, False),
        (changed(additionalProperties=True), True, False),
        (changed(properties={"id": {"enum": [1, 2]}}), False, True),
        (changed(properties={"id": {"type": "integer", "minimum": 0}}), False, True),
        (changed(title="an account", description="x"), True, True),
        (changed(properties={"name": {"type": "string", "pattern": "a"}}), False, False),
        (True, True, False),
        (False, False, True),
    ],
)
def test_a_version_reads_what_was_written_before_and_is_read_by_those_before(
    after: Any, reads_before: bool, is_read_before: bool
) -> None:
    assert (reads(after, ACCOUNT) == "", reads(ACCOUNT, after) == "") == (
        reads_before,
        is_read_before,
    )


def test_references_within_are_followed() -> None:
    wide = {"$defs": {"n": {"type": "number"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    narrow = {"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert reads(wide, narrow) == ""
    assert "/a" in reads(narrow, wide)
    tree = {"$defs": {"t": {"items": {"$ref": "#/$defs/t"}, "type": "array"}}, "$ref": "#/$defs/t"}
    assert reads(tree, tree | {"title": "x"}) == ""
    assert reads(wide, {}) != ""


_TYPES = st.sampled_from(["integer", "number", "string", "null"])
_LEAVES = st.one_of(
    st.just({}),
    st.builds(lambda t: {"type": t}, _TYPES),
    st.builds(lambda t, n: {"type": t, "minimum": n}, _TYPES, st.integers(0, 2)),
    st.builds(lambda v: {"enum": v}, st.lists(st.sampled_from([0, 1, "a", None]), min_size=1)),
)
_SCHEMAS = st.builds(
    lambda p, r, a: {"properties": p, "required": r, "additionalProperties": a},
    st.dictionaries(st.sampled_from("ab"), _LEAVES, max_size=2),
    st.lists(st.sampled_from("ab"), unique=True),
    st.one_of(st.booleans(), _LEAVES),
)
_OBJECTS = st.dictionaries(st.sampled_from("abc"), st.sampled_from([0, 1, 2.5, "a", None]))


@proves("a schema holds")
@given(_SCHEMAS, _SCHEMAS, st.lists(_OBJECTS, max_size=4))
def test_what_is_called_readable_is(reader: Any, writer: Any, values: list[Any]) -> None:
    if reads(reader, writer):
        return
    for value in values:
        if Draft202012Validator(writer).is_valid(value):
            assert Draft202012Validator(reader).is_valid(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON Schema"),
        ('{"type": "colour"}', "no JSON Schema"),
        ('{"$ref": "https://example.com/a"}', "refers to another"),
        ('{"items": [{"$ref": "file:///a"}]}', "no JSON Schema"),
        ('{"allOf": [{"$ref": "other.json"}]}', "refers to another"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        json_schema.parsed(text)
    assert said in str(refused.value)


RECORD: dict[str, Any] = {
    "type": "record",
    "name": "a.Account",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["X", "Y"]}},
    ],
}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    """A field of a record."""
    return {"name": name, "type": kind, **more}


def record(*fields: Any, name: str = "a.Account") -> dict[str, Any]:
    """A record of these fields."""
    return {"type": "record", "name": name, "fields": list(fields)}


@proves("a schema holds")
@pytest.mark.parametrize(
    ("reader", "writer", "fits"),
    [
        (record(field("id", "long")), record(field("id", "int")), True),
        (record(field("id", "int")), record(field("id", "long")), False),
        (record(field("id", "int"), field("n", "int")), record(field("id", "int")), False),
        (
            record(field("id", "int"), field("n", "int", default=0)),
            record(field("id", "int")),
            True,
        ),
        (record(), record(field("id", "int")), True),
        (record(field("b", "int", aliases=["id"])), record(field("id", "int")), True),
        (record(name="a.Other"), record(), False),
        (record(name="b.Account"), record(), True),
        (["null", "int"], "int", True),
        ("int", ["null", "int"], False),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, False),
        (
            {"type": "enum", "name": "K", "symbols": ["X", "Y"]},
            {"type": "enum", "name": "K", "symbols": ["X"]},
            True,
        ),
        (
            {"type": "enum", "name": "K", "symbols": ["X"]},
            {"type": "enum", "name": "K", "symbols": ["X", "Y"]},
            False,
        ),
        (
            {"type": "fixed", "name": "F", "size": 3},
            {"type": "fixed", "name": "F", "size": 4},
            False,
        ),
        (record(field("next", ["null", "a.Account"])), RECORD, False),
    ],
)
def test_avro_resolves_by_its_rules(reader: Any, writer: Any, fits: bool) -> None:
    found = avro.unreadable(avro.parsed(json.dumps(reader)), avro.parsed(json.dumps(writer)))
    assert (found == "") is fits, found


def test_an_avro_payload_is_one_value() -> None:
    schema = avro.parsed(json.dumps(RECORD))
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema, {"id": 7, "kind": "Y"})
    assert avro.misfit(schema, stream.getvalue()) == ""
    assert "1 bytes follow" in avro.misfit(schema, stream.getvalue() + b"x")
    assert "no Avro" in avro.misfit(schema, b"\x02")
    with pytest.raises(InvalidArgument, match="no Avro schema"):
        avro.parsed('{"type": "colour"}')
