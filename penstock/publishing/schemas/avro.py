"""Avro: whether a payload is one record of a schema, by `fastavro`, and Avro's rules of resolution.

A payload is the bare binary form of one value, without a header.
"""

from __future__ import annotations

import json
from functools import lru_cache
from io import BytesIO
from typing import Any

from penstock.errors import InvalidArgument, MissingExtra

#: What a reader of a type also takes.
_PROMOTED = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
_NAMED = ("record", "error", "enum", "fixed")
_DEPTH = 60


@lru_cache(maxsize=256)
def parsed(definition: str) -> Any:
    """The schema of a text, as fastavro has it; InvalidArgument when it is none."""
    try:
        import fastavro
    except ModuleNotFoundError as error:
        raise MissingExtra.of("fastavro", "fastavro") from error
    try:
        return fastavro.parse_schema(json.loads(definition))
    except Exception as error:  # fastavro raises whatever a bad schema runs it into
        raise InvalidArgument(f"it is no Avro schema: {str(error)[:300]}") from None


def misfit(schema: Any, payload: bytes) -> str:
    """Why a payload is no value of the schema; "" when it is."""
    from fastavro import schemaless_reader

    stream = BytesIO(payload)
    try:
        schemaless_reader(stream, schema, None)
    except Exception:  # fastavro raises whatever bad bytes run it into
        return "it is no Avro of this schema"
    left = len(payload) - stream.tell()
    return f"{left} bytes follow the value" if left else ""


def unreadable(reader: Any, writer: Any) -> str:
    """Why a reader of one schema cannot read what was written with another; "" when it can."""
    return _Resolution(reader, writer).problem(reader, writer, "", 0)


class _Resolution:
    """Compares two schemas by the rules of Avro's specification."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._names: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        self._open: set[tuple[str, str]] = set()
        for side, schema in enumerate((reader, writer)):
            self._learn(schema, self._names[side])

    def _learn(self, schema: Any, names: dict[str, Any]) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._learn(each, names)
        elif isinstance(schema, dict):
            if schema.get("type") in _NAMED:
                names[schema["name"]] = schema
            for each in schema.get("fields", ()):
                self._learn(each["type"], names)
            for part in ("items", "values", "type"):
                self._learn(schema.get(part), names)

    def problem(self, reader: Any, writer: Any, place: str, depth: int) -> str:
        """Where they do not resolve."""
        reader, writer = self._looked_up(reader, 0), self._looked_up(writer, 1)
        where = place or "/"
        if depth > _DEPTH:
            return f"{where} is too deep"
        if isinstance(writer, list):
            found = (self.problem(reader, each, place, depth + 1) for each in writer)
            return next(filter(None, found), "")
        if isinstance(reader, list):
            fits = any(not self.problem(each, writer, place, depth + 1) for each in reader)
            return "" if fits else f"{where} has no branch for {_kind(writer)}"
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            fits = written in _PROMOTED.get(kind, ())
            return "" if fits else f"{where} is {kind} and was {written}"
        return self._same_kind(kind, reader, writer, place, depth)

    def _same_kind(self, kind: str, reader: Any, writer: Any, place: str, depth: int) -> str:
        if kind in {"array", "map"}:
            part = "items" if kind == "array" else "values"
            return self.problem(reader[part], writer[part], f"{place}/[]", depth + 1)
        if kind not in _NAMED:
            return ""
        if _short(reader) != _short(writer) and writer["name"] not in reader.get("aliases", ()):
            return f"{place or '/'} has another name"
        if kind == "fixed":
            same = reader["size"] == writer["size"]
            return "" if same else f"{place or '/'} has another size"
        if kind == "enum":
            gone = set(writer["symbols"]) - set(reader["symbols"])
            fits = not gone or "default" in reader
            return "" if fits else f"{place or '/'} lacks {', '.join(sorted(gone))}"
        return self._records(reader, writer, place, depth)

    def _records(self, reader: Any, writer: Any, place: str, depth: int) -> str:
        pair = (reader["name"], writer["name"])
        if pair in self._open:  # a record within itself
            return ""
        self._open.add(pair)
        try:
            written = {each["name"]: each for each in writer["fields"]}
            for each in reader["fields"]:
                names = [each["name"], *each.get("aliases", ())]
                there = next((written[name] for name in names if name in written), None)
                where = f"{place}/{each['name']}"
                if there is None:
                    if "default" not in each:
                        return f"{where} was not written and has no default"
                    continue
                if found := self.problem(each["type"], there["type"], where, depth + 1):
                    return found
            return ""
        finally:
            self._open.discard(pair)

    def _looked_up(self, schema: Any, side: int) -> Any:
        """The definition of a named type; what has no more than a type is that type."""
        if isinstance(schema, str):
            return self._names[side].get(schema, schema)
        if isinstance(schema, dict) and not isinstance(schema["type"], str):
            return self._looked_up(schema["type"], side)
        return schema


def _kind(schema: Any) -> str:
    found = schema["type"] if isinstance(schema, dict) else schema
    return "record" if found == "error" else str(found)


def _short(schema: Any) -> str:
    return str(schema["name"]).rpartition(".")[2]
