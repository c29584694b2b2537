"""CloudEvents 1.0: the structured JSON form of an event, and the binary form as message properties.

Both are functions of the event alone (no clock, no random number), so an event that is written a
second time has the same bytes. The sinks depend on that. The payload of a JSON event is copied, not
parsed and written again, so numbers keep their digits. Only line breaks between its tokens become
blanks, because one event is one line.

Attributes: `partitionkey`, `sequence` (zero-padded, so that it compares as text), `traceparent`
and `tracestate` are the extensions of that name; `recordedtime` is the time of sequencing.  A
header whose name and value are allowed for an attribute becomes that attribute (so a publisher
can set `subject` or `dataschema`); all others travel in `penstockheaders`, one JSON object.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from penstock.records import Event

CONTENT_TYPE = "application/cloudevents+json"
BATCH_CONTENT_TYPE = "application/cloudevents-batch+json"
#: The `type` of an event that was published without one: CloudEvents requires a text.
DEFAULT_TYPE = "penstock.event"
#: As many digits as the largest sequence has.
SEQUENCE_DIGITS = 19

_OWN = frozenset(
    {
        *("specversion", "id", "source", "type", "time", "datacontenttype", "data"),
        *("partitionkey", "sequence", "recordedtime"),
        *("penstockpartition", "penstockhistory", "penstockheaders"),
    }
)
_ATTRIBUTE_NAME = re.compile(r"[a-z0-9]{1,20}")
_ATTRIBUTE_VALUE = re.compile(r"[^\x00-\x1f\x7f-\x9f]+")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_MAX_DEPTH = 200
_COMPACT = (",", ":")
#: What a header of HTTP shows as it is: printable ASCII, but not the quote and the percent sign.
_VISIBLE = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def attributes(event: Event) -> dict[str, str | int]:
    """The context attributes, in a fixed order."""
    found: dict[str, str | int] = {
        "specversion": "1.0",
        "id": str(event.event_id),
        "source": source(event.topic),
        "type": event.type or DEFAULT_TYPE,
        "time": _time(event.created_at),
    }
    if event.content_type:
        found["datacontenttype"] = event.content_type
    if event.key:
        found["partitionkey"] = event.key
    found["sequence"] = sequence_text(event.sequence)
    found["recordedtime"] = _time(event.sequenced_at)
    found["penstockpartition"] = event.partition
    found["penstockhistory"] = event.history
    if event.headers:
        found.update(_from_headers(event.headers))
    return found


@lru_cache(maxsize=1024)
def source(topic: str) -> str:
    """A topic as the `source` of its events: a URI reference."""
    return "/" + quote(topic, safe="/")


def sequence_text(sequence: int) -> str:
    """A sequence as text that compares as the number does."""
    return f"{sequence:0{SEQUENCE_DIGITS}d}"


def to_json(event: Event) -> bytes:
    """The event as a CloudEvents JSON object, with `data` or `data_base64`: one line, no break."""
    head = json.dumps(attributes(event), ensure_ascii=False, separators=_COMPACT)
    member, text = _data(event)
    return f'{head[:-1]},"{member}":{text}}}'.encode()


def to_properties(event: Event) -> dict[str, str]:
    """The binary form: `ce_*` properties and `content-type`.  The payload is not changed.

    A relay does this for each event, so what its partition's events share is made once.
    """
    shared = _shared(event.topic, event.type, event.partition, event.history)
    found = {
        **shared,
        "ce_id": str(event.event_id),
        "ce_time": _time(event.created_at),
        "ce_sequence": sequence_text(event.sequence),
        "ce_recordedtime": _recorded_time(event.sequenced_at),
    }
    if event.key:
        found["ce_partitionkey"] = event.key
    if event.content_type:
        found["content-type"] = event.content_type
    if event.headers:
        found.update({f"ce_{name}": text for name, text in _from_headers(event.headers).items()})
    return found


def to_http(event: Event) -> dict[str, str]:
    """The binary form over HTTP: `ce-*` headers, in which what is not plain is percent-encoded."""
    found = {name: str(value) for name, value in attributes(event).items()}
    kind = found.pop("datacontenttype", "")
    if not kind.isprintable() or not kind.isascii():
        raise ValueError("its content type cannot stand in a header")
    return {
        **({"Content-Type": kind} if kind else {}),
        **{f"ce-{name}": header_value(value) for name, value in found.items()},
    }


def header_value(value: str) -> str:
    """An attribute as a header has it, over HTTP and NATS: what is not plain is encoded."""
    return quote(value, safe=_VISIBLE)


@lru_cache(maxsize=1024)
def _shared(topic: str, kind: str, partition: int, history: int) -> dict[str, str]:
    return {
        "ce_specversion": "1.0",
        "ce_source": source(topic),
        "ce_type": kind or DEFAULT_TYPE,
        "ce_penstockpartition": str(partition),
        "ce_penstockhistory": str(history),
    }


@lru_cache(maxsize=64)
def _recorded_time(moment: datetime) -> str:
    """The events of a tick share it."""
    return _time(moment)


def _time(moment: datetime) -> str:
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _from_headers(headers: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    other: dict[str, Any] = {}
    for name in sorted(headers):
        value = headers[name]
        if _is_attribute(name, value):
            found[name] = value
        else:
            other[name] = value
    if other:
        found["penstockheaders"] = json.dumps(
            other, separators=_COMPACT, sort_keys=True, allow_nan=False
        )
    return found


def _is_attribute(name: str, value: Any) -> bool:
    return (
        name not in _OWN
        and _ATTRIBUTE_NAME.fullmatch(name) is not None
        and isinstance(value, str)
        and _ATTRIBUTE_VALUE.fullmatch(value) is not None
    )


def _data(event: Event) -> tuple[str, str]:
    """The name of the data member and its JSON text."""
    kind = _kind(event.content_type)
    if kind is not None:
        text = _decoded(event.payload)
        if text is not None and kind == "text":
            return "data", json.dumps(text, ensure_ascii=False)
        if text is not None and _is_json(text):
            # A raw line break can only be between tokens: inside a string it would not be valid
            # JSON.
            return "data", text.strip().replace("\n", " ").replace("\r", " ")
    return "data_base64", '"' + base64.b64encode(event.payload).decode() + '"'


def _kind(content_type: str) -> str | None:
    """`json`, `text`, or None for anything else and for another character set than UTF-8."""
    media, _, parameters = content_type.lower().partition(";")
    charset = re.search(r'charset\s*=\s*"?([^\s;"]+)', parameters)
    if charset is not None and charset[1] not in {"utf-8", "utf8", "us-ascii"}:
        return None
    media = media.strip()
    if media in {"application/json", "text/json"} or media.endswith("+json"):
        return "json"
    return "text" if media.startswith("text/") else None


def _decoded(payload: bytes) -> str | None:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_json(text: str) -> bool:
    # The interpreter's recursion limit ends deep nesting at a depth that differs between runs. A
    # fixed limit does not differ.
    if text.count("[") + text.count("{") > _MAX_DEPTH and _depth(text) > _MAX_DEPTH:
        return False
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return False
    return True


def _depth(text: str) -> int:
    depth = deepest = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        if token[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in "]}":
            depth -= 1
    return deepest


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
