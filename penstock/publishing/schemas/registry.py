"""The registry of schemas: a topic may have one for each type of event, in versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.database import call
from penstock.errors import IncompatibleSchema, InvalidArgument, SchemaMismatch
from penstock.publishing.schemas import avro, json_schema

if TYPE_CHECKING:
    from penstock.records import Message

JSON, AVRO = KINDS = ("json", "avro")
NONE, BACKWARD, FORWARD, FULL = COMPATIBILITIES = ("none", "backward", "forward", "full")

#: Of each kind: the schema of a text, what is wrong with a payload, and why a reader of one schema
#: cannot read everything that was written with another.
_KINDS = {
    JSON: (json_schema.parsed, json_schema.misfit, json_schema.unreadable),
    AVRO: (avro.parsed, avro.misfit, avro.unreadable),
}


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """One version of the schema of a type of event; type "" is every type without one of its own.

    ``compatibility`` is what the next version has to keep.
    """

    type: str
    version: int
    kind: str
    definition: str
    compatibility: str
    set_at: datetime
    set_by: str

    def misfit(self, payload: bytes) -> str:
        """What is wrong with a payload; "" when it fits.  It repeats nothing of the payload."""
        parse, misfit, _ = _KINDS[self.kind]
        return misfit(parse(self.definition), payload)


def set_schema(
    connection: Any,
    topic: str,
    definition: str,
    *,
    type: str = "",
    kind: str = JSON,
    compatibility: str | None = None,
) -> int:
    """Put a schema in force, if it keeps the compatibility of the present one.

    Without ``compatibility`` it stays as it is; a first schema has backward: with it, everything
    can be read that was written before. Returns the version, which is the present one when nothing
    changes. Raises IncompatibleSchema, or InvalidArgument for what is no schema.
    """
    if kind not in KINDS or (compatibility or NONE) not in COMPATIBILITIES:
        raise InvalidArgument(
            f"there is no kind {kind!r} of schema, or no compatibility {compatibility!r}",
            hint=f"the kinds are {', '.join(KINDS)}; compatibility is {', '.join(COMPATIBILITIES)}",
        )
    parse, _, unreadable = _KINDS[kind]
    schema = parse(definition)
    found = list_schemas(connection, topic, type=type)
    present = found[0] if found else None
    wanted = compatibility or (present.compatibility if present else BACKWARD)
    if present is not None:
        if (present.kind, present.definition, present.compatibility) == (kind, definition, wanted):
            return present.version
        reasons = _broken(present, kind, schema, unreadable)
        if reasons:
            raise IncompatibleSchema(
                f"version {present.version} of the schema asks for {present.compatibility} "
                f"compatibility: {reasons}",
                hint="change the schema, or set the present one again with another compatibility",
            )
    rows = call(
        connection,
        "set_schema",
        topic=topic,
        type=type,
        kind=kind,
        definition=definition,
        compatibility=wanted,
        after_version=present.version if present else 0,
    )
    return int(rows[0][0])


def _broken(present: TopicSchema, kind: str, schema: Any, unreadable: Any) -> str:
    """Why a schema cannot follow the present one; "" when it can."""
    if present.compatibility == NONE:
        return ""
    if present.kind != kind:
        return f"it is a schema of the kind {present.kind}, not {kind}"
    before = _KINDS[kind][0](present.definition)
    if present.compatibility in {BACKWARD, FULL} and (why := unreadable(schema, before)):
        return f"what was written before cannot be read any more: {why}"
    if present.compatibility in {FORWARD, FULL} and (why := unreadable(before, schema)):
        return f"who knows the present one only cannot read what is written then: {why}"
    return ""


def list_schemas(
    connection: Any, topic: str, *, type: str | None = None, all_versions: bool = False
) -> list[TopicSchema]:
    """The schemas of a topic, of a type or of every type; the newest version of each first."""
    rows = call(connection, "schemas_of", topic=topic, type=type, all_versions=all_versions)
    return [TopicSchema(*row) for row in rows]


def delete_schema(connection: Any, topic: str, *, type: str = "") -> int:
    """Remove every version of a schema.  Returns how many there were."""
    return int(call(connection, "delete_schema", topic=topic, type=type)[0][0])


def in_force(connection: Any, topic: str) -> Mapping[str, TopicSchema]:
    """The newest schemas of a topic, by type."""
    return {each.type: each for each in list_schemas(connection, topic)}


def problem(schemas: Mapping[str, TopicSchema], type: str, payload: bytes) -> str:
    """What is wrong with a payload of a type; "" when it fits, or nothing is asked of it."""
    schema = schemas.get(type) or schemas.get("")
    found = "" if schema is None else schema.misfit(payload)
    if not found or schema is None:
        return ""
    return f"it does not fit version {schema.version} of the schema of {type!r}: {found}"


def require_fitting(connection: Any, messages: Iterable[Message]) -> None:
    """SchemaMismatch for the first message whose payload does not fit its schema."""
    known: dict[str, Mapping[str, TopicSchema]] = {}
    for number, each in enumerate(messages):
        if each.topic not in known:
            known[each.topic] = in_force(connection, each.topic)
        found = problem(known[each.topic], each.type, bytes(each.payload))
        if found:
            raise SchemaMismatch(
                f"event {number} for {each.topic}: {found}",
                hint="nothing was published; penstock schema show prints the schema",
            )
