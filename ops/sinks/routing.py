"""What a relay does to events on their way: which it sends, in which form, under which names.

It stands behind the ``#`` of a sink's address, so it comes along wherever an address goes: command,
policy file, daemon, Dagster, Spark. ``to`` and ``key`` are templates: ``{topic}``, ``{type}``,
``{key}``, ``{header:NAME}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from ops.sinks import pacing
from ops.sinks.cloudevents import CONTENT_TYPE, DEFAULT_TYPE, to_json
from penstock.errors import ConfigurationError
from penstock.records import Event

#: The longest address that a template may make: the database keeps how far each has come.
LONGEST_PLACE = 500
#: The form in which events are sent: CloudEvents in one of its three ways.
BINARY, STRUCTURED, BATCH = "binary", "structured", "batch"
#: In which order a relay sends the events of a queue.
NONE, KEY = "none", "key"

_SINGLE = ("envelope", "to", "key", "tombstones", "schemas", "order", *pacing.NAMES)
_NAMED = ("where", "header")
_FIELD = re.compile(r"\{([^{}]*)\}")
_PLAIN_FIELDS = ("topic", "type", "key")
_HEADER_FIELD = "header:"
_SIGNS = "{}*?[]!:/,"


@dataclass(frozen=True, slots=True)
class Template:
    """A text with fields of the event in braces."""

    text: str

    def __post_init__(self) -> None:
        """ConfigurationError when something else stands in braces."""
        for name in self.fields:
            if name not in _PLAIN_FIELDS and not name.removeprefix(_HEADER_FIELD) != name:
                raise ConfigurationError(
                    f"the template {self.text!r} has {{{name}}}",
                    hint="in braces can stand topic, type, key and header:NAME",
                )
        if re.search(r"[{}]", _FIELD.sub("", self.text)) or f"{{{_HEADER_FIELD}}}" in self.text:
            raise ConfigurationError(f"the template {self.text!r} has a brace without its other")

    @property
    def fields(self) -> list[str]:
        """What stands in its braces."""
        return _FIELD.findall(self.text)

    def of(self, event: Event) -> str:
        """The text for an event.  ValueError when the event lacks what it names."""
        return _FIELD.sub(lambda found: _value(found[1], event), self.text)

    def of_topic(self, topic: str) -> str:
        """The text for every event of a topic, if nothing else is in it."""
        return self.text.replace("{topic}", topic)


def _value(name: str, event: Event) -> str:
    if name == "topic":
        return event.topic
    if name == "type":
        return event.type or DEFAULT_TYPE
    if name == "key":
        found = event.key
    else:
        name = name.removeprefix(_HEADER_FIELD)
        found = text_of_header(event, name)
    if not found:
        raise ValueError(f"it has no {'key' if name == 'key' else f'header {name}'}")
    return found


def text_of_header(event: Event, name: str) -> str | None:
    """A header as text: a text as it is, anything else as JSON."""
    found = event.headers.get(name)
    return found if found is None or isinstance(found, str) else json.dumps(found)


@dataclass(frozen=True, slots=True)
class Routing:
    """The rules of one relay.  Without any, every event is sent as its sink sends it."""

    envelope: str = ""
    #: The topic's address at the sink.
    to: Template | None = None
    key: Template | None = None
    #: An empty payload is sent as none: with it, a compacted topic forgets the key.
    tombstones: bool = False
    #: Patterns of types, of which one has to fit; none: every type.
    types: tuple[str, ...] = ()
    #: Patterns of headers, which all have to fit.
    where: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, Template] = field(default_factory=dict)
    #: What does not fit the schema of its topic and type goes to the dead letters.
    schemas: bool = False
    pacing: pacing.Pacing = field(default_factory=pacing.Pacing)
    #: none or key: the relay is that of a queue. Empty: that of a stream, in its order.
    order: str = ""
    #: One text for all addresses that are one topic of the sink.
    named: Callable[[str], str] = field(default=str, compare=False)

    @property
    def filters(self) -> bool:
        """Whether some events may be left out."""
        return bool(self.types or self.where)

    @property
    def splits(self) -> bool:
        """Whether events of one topic may go to several places."""
        return self.to is not None and any(each != "topic" for each in self.to.fields)

    @property
    def keeps_places(self) -> bool:
        """Whether a place may lack events that this relay has passed."""
        return self.filters or self.splits

    def takes(self, event: Event) -> bool:
        """Whether the event is sent."""
        if self.types and not any(fnmatchcase(event.type or "", each) for each in self.types):
            return False
        for name, pattern in self.where.items():
            found = text_of_header(event, name)
            if found is None or not fnmatchcase(found, pattern):
                return False
        return True

    def place(self, event: Event) -> str:
        """Which of the places of its topic an event goes to; empty when there is only one.

        ValueError when the event lacks what the template names.
        """
        if not self.splits:
            return ""
        assert self.to is not None
        found = self.named(self.to.of(event))
        if len(found) > LONGEST_PLACE:
            raise ValueError(f"its topic at the sink has more than {LONGEST_PLACE} characters")
        return found

    def topic(self, topic: str) -> str:
        """A topic's address at the sink, where all its events go to one."""
        return topic if self.to is None or self.splits else self.to.of_topic(topic)

    def sent(self, event: Event) -> Event:
        """The event as it is handed to the sink.  ValueError when it lacks what a template names.

        Its topic stays: it is the source of the event, wherever that goes.
        """
        headers = event.headers
        if self.headers:
            headers = headers | {name: each.of(event) for name, each in self.headers.items()}
        if self.key is not None or self.headers:
            key = event.key if self.key is None else self.key.of(event)
            event = _changed(event, key=key, headers=headers)
        if self.envelope == STRUCTURED and (event.payload or not self.tombstones):
            event = _changed(event, payload=to_json(event), content_type=CONTENT_TYPE)
        return event


