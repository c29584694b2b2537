"""What is refused before the database sees it, so that the caller's transaction lives on."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from penstock import limits
from penstock.errors import (
    ControlCharacter,
    EmptyName,
    EmptySegment,
    InvalidArgument,
    InvalidName,
    InvalidPartition,
    NameTooLong,
    PathTooLong,
)
from penstock.records import Message

# Control characters and blanks are those of Unicode, spelled out as in the database's require_name.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BLANK = re.compile(r"[ \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
#: Shorter texts can be neither too deep nor hold too long a number.
_SHORT_HEADERS = 2 * limits.MAX_HEADERS_DEPTH
_TOO_MANY_DIGITS = 10**limits.MAX_HEADER_DIGITS
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_TEXT = frozenset({str})
#: Made once: json.dumps() makes one for each call that asks for anything but its defaults.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def name(text: str, what: str) -> str:
    """One name, which may hold a slash: of a subscription or a consumer."""
    if not isinstance(text, str):
        raise InvalidName(
            f"the name of a {what} is a {type(text).__name__}", hint="names are text (str)"
        )
    if _SURROGATE.search(text):
        raise InvalidName(
            f"the name of a {what} holds half a surrogate pair", hint="use valid Unicode"
        )
    if _CONTROL.search(text):
        raise ControlCharacter(
            f"the name of a {what} holds a control character", hint="use printable characters only"
        )
    if _BLANK.fullmatch(text):
        raise EmptyName(f"the name of a {what} is empty", hint="give 1 to 500 characters")
    if len(text) > limits.MAX_NAME:
        raise NameTooLong(
            f"the name of a {what} has {len(text)} characters",
            hint=f"use at most {limits.MAX_NAME}",
        )
    return text


def single_name(text: str, what: str) -> str:
    """One name of a path."""
    name(text, what)
    if "/" in text:
        raise EmptySegment(
            f"the name of a {what} holds '/'", hint="/ separates the names of a path"
        )
    return text


def namespace(path: str) -> str:
    """A namespace path, ``name/name/...``."""
    return _path(path, "namespace", limits.MAX_NAMESPACE)


def topic(address: str) -> str:
    """A topic address, ``namespace/path/topic``."""
    if not isinstance(address, str):
        raise InvalidName(f"a topic is a {type(address).__name__}", hint="names are text (str)")
    return _topic(address)


@lru_cache(maxsize=1_024)
def _topic(address: str) -> str:
    _path(address, "topic", limits.MAX_ADDRESS)
    if "/" not in address:
        raise InvalidName(f"the topic {address!r} has no namespace", hint="write namespace/topic")
    return address


def partition_count(count: int) -> int:
    """A number of partitions."""
    if is_integer(count) and 1 <= count <= limits.MAX_PARTITIONS:
        return count
    raise InvalidPartition(
        f"a topic cannot have {count!r} partitions",
        hint=f"use 1 to {limits.MAX_PARTITIONS}; up to 1,024 is practical",
    )


def number(value: Any, what: str) -> float:
    """A number that databases can calculate with."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise InvalidArgument(f"the {what} is {value!r}", hint="give a number that is finite")


def message(given: Message) -> None:
    """Everything of an event that can be judged without the database."""
    topic(given.topic)
    _payload(given.payload)
    if given.key is not None:
        _text("key", given.key, limits.MAX_KEY)
    _text("type", given.type, limits.MAX_TYPE)
    _text("content_type", given.content_type, limits.MAX_CONTENT_TYPE)
    if given.event_id is not None and not isinstance(given.event_id, uuid.UUID):
        raise InvalidArgument(
            f"event_id is a {type(given.event_id).__name__}", hint="give a uuid.UUID"
        )
    if given.partition is not None:
        _partition(given.partition)
    if given.not_before is not None:
        _not_before(given.not_before)
    if given.dedup_key is not None:
        _text("dedup_key", given.dedup_key, limits.MAX_KEY)
    for_relays(given.exchange, given.routing_key, given.max_attempts)


def fetched(partition: Any, from_sequence: Any, max_events: Any) -> None:
    """Refuse what is no whole number; the bounds are the database's."""
    given = {"partition": partition, "from_sequence": from_sequence, "max_events": max_events}
    for what, value in given.items():
        if not is_integer(value):
            raise InvalidArgument(f"{what} is a {type(value).__name__}", hint="give a whole number")


def position(given: Any) -> None:
    """InvalidArgument for a position that is no whole number: the database would round it."""
    if not is_integer(given):
        raise InvalidArgument(
            f"a position is a {type(given).__name__}",
            hint="give the sequence of the last event that is done",
        )


