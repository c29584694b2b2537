"""What a message holds: its body and attributes, their sizes, and the digests that SDKs check."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from consumers.gateway.sqs.errors import SqsError, invalid, missing
from penstock.records import Event

MOST_BYTES = 1_048_576
#: What the log takes as headers, less room for what stands beside them.
MOST_ATTRIBUTE_BYTES = 49_152
_MOST_ATTRIBUTES = 10
#: The header that has the types of attributes which are no plain texts, and the trace's.
TYPES, TRACE, GROUP = "penstock-sqs-types", "penstock-sqs-trace", "penstock-sqs-group"
DEDUPLICATION = "penstock-sqs-deduplication"
_OWN = (TYPES, TRACE, GROUP, DEDUPLICATION)
_TOKEN = re.compile(r"[!-~]{1,128}")
_NAME = re.compile(r"(?!\.)(?!.*\.\.)(?!.*\.$)[A-Za-z0-9_.-]{1,256}", re.ASCII)
_HOUSE = "penstock-"
_RESERVED = ("aws.", "amazon.", _HOUSE)
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f]{1,248})?")
#: What XML 1.0 cannot hold.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a message: its type, and its value as text or bytes."""

    type: str
    value: str | bytes

    @property
    def data(self) -> bytes:
        """The value as bytes."""
        return self.value if isinstance(self.value, bytes) else self.value.encode()

    def as_json(self) -> dict[str, str]:
        """As SDKs read it."""
        if isinstance(self.value, bytes):
            return {"DataType": self.type, "BinaryValue": base64.b64encode(self.value).decode()}
        return {"DataType": self.type, "StringValue": self.value}


Attributes = Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class Contents:
    """A message that is to be sent, checked."""

    body: str
    attributes: Attributes
    trace: str | None
    group: str | None
    deduplication: str | None = None

    @property
    def size(self) -> int:
        """What counts against the limits."""
        given = sum(
            len(name.encode()) + len(each.type.encode()) + len(each.data)
            for name, each in self.attributes.items()
        )
        return len(self.body.encode()) + given

    def headers(self) -> dict[str, Any] | None:
        """As headers of an event."""
        made: dict[str, Any] = {
            name: base64.b64encode(each.value).decode()
            if isinstance(each.value, bytes)
            else each.value
            for name, each in self.attributes.items()
        }
        types = {name: each.type for name, each in self.attributes.items() if each.type != "String"}
        own = {
            TYPES: types,
            TRACE: self.trace,
            GROUP: self.group,
            DEDUPLICATION: self.deduplication,
        }
        return (made | {name: value for name, value in own.items() if value}) or None

    def digests(self) -> dict[str, str]:
        """The digests of what has come now."""
        made = {"MD5OfMessageBody": md5(self.body.encode())}
        if self.attributes:
            made["MD5OfMessageAttributes"] = attributes_md5(self.attributes)
        if self.trace is not None:
            trace = {"AWSTraceHeader": Attribute("String", self.trace)}
            made["MD5OfMessageSystemAttributes"] = attributes_md5(trace)
        return made


