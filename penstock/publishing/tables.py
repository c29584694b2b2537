"""Publishing the rows of an Arrow table on PostgreSQL, column by column.

What cannot go by columns, or is wrong, is looked at event by event, as a message would be.  So
there is one rule for what is refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.database.steps import run
from penstock.errors import InvalidArgument, MissingExtra, PenstockError
from penstock.publishing import arrow, bulk, rows as outgoing, tracing
from penstock.publishing.bulk import Columns
from penstock.publishing.columns import PackedArray, new_ids
from penstock.publishing.known_topics import KnownTopics, TopicFacts
from penstock.publishing.rows import Row
from penstock.records import Message
from penstock.topics import validation

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT, _ZONED = "string", "timestamp with a zone"

#: The columns that a table may have, and their kinds; payload has to be there.
_KINDS: Mapping[str, Sequence[str]] = {
    "payload": ["binary"],
    "key": [_TEXT],
    "type": [_TEXT],
    "content_type": [_TEXT],
    "headers": [_TEXT],
    "event_id": [_TEXT, "uuid", "fixed_size_binary[16]"],
    "partition": ["integer"],
    "not_before": [_ZONED],
}


def publish_table(connection: Any, topic: str, table: pa.Table) -> int:
    """Publish the rows of a ``pyarrow.Table``, in order.  Returns how many.

    Its columns are ``payload`` and, where you want them, ``key``, ``type``, ``content_type``,
    ``headers`` (JSON objects as text), ``event_id``, ``partition`` and ``not_before``.  Where a
    column has NULL, the event has the default of `publish`.

    Needs psycopg (directly or below SQLAlchemy) and an open transaction.  It works inside a
    savepoint: when one event is refused, none is published and the caller's transaction can go on.
    """
    validation.topic(topic)
    given = _checked(table)
    with bulk.in_chunks(connection, "publish_table") as opened:
        run(opened.driver, opened.known.required(topic))
        return opened.publish(_chunks(topic, given))


def require_columns(
    what: str,
    given: Mapping[str, str],
    expected: Mapping[str, Sequence[str]],
    needed: Sequence[str],
) -> None:
    """Refuse columns that an event does not take, and kinds that they cannot have."""
    for name, kind in given.items():
        if name not in expected:
            raise InvalidArgument(
                f"the {what} has a column {name[:80]!r}, which an event does not take",
                hint=f"select only: {', '.join(expected)}",
            )
        if kind not in expected[name]:
            raise InvalidArgument(
                f"the {what} has the column {name} as {kind[:80]}",
                hint=f"cast it to {' or '.join(expected[name])}",
            )
    for name in needed:
        if name not in given:
            raise InvalidArgument(
                f"the {what} has no column {name}", hint=f"add it as {expected[name][0]}"
            )


def message(topic: Any, row: Mapping[str, Any]) -> Message:
    """The event of a row.  Where it has NULL, publishing has a default of its own."""
    given = {name: value for name, value in row.items() if value is not None}
    given.setdefault("payload", None)  # refused, with the place of the event
    if "headers" in given:
        given["headers"] = _headers(given["headers"])
    if "event_id" in given:
        given["event_id"] = _event_id(given["event_id"])
    return Message(topic, **given)


def _headers(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidArgument(
            "the headers of an event are not JSON", hint="write them by to_json or json.dumps"
        ) from None


def _event_id(given: str | bytes | uuid.UUID) -> uuid.UUID:
    if isinstance(given, uuid.UUID):
        return given
    if isinstance(given, bytes):
        return uuid.UUID(bytes=given)
    try:
        return uuid.UUID(given)
    except ValueError:
        raise InvalidArgument(
            f"the event_id {given[:40]!r} is no UUID", hint="leave the column out for new ids"
        ) from None


def _checked(table: Any) -> pa.Table:
    """The table without columns that hold nothing.  InvalidArgument when it is none of events."""
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
    except ImportError:
        raise MissingExtra.of("pyarrow", "pyarrow") from None
    if not isinstance(table, pa.Table):
        raise InvalidArgument(
            f"a {type(table).__name__} is not a pyarrow.Table",
            hint="pyarrow.table(...) makes one of most data frames",
        )
    names = table.column_names
    if len(set(names)) < len(names):
        raise InvalidArgument("two columns of the table have one name", hint="rename one of them")
    nothing = [field.name for field in table.schema if pa.types.is_null(field.type)]
    unused = [name for name in nothing if name in _KINDS and name != "payload"]
    given: pa.Table = arrow.without_views(table.drop_columns(unused))
    kinds = {field.name: _kind(field.type) for field in given.schema}
    require_columns("table", kinds, _KINDS, ["payload"])
    try:
        given.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"the table is not valid: {str(error)[:200]}") from None
    missing = pc.index(pc.is_null(given["payload"]), True).as_py()
    if missing >= 0:
        raise InvalidArgument(
            f"event {missing}: the payload is NULL", hint="leave out rows without a payload"
        )
    return given


def _kind(found: pa.DataType) -> str:
    """What a type is called here; a type that no column may have, by its own name."""
    from pyarrow import types

    if types.is_dictionary(found) and types.is_string(found.value_type):
        return _TEXT
    if getattr(found, "extension_name", "") == "arrow.uuid":
        return "uuid"
    if types.is_timestamp(found) and found.tz is not None:
        return _ZONED
    for kind, is_kind in (
        (_TEXT, types.is_string),
        (_TEXT, types.is_large_string),
        ("binary", types.is_binary),
        ("binary", types.is_large_binary),
        ("integer", types.is_integer),
    ):
        if is_kind(found):
            return kind
    return str(found)


def _chunks(topic: str, table: pa.Table) -> Iterator[_Rows]:
    first = 0
    while first < table.num_rows:
        rows = table.slice(first, bulk.CHUNK_EVENTS)
        while rows.num_rows > 1 and arrow.size(rows["payload"]) > bulk.CHUNK_BYTES:
            rows = rows.slice(0, rows.num_rows // 2)
        yield _Rows(topic, rows)
        first += rows.num_rows


class _Rows:
    """A chunk of a table."""

    def __init__(self, topic: str, rows: pa.Table) -> None:
        self._topic = topic
        self._rows = rows

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def by_columns(self, known: KnownTopics, *, binary: bool) -> Columns | None:
        facts = known.plain(self._topic)
        if facts is None or not binary or tracing.context_headers():
            return None
        if self._column("not_before") is not None:
            return None
        try:
            return Columns(self._topic, self._binds(facts))
        except ValueError:
            return None

    def rows(self, place: int) -> Iterator[Row]:
        """The headers stay the text that they are, unless a trace is added to them."""
        given = self._dictionaries(place)
        keeps_text = not tracing.context_headers()
        rows = outgoing.rows(self._messages(given, place), place)
        for row, fields in zip(rows, given, strict=True):
            yield row._replace(headers=fields.get("headers")) if keeps_text else row

    def _messages(self, given: list[dict[str, Any]], place: int) -> Iterator[Message]:
        for number, fields in enumerate(given, place):
            try:
                yield message(self._topic, fields)
            except PenstockError as error:
                raise outgoing.at(number, error) from None

    def _dictionaries(self, place: int) -> list[dict[str, Any]]:
        try:
            return arrow.dictionaries(self._rows)
        except (ValueError, OverflowError):
            raise InvalidArgument(
                f"of the events from {place} on, a not_before is no time that Python knows",
                hint="use years up to 9999",
            ) from None

    def _binds(self, facts: TopicFacts) -> dict[str, Any]:
        """The binds of publish_columns.  ValueError where a value does not fit the topic.

        Texts and headers are left to the server: it has to look at each of them anyway.
        """
        payloads = arrow.whole(self._rows["payload"])
        arrow.require_size(payloads, facts.max_payload_bytes)
        kind, kinds = self._shared("type")
        media, content_types = self._shared("content_type")
        return {
            "topic": self._topic,
            "type": kind,
            "content_type": media,
            "payloads": arrow.packed("bytea", payloads),
            "keys": self._texts("key"),
            "types": kinds,
            "content_types": content_types,
            "headers": self._texts("headers"),
            "event_ids": self._ids(),
            "partitions": self._partitions(facts.partitions),
        }

    def _texts(self, name: str) -> PackedArray | None:
        column = self._column(name)
        return None if column is None else arrow.packed("text", column)

    def _shared(self, name: str) -> tuple[str | None, PackedArray | None]:
        """A text that all events have, or those of each."""
        column = self._column(name)
        text = None if column is None else arrow.shared(column)
        if text is None or "\0" in text:  # which only the server's error names as it should
            return None, self._texts(name)
        return text, None

    def _ids(self) -> Sequence[Any]:
        event_ids = self._column("event_id")
        return new_ids(True, len(self)) if event_ids is None else arrow.packed_ids(event_ids)

    def _partitions(self, count: int) -> PackedArray | None:
        partitions = self._column("partition")
        return None if partitions is None else arrow.packed_integers(partitions, count)

    def _column(self, name: str) -> pa.Array[Any] | None:
        """A column in one piece; None where it has nothing but NULL."""
        if name not in self._rows.column_names:
            return None
        column = arrow.whole(self._rows[name])
        return None if column.null_count == len(column) else column
