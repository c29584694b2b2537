"""Reads CloudEvents 1.0 strictly: what is not one is refused, and the error names the attribute.

Three forms: a JSON object (structured), a list of them (batch), and attributes in headers beside
the payload (binary).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.errors import NotACloudEvent

_NAME = re.compile(r"[a-z0-9]+")
_RESERVED = frozenset({"data", "data_base64"})
#: Control characters, halves of a pair, and what Unicode keeps for no character.
_NO_TEXT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17))
    + "]"
)
_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:[Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}(?:\s*;\s*{_TOKEN}=(?:{_TOKEN}|\"[^\"]*\"))*\s*;?")
_NO_URI = re.compile(r"[\s<>\"{}|\\^`]|%(?![0-9A-Fa-f]{2})")
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """An event as it was read.

    ``attributes`` are those that are there, with extensions. ``data`` is None without data, bytes
    of the binary form and of ``data_base64``, and else what JSON has.
    """

    attributes: Mapping[str, str | int | bool]
    data: Any = None


def read_structured(content: bytes | str) -> CloudEvent:
    """The event of a JSON object, as `application/cloudevents+json`.  Raises NotACloudEvent."""
    return _event(_json(content))


def read_batch(content: bytes | str) -> list[CloudEvent]:
    """The events of a list, as `application/cloudevents-batch+json`.  Raises NotACloudEvent."""
    found = _json(content)
    if not isinstance(found, list):
        raise NotACloudEvent("a batch of CloudEvents is not a list")
    events = []
    for number, each in enumerate(found):
        try:
            events.append(_event(each))
        except NotACloudEvent as error:
            raise NotACloudEvent(f"event {number} of the batch: {error.message}") from None
    return events


def read_binary(headers: Mapping[str, str], payload: bytes, prefix: str = "ce-") -> CloudEvent:
    """The event of a message: its attributes are headers with this prefix.

    ``ce-`` is that of HTTP and NATS, whose values are percent-encoded; ``ce_`` that of Kafka and
    Pulsar, ``cloudEvents_`` that of AMQP.  Raises NotACloudEvent.
    """
    found: dict[str, Any] = {}
    for header, value in headers.items():
        lower = header.lower()
        if lower == "content-type":
            found["datacontenttype"] = value
        elif lower.startswith(prefix.lower()):
            name = lower.removeprefix(prefix.lower())
            if name in _RESERVED | {"datacontenttype"}:
                raise NotACloudEvent(f'the header "{header}" is not allowed in the binary form')
            found[name] = _decoded(value, header) if prefix == "ce-" else value
    return CloudEvent(_attributes(found), payload or None)


def _decoded(value: str, header: str) -> str:
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise NotACloudEvent(f'the header "{header}" is not percent-encoded UTF-8') from None


def _json(content: bytes | str) -> Any:
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        return json.loads(text, object_pairs_hook=_members, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise NotACloudEvent(f"it is not JSON: {reason}") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotACloudEvent(f'the member "{twice}" is there twice')
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _event(given: Any) -> CloudEvent:
    if not isinstance(given, dict):
        raise NotACloudEvent("a CloudEvent is a JSON object")
    data = given.get("data")
    if "data_base64" in given:
        if "data" in given:
            raise NotACloudEvent("data and data_base64 are there both", hint="leave one out")
        data = _bytes(given["data_base64"])
    found = {name: value for name, value in given.items() if name not in _RESERVED}
    return CloudEvent(_attributes(found), data)


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise NotACloudEvent("data_base64 is not base64") from None


def _attributes(given: Mapping[str, Any]) -> dict[str, str | int | bool]:
    found = {name: value for name, value in given.items() if value is not None}
    for name in ("specversion", "id", "source", "type"):
        if name not in found:
            raise NotACloudEvent(
                f'the attribute "{name}" is missing', hint="a CloudEvent 1.0 has it"
            )
    for name, value in found.items():
        if not _NAME.fullmatch(name):
            raise NotACloudEvent(f'"{name}" cannot name an attribute', hint="use a-z and 0-9")
        problem = _CHECKS.get(name, _extension)(value)
        if problem:
            raise NotACloudEvent(f'the attribute "{name}" {problem}')
    return found


def _text(value: Any) -> str:
    """What is wrong with a text that may not be empty; "" when nothing is."""
    if not isinstance(value, str) or not value:
        return "is no text, or is empty"
    return "has characters that no attribute has" if _NO_TEXT.search(value) else ""


def _version(value: Any) -> str:
    return "" if value == "1.0" else "is not 1.0"


def _source(value: Any) -> str:
    return _text(value) or ("is no URI reference" if _uri(value) is None else "")


def _schema(value: Any) -> str:
    problem = _text(value)
    return problem or ("" if _uri(value) else "is no URI with a scheme")


def _uri(value: str) -> str | None:
    """The scheme of a URI reference; None when it is none."""
    try:
        return None if _NO_URI.search(value) else urlsplit(value).scheme
    except ValueError:
        return None


def _time(value: Any) -> str:
    problem = _text(value)
    if problem:
        return problem
    try:
        is_time = _TIME.fullmatch(value) is not None
        datetime.fromisoformat(value[:19].upper())
    except ValueError:
        is_time = False
    return "" if is_time else "is no time of RFC 3339, such as 2026-11-21T12:00:00Z"


def _media_type(value: Any) -> str:
    problem = _text(value)
    return problem or ("" if _MEDIA_TYPE.fullmatch(value) else "is no media type")


def _extension(value: Any) -> str:
    if isinstance(value, str):
        return "has characters that no attribute has" if _NO_TEXT.search(value) else ""
    if isinstance(value, bool) or (isinstance(value, int) and _LOWEST <= value <= _HIGHEST):
        return ""
    return "is no text, no boolean and no whole number of 32 bits"


_CHECKS: dict[str, Callable[[Any], str]] = {
    "specversion": _version,
    "id": _text,
    "source": _source,
    "type": _text,
    "subject": _text,
    "time": _time,
    "datacontenttype": _media_type,
    "dataschema": _schema,
}
