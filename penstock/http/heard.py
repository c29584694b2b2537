"""What the gateway sends: events as CloudEvents, and server-sent events line by line."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from penstock.errors import GatewayUnavailable
from penstock.records import Event

_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"
_NOT_HEADERS = frozenset(
    {
        *("specversion", "id", "source", "type", "time", "datacontenttype", "data", "data_base64"),
        *("partitionkey", "sequence", "recordedtime"),
        *("penstockpartition", "penstockhistory", "penstockheaders"),
    }
)
#: What the gateway says for an event without a type: CloudEvents requires one.
_NO_TYPE = "penstock.event"


@dataclass(frozen=True, slots=True)
class HeardEvent:
    """An event of a subscription, and its place: `commit` it when it is done."""

    event: Event
    consumer: str
    topic: str
    partition: int
    lease_epoch: int
    history: int
    sequence: int

    def place(self) -> dict[str, Any]:
        """The place, as a commit names it."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "lease_epoch": self.lease_epoch,
            "history": self.history,
            "sequence": self.sequence,
        }


@dataclass(slots=True)
class ServerSentEvent:
    """One server-sent event; ``kind`` is empty for a plain one."""

    kind: str = ""
    id: str = ""
    data: str = ""


@dataclass(slots=True)
class LineReader:
    """Makes events of lines."""

    _now: ServerSentEvent = field(default_factory=ServerSentEvent)

    def feed(self, line: bytes) -> ServerSentEvent | None:
        """The event that this line ends, if it ends one; comments are none."""
        text = line.decode().rstrip("\r\n")
        if not text:
            whole, self._now = self._now, ServerSentEvent()
            return whole if whole.data or whole.id else None
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._now.kind = value
        elif name == "id":
            self._now.id = value
        elif name == "data":
            self._now.data += value
        return None


def events_of(text: str) -> list[Event]:
    """The events of a batch of CloudEvents."""
    return [event_of(each) for each in _items(text)]


def heard(text: str) -> HeardEvent:
    """An event of a subscription."""
    told, raw = _members(text)
    return HeardEvent(
        event_of(raw["event"]),
        told["consumer"],
        told["topic"],
        told["partition"],
        told["lease_epoch"],
        told["history"],
        told["sequence"],
    )


def deliveries_of(text: str) -> Iterator[tuple[dict[str, Any], Event]]:
    """What the gateway has handed out: what it says of each, and the event."""
    _, raw = _members(text)
    for each in _items(raw["messages"]):
        told, parts = _members(each)
        yield told, event_of(parts["event"])


def event_of(text: str) -> Event:
    """The event of a CloudEvent.  A JSON payload keeps its digits: its text is taken as it is."""
    told, raw = _members(text)
    try:
        headers = {name: value for name, value in told.items() if name not in _NOT_HEADERS}
        if "penstockheaders" in told:
            headers |= json.loads(told["penstockheaders"])
        kind = told["type"]
        return Event(
            unquote(told["source"]).removeprefix("/"),
            told["penstockpartition"],
            int(told["sequence"]),
            UUID(told["id"]),
            told.get("partitionkey"),
            "" if kind == _NO_TYPE else kind,
            told.get("datacontenttype", ""),
            headers,
            _payload(told, raw),
            datetime.fromisoformat(told["time"]),
            datetime.fromisoformat(told["recordedtime"]),
            told["penstockhistory"],
        )
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise _not_ours() from None


def _payload(told: dict[str, Any], raw: dict[str, str]) -> bytes:
    if "data_base64" in told:
        return base64.b64decode(told["data_base64"], validate=True)
    media = told.get("datacontenttype", "").partition(";")[0].strip().lower()
    if media.startswith("text/") and not media.endswith(("/json", "+json")):
        return str(told["data"]).encode()
    return raw["data"].encode()


def _members(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The members of a JSON object, as values and as the texts that they were."""
    values: dict[str, Any] = {}
    raw: dict[str, str] = {}
    for start, name, _ in _walk(text, "{", "}"):
        value, end = _DECODER.raw_decode(text, start)
        values[name], raw[name] = value, text[start:end]
    return values, raw


def _items(text: str) -> list[str]:
    """The items of a JSON list, as the texts that they were."""
    return [text[start:end] for start, _, end in _walk(text, "[", "]")]


def _walk(text: str, opens: str, closes: str) -> Iterator[tuple[int, str, int]]:
    try:
        at = _after_blanks(text, 0)
        if text[at] != opens:
            raise _not_ours()
        at = _after_blanks(text, at + 1)
        while text[at] != closes:
            name = ""
            if opens == "{":
                name, at = _DECODER.raw_decode(text, at)
                at = _after_blanks(text, _after_blanks(text, at) + 1)  # the colon
            _, end = _DECODER.raw_decode(text, at)
            yield at, name, end
            at = _after_blanks(text, end)
            if text[at] == ",":
                at = _after_blanks(text, at + 1)
    except (IndexError, ValueError):
        raise _not_ours() from None


def _after_blanks(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at


def _not_ours() -> GatewayUnavailable:
    return GatewayUnavailable("the answer is not that of a gateway", hint="check the address")
