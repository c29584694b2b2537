"""CloudEvents 1.0 as they are published over HTTP: structured, binary and in batches."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from consumers.gateway.answers import Refused
from consumers.gateway.credentials.shown import ShownRequest
from penstock.records import Message

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
_PREFIX = "ce-"
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,64}", re.ASCII)
#: What becomes a field of the event.  ``source``, ``time`` and all others travel as headers.
_FIELDS = frozenset({"specversion", "id", "type", "datacontenttype", "partitionkey"})
_NAMESPACE = uuid.UUID("9c2d6d5e-2f0b-5b0e-9d0c-6f7a1f6b6c54")


def is_binary(shown: ShownRequest) -> bool:
    """Whether the attributes are in headers of their own."""
    return f"{_PREFIX}specversion" in shown.headers


def messages(topic: str, shown: ShownRequest) -> list[Message]:
    """The events of a request whose content type says that they are CloudEvents."""
    media = shown.header("content-type").partition(";")[0].strip().lower()
    if media == BATCH:
        return [_structured(topic, each) for each in _decoded(shown.body, list)]
    if media == STRUCTURED:
        return [_structured(topic, _decoded(shown.body, dict))]
    return [_binary(topic, shown)]


def _binary(topic: str, shown: ShownRequest) -> Message:
    attributes: dict[str, Any] = {
        name.removeprefix(_PREFIX): unquote(value)
        for name, value in shown.headers.items()
        if name.startswith(_PREFIX)
    }
    content_type = shown.header("content-type")
    return _message(topic, attributes, shown.body, content_type or "application/octet-stream")


def _structured(topic: str, given: Any) -> Message:
    if not isinstance(given, dict):
        raise Refused(400, "a CloudEvent is not an object")
    attributes = {
        name: value
        for name, value in given.items()
        if name not in {"data", "data_base64"} and value is not None
    }
    content_type = attributes.get("datacontenttype", "application/json")
    if not isinstance(content_type, str):
        raise Refused(400, "datacontenttype of a CloudEvent is not a text")
    return _message(topic, attributes, _data(given, content_type), content_type)


def _data(given: Mapping[str, Any], content_type: str) -> bytes:
    if "data_base64" in given:
        try:
            return base64.b64decode(given["data_base64"], validate=True)
        except (ValueError, TypeError):
            raise Refused(400, "data_base64 of a CloudEvent is not base64") from None
    data = given.get("data", msgspec.UNSET)
    if data is msgspec.UNSET:
        return b""
    media = content_type.partition(";")[0].strip().lower()
    is_json = media in {"application/json", "text/json"} or media.endswith("+json")
    if isinstance(data, str) and not is_json:
        return data.encode()
    return msgspec.json.encode(data)


def _message(topic: str, given: Mapping[str, Any], data: bytes, content_type: str) -> Message:
    for name, value in given.items():
        if not _ATTRIBUTE.fullmatch(name) or not isinstance(value, str | int | bool):
            raise Refused(400, f"a CloudEvent has no attribute like {name[:64]!r}")
    if given.get("specversion") != "1.0":
        raise Refused(400, "a CloudEvent has the specversion 1.0")
    for name in ("id", "source", "type"):
        if not isinstance(given.get(name), str) or not given[name]:
            raise Refused(400, f"a CloudEvent has the attribute {name}, a text")
    key = given.get("partitionkey")
    return Message(
        topic,
        data,
        key=None if key is None else str(key),
        type=given["type"],
        content_type=content_type,
        headers={name: value for name, value in given.items() if name not in _FIELDS}
        | {"ceid": given["id"]},
        event_id=_event_id(given["source"], given["id"]),
    )


def _event_id(source: str, id_: str) -> uuid.UUID:
    """An id that is a UUID stays; of another one, and its source, the same UUID is made again."""
    try:
        return uuid.UUID(id_)
    except ValueError:
        return uuid.uuid5(_NAMESPACE, f"{source}\n{id_}")


def _decoded(body: bytes, kind: type) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not as expected: {error}") from None