def _changed(event: Event, **changes: Any) -> Event:
    names = (
        *("topic", "partition", "sequence", "event_id", "key", "type", "content_type", "headers"),
        *("payload", "created_at", "sequenced_at", "history"),
    )
    return Event(**({name: getattr(event, name) for name in names} | changes))


def parse_routing(text: str) -> tuple[Routing, str]:
    """The rules in the part of an address behind `#`, and what else stands there."""
    given: dict[str, Any] = {"types": [], "where": {}, "headers": {}}
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(text, keep_blank_values=True):
        kind, _, of = name.partition(".")
        if name in _SINGLE:
            given[name] = value
        elif name == "type":
            given["types"].append(value)
        elif kind in _NAMED and of:
            given["headers" if kind == "header" else kind][of] = value
        else:
            rest.append((name, value))
    return _routing(given), urlencode(rest)


def _routing(given: Mapping[str, Any]) -> Routing:
    envelope = given.get("envelope", "")
    tombstones, schemas = (given.get(name, "false") for name in ("tombstones", "schemas"))
    order = given.get("order", "")
    if order not in {"", NONE, KEY}:
        raise ConfigurationError(f"a relay has no order {order!r}", hint="write none or key")
    if envelope not in {"", BINARY, STRUCTURED, BATCH}:
        raise ConfigurationError(
            f"there is no envelope {envelope!r}", hint="write binary, structured or batch"
        )
    if not {tombstones, schemas} <= {"true", "false"}:
        raise ConfigurationError(
            "tombstones= or schemas= of a sink's address is neither true nor false"
        )
    if "" in {given.get("to"), given.get("key"), *given["types"]}:
        raise ConfigurationError("a template or a type behind # of a sink's address is empty")
    if "key" in given and "{" not in given["key"]:
        raise ConfigurationError("key= of a sink's address is no template", hint="write {type}")
    return Routing(
        envelope,
        Template(given["to"]) if "to" in given else None,
        Template(given["key"]) if "key" in given else None,
        tombstones == "true",
        tuple(given["types"]),
        dict(given["where"]),
        {name: Template(text) for name, text in given["headers"].items()},
        schemas == "true",
        pacing.Pacing.of(given),
        order,
    )


def order_of(address: str) -> str:
    """The order in which a relay to this address sends a queue; empty when it sends a stream."""
    return parse_routing(address.partition("#")[2])[0].order


#: One line for each rule, as (name, value): what command and policy file write into an address.
Rules = Iterable[tuple[str, str]]


def with_routing(address: str, rules: Rules) -> str:
    """An address with these rules; ConfigurationError when it has one of them already."""
    rules = list(rules)
    if not rules:
        return address
    start, mark, there = address.partition("#")
    known = {name for name, _ in parse_qsl(there, keep_blank_values=True)}
    if twice := sorted(known & {name for name, _ in rules}):
        raise ConfigurationError(
            f"{twice[0]} of a relay is given twice: in the sink's address and beside it",
            hint="leave one of them out",
        )
    added = urlencode(rules, safe=_SIGNS, quote_via=quote)
    found = f"{start}#{there}&{added}" if mark and there else f"{start}#{added}"
    parse_routing(found.partition("#")[2])
    return found


#: Refuses what a sink cannot do, by the scheme of its address.
Check = Callable[[str, Routing], None]

_ENVELOPES = {
    "kafka": (BINARY, STRUCTURED),
    "pulsar": (BINARY, STRUCTURED),
    "redis": (BINARY, STRUCTURED),
    "nats": (BINARY, STRUCTURED),
    "amqp": (BINARY, STRUCTURED),
    "jsonl": (STRUCTURED,),
    "sqs": (STRUCTURED,),
    "sns": (STRUCTURED,),
    "webhook": (BINARY, STRUCTURED, BATCH),
}
_WITH_TOPICS = ("kafka", "pulsar", "redis", "nats", "penstock")


def require_fitting(scheme: str, routing: Routing) -> None:
    """ConfigurationError when the sinks of a scheme cannot do what the rules ask for."""
    kind = "amqp" if scheme == "amqps" else scheme.partition("+")[0].replace("rediss", "redis")
    forms = _ENVELOPES.get(kind, ())
    if routing.envelope and routing.envelope not in forms:
        raise ConfigurationError(
            f"a {kind} sink does not send events in the form {routing.envelope}",
            hint=f"write envelope={' or '.join(forms)}" if forms else "leave envelope= out",
        )
    if routing.to is not None and kind not in _WITH_TOPICS:
        raise ConfigurationError(
            f"a {kind} sink has no topics to choose from by to=",
            hint="RabbitMQ has route= for it" if kind == "amqp" else "leave to= out",
        )
    if routing.tombstones and kind not in {"kafka", "pulsar"}:
        raise ConfigurationError(
            f"a {kind} sink has no tombstones", hint="compacted topics of Kafka and Pulsar have"
        )