def md5(data: bytes) -> str:
    """The digest of a body: a check sum, no secret."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def attributes_md5(attributes: Attributes) -> str:
    """The digest of attributes: names in their order, each part after its length."""
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        each = attributes[name]
        for part in (name.encode(), each.type.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        digest.update(b"\x02" if isinstance(each.value, bytes) else b"\x01")
        digest.update(len(each.data).to_bytes(4, "big") + each.data)
    return digest.hexdigest()


def contents(given: Mapping[str, Any], trace: str) -> Contents:
    """The message of a call or an entry; ``trace`` comes from a header of the request."""
    body = given.get("MessageBody")
    if body is None:
        raise missing("MessageBody")
    if not isinstance(body, str) or not body:
        raise invalid(body, "MessageBody", "Must be a text that is not empty.")
    group, deduplication = _token(given, "MessageGroupId"), _token(given, "MessageDeduplicationId")
    system = _attributes(given.get("MessageSystemAttributes"), is_system=True)
    found = system.get("AWSTraceHeader")
    made = Contents(
        body,
        _attributes(given.get("MessageAttributes")),
        str(found.value) if found else (trace or None),
        group,
        deduplication,
    )
    for text in (body, *(a.value for a in made.attributes.values() if isinstance(a.value, str))):
        if _FORBIDDEN.search(text):
            raise SqsError(
                "InvalidMessageContents", "Invalid characters found. Valid ones are those of XML."
            )
    if made.size > MOST_BYTES:
        raise too_long(MOST_BYTES)
    return made


def too_long(most: int) -> SqsError:
    """A message beyond the limit of its queue."""
    return SqsError(
        "InvalidParameterValue",
        f"One or more parameters are invalid. Reason: Message must be shorter than {most} bytes.",
    )


def _token(given: Mapping[str, Any], name: str) -> str | None:
    text = given.get(name)
    if text is not None and not (isinstance(text, str) and _TOKEN.fullmatch(text)):
        raise invalid(text, name, "Must have 1 to 128 letters, digits or signs.")
    return text


def _attributes(given: Any, *, is_system: bool = False) -> dict[str, Attribute]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise SqsError("MalformedInput", "The attributes of a message are an object.")
    if len(given) > _MOST_ATTRIBUTES:
        raise SqsError(
            "InvalidParameterValue",
            f"Number of message attributes [{len(given)}] exceeds the allowed maximum [10].",
        )
    found = {name: _attribute(name, each, is_system=is_system) for name, each in given.items()}
    size = sum(len(name) + len(each.type) + len(each.data) * 4 // 3 for name, each in found.items())
    if size > MOST_ATTRIBUTE_BYTES:
        raise SqsError(
            "InvalidParameterValue",
            f"The attributes of a message are headers of an event here, of {MOST_ATTRIBUTE_BYTES}"
            " bytes at most: move the rest into the body.",
        )
    return found


def _attribute(name: str, given: Any, *, is_system: bool) -> Attribute:
    if is_system and name != "AWSTraceHeader":
        raise invalid(name, "MessageSystemAttributes", "Only AWSTraceHeader can be sent.")
    if not _NAME.fullmatch(name) or name.lower().startswith(_RESERVED):
        raise invalid(
            name,
            "MessageAttributes",
            "A name has letters, digits, _ - and ., and does not begin with AWS., Amazon. or"
            " penstock-.",
        )
    if not isinstance(given, dict):
        raise SqsError("MalformedInput", "An attribute of a message is an object.")
    type_ = given.get("DataType")
    if not isinstance(type_, str) or not _TYPE.fullmatch(type_):
        raise SqsError(
            "InvalidParameterValue",
            f"The type of message (user) attribute '{name}' is invalid. You must use only the"
            " following supported type prefixes: Binary, Number, String.",
        )
    value = given.get("BinaryValue" if type_.startswith("Binary") else "StringValue")
    if not isinstance(value, str) or not value:
        raise SqsError(
            "InvalidParameterValue",
            f"The message (user) attribute '{name}' must contain a non-empty value of its type.",
        )
    return Attribute(type_, _value(name, type_, value))


def _value(name: str, type_: str, value: str) -> str | bytes:
    if type_.startswith("Binary"):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            raise SqsError("MalformedInput", f"The attribute '{name}' is not base64.") from None
    if type_.startswith("Number"):
        try:
            float(value)
        except ValueError:
            raise SqsError(
                "InvalidParameterValue",
                f"Could not cast message (user) attribute '{name}' value to number.",
            ) from None
    return value


def attributes_of(event: Event, wanted: Iterable[str]) -> dict[str, Attribute]:
    """The attributes of an event that were asked for: names, `a.*`, `.*` or All."""
    names = list(wanted)
    headers = event.headers or {}
    if not names or not headers:
        return {}
    types = headers.get(TYPES)
    types = types if isinstance(types, dict) else {}
    found: dict[str, Attribute] = {}
    for name, value in headers.items():
        if name in _OWN or (name.startswith(_HOUSE) and name not in names):
            continue  # such as why a letter died, which is there for those who ask for it
        if isinstance(value, str) and _is_wanted(name, names):
            type_ = types.get(name, "String")
            found[name] = Attribute(type_, _stored(type_, value))
    return found


def _stored(type_: str, value: str) -> str | bytes:
    return base64.b64decode(value) if type_.startswith("Binary") else value


def _is_wanted(name: str, wanted: Iterable[str]) -> bool:
    return any(
        each in {"All", ".*", name} or (each.endswith(".*") and name.startswith(each[:-2]))
        for each in wanted
    )
