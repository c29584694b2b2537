"""JSON Schema: whether a payload fits, by `jsonschema`, and whether one schema covers another.

The second is not decidable in general.  So what cannot be shown is taken for incompatible: the
keywords that nearly every schema has are compared by what they mean, all others have to be equal.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from penstock.errors import InvalidArgument, MissingExtra

_ABOUT = frozenset(
    {
        *("title", "description", "default", "examples", "$comment", "$schema", "$id"),
        *("deprecated", "readOnly", "writeOnly", "$defs", "definitions", "$anchor"),
    }
)
_AT_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_AT_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_BY_MEANING = frozenset(
    {"type", "enum", "const", "required", "properties", "additionalProperties", "items"}
    | set(_AT_LEAST)
    | set(_AT_MOST)
)
_DEPTH = 30


@lru_cache(maxsize=256)
def parsed(definition: str) -> Any:
    """The schema of a text; InvalidArgument when it is none."""
    try:
        import jsonschema
    except ModuleNotFoundError as error:
        raise MissingExtra.of("jsonschema", "jsonschema") from error
    try:
        schema = json.loads(definition)
        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        kind.check_schema(schema)
    except (ValueError, RecursionError, jsonschema.SchemaError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise InvalidArgument(f"it is no JSON Schema: {reason[:300]}") from None
    if _remote(schema):
        raise InvalidArgument(
            "the schema refers to another one", hint="only $ref: #/... can be used"
        )
    return kind(schema)


def _remote(schema: Any) -> bool:
    """Whether a reference leads out of it: a check never asks the network."""
    if isinstance(schema, list):
        return any(map(_remote, schema))
    if not isinstance(schema, dict):
        return False
    named = [schema.get(each, "#") for each in ("$ref", "$dynamicRef")]
    leads_out = any(isinstance(each, str) and not each.startswith("#") for each in named)
    return leads_out or any(map(_remote, schema.values()))


def misfit(validator: Any, payload: bytes) -> str:
    """Where a payload does not fit, and which keyword says so: nothing of the payload itself."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return "it is not JSON"
    for error in validator.iter_errors(value):
        place = "/".join(map(str, error.absolute_path))
        wanted = json.dumps(error.validator_value)[:100]
        return f"at /{place} it is not {error.validator} {wanted}"
    return ""


def unreadable(reader: Any, writer: Any) -> str:
    """Why what fits ``writer`` may not fit ``reader``; "" when everything does."""
    return _Cover(reader.schema, writer.schema).uncovered(reader.schema, writer.schema, "", 0)


class _Cover:
    """Compares two schemas, place by place."""

    def __init__(self, new: Any, old: Any) -> None:
        self._roots = (new, old)

    def uncovered(self, new: Any, old: Any, place: str, depth: int) -> str:
        """Where the new one refuses what the old one may take."""
        new, old = self._resolved(new, 0), self._resolved(old, 1)
        if new is True or old is False or new == {} or (new == old and self._is_plain()):
            return ""
        where = place or "/"
        if new is False or depth > _DEPTH:
            return f"{where} takes nothing any more" if new is False else f"{where} is too deep"
        old = {} if old is True else old
        for found in (
            self._types(new, old),
            self._bounds(new, old),
            self._others(new, old),
        ):
            if found:
                return f"{where} {found}"
        return self._members(new, old, place, depth)

    def _is_plain(self) -> bool:
        """Equal texts mean the same: what they refer to is equal too."""
        new, old = (
            {each: root.get(each) for each in ("$defs", "definitions")}
            if isinstance(root, dict)
            else {}
            for root in self._roots
        )
        return new == old

    def _resolved(self, schema: Any, side: int) -> Any:
        """What a reference within its document stands for."""
        for _ in range(_DEPTH):
            if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
                return schema
            others = {name: value for name, value in schema.items() if name not in _ABOUT}
            if len(others) > 1:
                return schema
            found: Any = self._roots[side]
            for part in schema["$ref"].removeprefix("#").split("/")[1:]:
                part = part.replace("~1", "/").replace("~0", "~")
                found = found.get(part, False) if isinstance(found, dict) else False
            schema = found
        return schema

    def _types(self, new: dict[str, Any], old: dict[str, Any]) -> str:
        values = _values(old)
        if (allowed := _values(new)) is not None:
            if values is None or any(each not in allowed for each in values):
                return "takes fewer values"
            return ""
        if "type" not in new:
            return ""
        types = _as_list(new["type"])
        if values is not None:
            return "" if all(_is_one_of(each, types) for each in values) else "has another type"
        if "type" not in old:
            return "has a type now"
        known = {*types, *(["integer"] if "number" in types else [])}
        return "" if set(_as_list(old["type"])) <= known else "has another type"

    def _bounds(self, new: dict[str, Any], old: dict[str, Any]) -> str:
        for names, sign in ((_AT_LEAST, 1), (_AT_MOST, -1)):
            for name in names:
                if name in new and (name not in old or sign * old[name] < sign * new[name]):
                    return f"has a narrower {name}"
        return ""

    def _others(self, new: dict[str, Any], old: dict[str, Any]) -> str:
        for name in new.keys() - _ABOUT - _BY_MEANING:
            if name not in old or new[name] != old[name] or not self._is_plain():
                return f"has another {name}"
        missing = set(new.get("required", ())) - set(old.get("required", ()))
        return f"requires {', '.join(sorted(missing))}" if missing else ""

    def _members(self, new: dict[str, Any], old: dict[str, Any], place: str, depth: int) -> str:
        before, after = old.get("properties", {}), new.get("properties", {})
        rest_before = old.get("additionalProperties", True)
        rest_after = new.get("additionalProperties", True)
        pairs = [
            (after.get(name, rest_after), before.get(name, rest_before), f"{place}/{name}")
            for name in sorted({*before, *after})
        ]
        pairs.append((rest_after, rest_before, f"{place}/*"))
        pairs.append((new.get("items", True), old.get("items", True), f"{place}/[]"))
        for one, other, where in pairs:
            if found := self.uncovered(one, other, where, depth + 1):
                return found
        return ""


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found: list[Any] | None = schema.get("enum")
    return found


def _as_list(types: Any) -> list[str]:
    return types if isinstance(types, list) else [types]


def _is_one_of(value: Any, types: list[str]) -> bool:
    from jsonschema import Draft202012Validator

    return bool(Draft202012Validator({"type": types}).is_valid(value))
