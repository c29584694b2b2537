"""The checks of an event before the database sees it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from penstock.errors import (
    InvalidArgument,
    InvalidPartition,
)
from penstock.records import Message
from penstock.topics.validation import (
    MAX_ATTEMPTS,
    MAX_CONTENT_TYPE,
    MAX_HEADER_DIGITS,
    MAX_HEADERS_BYTES,
    MAX_HEADERS_DEPTH,
    MAX_KEY,
    MAX_PARTITIONS,
    MAX_TYPE,
    SURROGATE,
    is_integer,
    topic,
)

#: Shorter texts can be neither too deep nor hold too long a number.
_SHORT_HEADERS = 2 * MAX_HEADERS_DEPTH
_TOO_MANY_DIGITS = 10**MAX_HEADER_DIGITS
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_TEXT, _DICTS = frozenset({str}), frozenset({dict})


def _encoder() -> Callable[[dict[str, Any]], str]:
    """JSONEncoder makes its encoder in C anew for each text, which takes longer than the text."""
    plain = json.JSONEncoder(allow_nan=False, ensure_ascii=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # not CPython
        return plain.encode
    # A structure that contains itself is found by its depth, so there is no record of what is open.
    encode = make(
        None, plain.default, json.encoder.encode_basestring, None, ": ", ", ", False, False, False
    )
    return lambda headers: "".join(encode(headers, 0))


_encode = _encoder()


def message(given: Message) -> None:
    """Check everything of an event that can be checked without the database."""
    topic(given.topic)
    _payload(given.payload)
    if given.key is not None:
        text("key", given.key, MAX_KEY)
    text("type", given.type, MAX_TYPE)
    text("content_type", given.content_type, MAX_CONTENT_TYPE)
    if given.event_id is not None and not isinstance(given.event_id, uuid.UUID):
        raise InvalidArgument(
            f"event_id is a {type(given.event_id).__name__}", hint="give a uuid.UUID"
        )
    if given.partition is not None:
        _partition(given.partition)
    if given.not_before is not None:
        _not_before(given.not_before)
    if given.dedup_key is not None:
        text("dedup_key", given.dedup_key, MAX_KEY)
    for_relays(given.exchange, given.routing_key, given.max_attempts)


def for_relays(exchange: Any, routing_key: Any, max_attempts: Any) -> None:
    """What an event asks of the relay that delivers it."""
    if exchange is not None:
        text("exchange", exchange, MAX_KEY)
    if routing_key is not None:
        text("routing_key", routing_key, MAX_KEY)
    if max_attempts is not None and not (
        is_integer(max_attempts) and 1 <= max_attempts <= MAX_ATTEMPTS
    ):
        raise InvalidArgument(f"max_attempts is {max_attempts!r}", hint=f"use 1 to {MAX_ATTEMPTS}")


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
    if (not text.isascii() and SURROGATE.search(text)) or (
        "\\u0000" in text and _ESCAPED_NUL.search(text)
    ):
        raise InvalidArgument(
            "the headers hold a NUL character or half a surrogate pair", hint="use valid Unicode"
        )
    if len(text) > _SHORT_HEADERS:
        _headers_limits(headers, text)
    return text


def headers_column(given: Sequence[Any]) -> list[str | None] | None:
    """The headers of many events as JSON; None when they have to be checked one by one."""
    headers = [each for each in given if each is not None]
    if not (_DICTS.issuperset(map(type, headers)) and _TEXT.issuperset(_types_of_keys(headers))):
        return None
    texts: list[str | None] = []
    last: Any = None
    text: str | None = None
    for each in given:
        if each is not last:  # the same dictionary is written once
            text, last = None if each is None else _encode(each), each
        texts.append(text)
    together = "".join(filter(None, texts))
    if "\\u0000" in together or not (together.isascii() or not SURROGATE.search(together)):
        return None
    for each, text in zip(given, texts, strict=True):
        if text is not None and len(text) > _SHORT_HEADERS:
            _headers_limits(each, text)
    return texts


def _types_of_keys(headers: Iterable[Any]) -> Iterable[type]:
    return map(type, chain.from_iterable(headers))


def _headers_limits(headers: Any, text: str) -> None:
    """The limits of the database's headers_problem: readers could not parse more."""
    size = len(text.encode())
    if size > MAX_HEADERS_BYTES:
        raise InvalidArgument(
            f"the headers have {size} bytes",
            hint=f"use at most {MAX_HEADERS_BYTES}; larger data belongs into the payload",
        )
    level = [headers]
    for _ in range(MAX_HEADERS_DEPTH + 1):
        if any(isinstance(each, int) and abs(each) >= _TOO_MANY_DIGITS for each in level):
            raise InvalidArgument(
                f"the headers hold a number of more than {MAX_HEADER_DIGITS} digits",
                hint="write it as text",
            )
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return
    raise InvalidArgument(
        f"the headers are nested deeper than {MAX_HEADERS_DEPTH} levels",
        hint="larger structures belong into the payload",
    )


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _payload(payload: Any) -> None:
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise InvalidArgument(
            f"the payload is a {type(payload).__name__}",
            hint="give bytes, for example text.encode()"
            if isinstance(payload, str)
            else "give bytes, for example json.dumps(...).encode()",
        )


def text(what: str, given: Any, longest: int) -> None:
    """One text of an event."""
    if not isinstance(given, str):
        raise InvalidArgument(f"{what} is a {type(given).__name__}", hint=f"{what} is text (str)")
    if len(given) > longest:
        raise InvalidArgument(f"{what} has {len(given)} characters", hint=f"use at most {longest}")
    if "\0" in given:
        raise InvalidArgument(f"{what} holds a NUL character", hint="leave it out")
    if not given.isascii() and SURROGATE.search(given):
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
    if not 0 <= partition < MAX_PARTITIONS:
        raise InvalidPartition(
            f"partition {partition} cannot exist", hint="partitions are numbered from 0"
        )
