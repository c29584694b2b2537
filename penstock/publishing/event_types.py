"""A registry of an application's event types: how an object of each becomes a Message."""

from __future__ import annotations

import dataclasses
import enum
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeVar

from penstock.errors import EmptyName, InvalidArgument, PenstockError
from penstock.publishing.publish import publish_batch, publish_once
from penstock.publishing.rows import at
from penstock.records import Message, Published
from penstock.topics import validation

T = TypeVar("T")

JSON = "application/json"


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """What an object of a registered type becomes."""

    type: str
    topic: str
    key: Callable[[Any], str | None] | None
    content_type: str
    marshal: Callable[[Any], bytes]
    subclasses: bool


class Registry:
    """Maps types to (event type, topic, key function, content type, marshaller).

    An object is published by the route of its own class.  A class that was registered with
    ``subclasses=True`` also takes objects of its subclasses.  When several such classes fit, the
    nearest in the order of inheritance is used.  Every other object is refused, so that none is
    published under a wrong type.
    """

    def __init__(self) -> None:
        self._routes: dict[type, Route] = {}

    def register(
        self,
        python_type: type[T],
        *,
        type: str,
        topic: str,
        key: Callable[[T], str | None] | None = None,
        content_type: str = JSON,
        marshal: Callable[[T], bytes] | None = None,
        subclasses: bool = False,
    ) -> None:
        """Register a type; EmptyName or InvalidArgument for something missing or given twice.

        Without ``marshal`` objects are written as JSON, which works for dataclasses and mappings.
        """
        if not isinstance(python_type, _CLASS):
            raise InvalidArgument(
                f"{python_type!r} is not a class", hint="register the class, not an object of it"
            )
        if python_type in self._routes:
            raise InvalidArgument(
                f"{python_type.__qualname__} is registered already", hint="register it once"
            )
        _named(type, topic)
        for what, function in (("key", key), ("marshal", marshal)):
            if function is not None and not callable(function):
                raise InvalidArgument(
                    f"{what} is not callable", hint="give a function of an object"
                )
        self._routes[python_type] = Route(
            type, topic, key, content_type, marshal or as_json, subclasses
        )

    def route(self, event: object) -> Route:
        """The route of an object; InvalidArgument when its type is not registered."""
        if event is None or isinstance(event, _CLASS):
            raise InvalidArgument(f"{event!r} is not an event", hint="give an object of the class")
        own, *above = event.__class__.__mro__
        if own in self._routes:
            return self._routes[own]
        for each in above:
            if each in self._routes and self._routes[each].subclasses:
                return self._routes[each]
        raise InvalidArgument(
            f"{own.__qualname__} is not registered",
            hint="call Registry.register(), for its base class with subclasses=True",
        )

    def message(
        self, event: object, *, type: str | None = None, topic: str | None = None, **options: Any
    ) -> Message:
        """The message of an object; a Message is returned as it is.

        ``type``, ``topic`` and every other field of Message that is given here replaces the
        route's.
        """
        if isinstance(event, Message):
            changes = {"type": type, "topic": topic, **options}
            return dataclasses.replace(
                event, **{name: value for name, value in changes.items() if value is not None}
            )
        route = self.route(event)
        event_type, address = (
            route.type if type is None else type,
            route.topic if topic is None else topic,
        )
        _named(event_type, address)
        if "key" not in options and route.key is not None:
            options["key"] = route.key(event)
        payload = route.marshal(event)
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"the marshaller of {event.__class__.__qualname__} does not return bytes",
                hint="encode the text, for example text.encode()",
            )
        options.setdefault("content_type", route.content_type)
        return Message(address, payload, type=event_type, **options)

    def messages(self, events: Iterable[object]) -> list[Message]:
        """The messages of many objects; an error names the index of the object it is about."""
        found = []
        for place, event in enumerate(events):
            try:
                found.append(self.message(event))
            except PenstockError as error:
                raise at(place, error) from None
        return found

    def publish(
        self, connection: Any, event: object, *, strict: bool = False, **overrides: Any
    ) -> Published:
        """Publish one object in the caller's transaction."""
        return publish_once(connection, self.message(event, **overrides), strict=strict)

    def publish_batch(
        self, connection: Any, events: Iterable[object], *, strict: bool = False
    ) -> list[uuid.UUID]:
        """Publish many objects in one round trip, in order.  Returns their event ids."""
        return publish_batch(connection, self.messages(events), strict=strict)


def as_json(event: object) -> bytes:
    """A dataclass or a mapping as JSON; times in ISO 8601, decimals and UUIDs as text."""
    if not dataclasses.is_dataclass(event) and not isinstance(event, Mapping):
        raise InvalidArgument(
            f"a {event.__class__.__qualname__} is not known to be JSON",
            hint="register it with marshal=..., a function of the object that returns bytes",
        )
    try:
        return json.dumps(_plain(event), allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"a {event.__class__.__qualname__} cannot be written as JSON: {error}",
            hint="register it with marshal=..., a function of the object that returns bytes",
        ) from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | uuid.UUID) else value


def _named(event_type: Any, topic: Any) -> None:
    if not isinstance(event_type, str) or not event_type.strip():
        raise EmptyName("the event type is empty", hint="give type='order.placed'")
    validation.topic(topic)


_CLASS = type  # the parameters called `type` hide it