def for_relays(exchange: Any, routing_key: Any, max_attempts: Any) -> None:
    """What an event asks of the relay that delivers it."""
    if exchange is not None:
        _text("exchange", exchange, limits.MAX_KEY)
    if routing_key is not None:
        _text("routing_key", routing_key, limits.MAX_KEY)
    if max_attempts is not None and not (
        is_integer(max_attempts) and 1 <= max_attempts <= limits.MAX_ATTEMPTS
    ):
        raise InvalidArgument(
            f"max_attempts is {max_attempts!r}", hint=f"use 1 to {limits.MAX_ATTEMPTS}"
        )


def headers(given: Any) -> None:
    """A dictionary with text keys, or none."""
    if given is None or (type(given) is dict and _TEXT.issuperset(map(type, given))):
        return
    if not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
        raise InvalidArgument(
            "the headers are not a dictionary with text keys", hint='give {"name": value, ...}'
        )


def headers_json(headers: Mapping[str, Any] | None) -> str | None:
    """Headers as JSON text, as PostgreSQL accepts it."""
    if headers is None:
        return None
    try:
        text = _encode(headers if type(headers) is dict else dict(headers))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"the headers cannot be written as JSON: {error}", hint="use plain JSON values"
        ) from None
    if (not text.isascii() and _SURROGATE.search(text)) or (
        "\\u0000" in text and _ESCAPED_NUL.search(text)
    ):
        raise InvalidArgument(
            "the headers hold a NUL character or half a surrogate pair", hint="use valid Unicode"
        )
    if len(text) > _SHORT_HEADERS:
        _headers_limits(headers, text)
    return text


def _headers_limits(headers: Any, text: str) -> None:
    """The limits of the database's headers_problem: readers could not parse what is beyond."""
    size = len(text.encode())
    if size > limits.MAX_HEADERS_BYTES:
        raise InvalidArgument(
            f"the headers have {size} bytes",
            hint=f"use at most {limits.MAX_HEADERS_BYTES}; larger data belongs into the payload",
        )
    level = [headers]
    for _ in range(limits.MAX_HEADERS_DEPTH + 1):
        if any(isinstance(each, int) and abs(each) >= _TOO_MANY_DIGITS for each in level):
            raise InvalidArgument(
                f"the headers hold a number of more than {limits.MAX_HEADER_DIGITS} digits",
                hint="write it as text",
            )
        level = [inner for each in level for inner in _inside(each)]
    if level:
        raise InvalidArgument(
            f"the headers are nested deeper than {limits.MAX_HEADERS_DEPTH} levels",
            hint="larger structures belong into the payload",
        )


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _path(path: str, what: str, longest: int) -> str:
    if not isinstance(path, str):
        raise InvalidName(f"a {what} is a {type(path).__name__}", hint="names are text (str)")
    if not path:
        raise EmptyName(f"the path of the {what} is empty", hint="give its path")
    if len(path) > longest:
        raise PathTooLong(
            f"the path of the {what} has {len(path)} characters", hint=f"use at most {longest}"
        )
    parts = path.split("/")
    for place, part in enumerate(parts, start=1):
        if not part:
            raise EmptySegment(
                f"the {what} {path[:80]!r} has an empty name in its path",
                hint="write names with one / between them, none at the start or the end",
            )
        name(part, what if place == len(parts) else "namespace")
    return path


def _payload(payload: Any) -> None:
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise InvalidArgument(
            f"the payload is a {type(payload).__name__}",
            hint="give bytes, for example text.encode()",
        )


def _text(what: str, text: Any, longest: int) -> None:
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} is a {type(text).__name__}", hint=f"{what} is text (str)")
    if len(text) > longest:
        raise InvalidArgument(f"{what} has {len(text)} characters", hint=f"use at most {longest}")
    if "\0" in text:
        raise InvalidArgument(f"{what} holds a NUL character", hint="leave it out")
    if not text.isascii() and _SURROGATE.search(text):
        raise InvalidArgument(f"{what} holds half a surrogate pair", hint="use valid Unicode")


def _not_before(moment: Any) -> None:
    if not isinstance(moment, datetime):
        raise InvalidArgument(
            f"not_before is a {type(moment).__name__}", hint="give a datetime with its zone"
        )
    if moment.utcoffset() is None:
        raise InvalidArgument("not_before has no zone", hint="use datetime.now(UTC) + ...")


def _partition(partition: Any) -> None:
    if not is_integer(partition):
        raise InvalidPartition(
            f"the partition is a {type(partition).__name__}", hint="partitions are numbers"
        )
    if not 0 <= partition < limits.MAX_PARTITIONS:
        raise InvalidPartition(
            f"partition {partition} cannot exist", hint="partitions are numbered from 0"
        )


def is_integer(value: Any) -> bool:
    """A whole number, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)
