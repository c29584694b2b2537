"""What a policy file says of a topic, a relay, a target and health, as records.

Each record is the table of its settings: a field that the file may set has a :class:`FileSetting`
beside its type, and what is in force without it as its value.  :func:`read` reads an entry by this
table, and docs/reference/policies.md is made from it and from the comments above the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, TypeVar, get_type_hints

from ops.archive.placement import COPY_SECONDS, MAX_WEIGHT, Placement
from ops.policies import values
from ops.policies.values import BYTES, SECONDS, TEXT, TOPIC, FileValue, count, word
from ops.seal import MAX_EVENTS
from ops.sinks import pacing
from ops.sinks.address import require_no_secret
from ops.sinks.routing import KEY, NONE, order_of, with_routing
from penstock.errors import ConfigurationError

T = TypeVar("T")

#: What an S3-compatible store may need, and what of it never stands in the file.
_SECRETS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_STORE_OPTIONS = (
    *_SECRETS, "aws_region", "aws_endpoint_url", "aws_virtual_hosted_style_request", "allow_http"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileSetting:
    """How a field stands in the file: its value, and its name if that is another.

    ``write`` is what an entry without it is told to write.  ``is_entry``: the entry may be this
    value alone, and an error names the entry.
    """

    value: FileValue
    name: str = ""
    write: str = ""
    is_entry: bool = False


def table(record: Any) -> Mapping[str, tuple[str, FileSetting, Any]]:
    """The settings of a record by their names in the file: field, setting, and value without it.

    MISSING as that value: the file has to say it.
    """
    hints = get_type_hints(record, include_extras=True)
    found = {}
    for each in fields(record):
        for setting in getattr(hints[each.name], "__metadata__", ()):
            unset = each.default if each.default_factory is MISSING else each.default_factory()
            found[setting.name or each.name] = (each.name, setting, unset)
    return found


def read(record: type[T], value: Any, where: str, **known: Any) -> T:
    """The record that an entry of the file describes.

    ``known`` are fields that do not stand in the file, or what they are where it does not say so.
    Without a value a setting is unset, if it may be.
    """
    settings = table(record)
    given = values.section(value, where, tuple(settings))
    for name, (attribute, setting, unset) in settings.items():
        if name in given and not (given[name] is None and unset is None):
            place = where if setting.is_entry else f"{where}.{name}"
            known[attribute] = setting.value.read(given[name], place)
        elif setting.write and name not in given:
            raise ConfigurationError(f"{where} has no {name}", hint=setting.write)
    return record(**known)


def _store_options(value: Any, where: str) -> dict[str, str]:
    options = values.section(value or {}, where, _STORE_OPTIONS)
    for name in options:
        given = values.text(options[name], f"{where}.{name}")
        is_secret = name in _SECRETS or "@" in given  # a login in the endpoint
        if is_secret and not values.REFERENCE.fullmatch(given):
            # The value is not repeated: it may be the secret itself.
            raise ConfigurationError(
                f"{where}.{name} is written into the file",
                hint="write ${NAME}, and set the environment variable NAME",
            )
    return dict(options)


def _sink(value: Any, where: str) -> str:
    sink = values.text(value, where)
    require_no_secret(sink, where)
    with values.at(where):
        if order := order_of(sink):
            raise ConfigurationError(
                "the address has an order", hint=f"write order: {order} beside the sink"
            )
    return sink


_ONE_RULE = ("envelope", "to", "key", "tombstones", "schemas", *pacing.NAMES)
_RULES = (*_ONE_RULE, "types", "where", "headers")


def _rules(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    """What a relay sends and in which form, as the pairs that the sink's address takes."""
    given = values.section(value or {}, where, _RULES)
    found = [
        (name, given[name] if isinstance(given[name], str) else str(given[name]).lower())
        for name in _ONE_RULE
        if name in given
    ]
    types = given.get("types", [])
    if not isinstance(types, list):
        raise ConfigurationError(f"{where}.types is not a list", hint='write types: ["order.*"]')
    found += [("type", each) for each in types]
    for name in ("where", "headers"):
        texts = values.entries(given, name)
        found += [(f"{name.removesuffix('s')}.{of}", text) for of, text in texts.items()]
    pairs = tuple((name, values.text(text, f"{where}.{name}")) for name, text in found)
    with values.at(where):
        with_routing("", pairs)
    return pairs


@dataclass(frozen=True, slots=True)
class SealPolicy:
    """When a log epoch is cut: at so many events, or at so great an age."""

    #: A log epoch is sealed at so many events.
    max_events: Annotated[int, FileSetting(count(1, 1_000_000))] = MAX_EVENTS
    #: A log epoch is sealed when its first event has been in the log for so long.
    max_age_seconds: Annotated[int | None, FileSetting(SECONDS, "max_age")] = None


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """The targets that a topic is archived in, and on how many of them copies lie; 0: on each."""

    #: Where copies lie; without other settings the list stands alone.
    targets: Annotated[Any, FileSetting(FileValue("a list of targets"))] = None
    #: How many copies are made.
    copies: Annotated[int, FileSetting(count(1, 100))] = 0
    #: How many verified copies acknowledge a log epoch.
    ack_quorum: Annotated[int, FileSetting(count(1, 100))] = 0
    #: How long one copy may take.
    copy_seconds: Annotated[int, FileSetting(SECONDS, "copy_timeout")] = COPY_SECONDS


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How old events must be, and how many verified copies they need, before they are removed.

    No copies: the topic's ``archive: none`` says that they go without one.  Above ``max_bytes`` the
    oldest go before their age and before everybody has read them, but not without the copies.
    """

    #: Nothing younger is removed.
    minimum_age_seconds: Annotated[
        int, FileSetting(SECONDS, "minimum_age", write="write minimum_age: 7d")
    ]
    #: Nothing with fewer verified copies is removed.
    copies: Annotated[int, FileSetting(count(1, 100))] = 1
    #: Above it the oldest log epochs go before their age.
    max_bytes: Annotated[int | None, FileSetting(BYTES)] = None


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """What happens to the events of one topic.  Without ``retention`` nothing is ever removed.

    ``archive`` names the targets; ``placement`` says on how many of them copies lie.
    """

    topic: str
    owner: str | None = None
    seal: SealPolicy | None = None
    archive: tuple[str, ...] = ()
    retention: RetentionPolicy | None = None
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """A subscription of a topic whose consumer is a sink."""

    name: str
    #: The topic to send.
    topic: Annotated[str, FileSetting(TOPIC, write="give topic and sink")]
    #: Where the relay's position is.
    subscription: Annotated[str, FileSetting(TEXT)]
    #: The address of the sink.
    sink: Annotated[str, FileSetting(FileValue("an address", _sink), write="give topic and sink")]
    #: After so many attempts the events of a block are dead letters; none: a block is tried for
    #: ever.
    max_attempts: Annotated[int, FileSetting(count(1, 1_000_000))] = 0
    #: The events to send, their form and their names: `envelope`, `to`, `key`,
    #: `tombstones`, `types`, `where`, `headers`, `schemas`, `rate`, `rate_bytes`, `breaker`,
    #: `breaker_seconds`.
    rules: Annotated[
        tuple[tuple[str, str], ...], FileSetting(FileValue("rules of the relay", _rules))
    ] = ()
    #: The relay of several sinks of which it is one; empty: it stands alone.
    group: str = ""
    #: The relay is that of a queue; unset, it sends a stream in its order.
    order: Annotated[str, FileSetting(word(NONE, KEY))] = ""


def _sinks(value: Any, where: str) -> dict[str, str]:
    given = values.entries({"sinks": value}, "sinks")
    if not given:
        raise ConfigurationError(f"{where} names no sink", hint="write NAME: ADDRESS for each")
    return {name: _sink(address, f"{where}.{name}") for name, address in given.items()}


@dataclass(frozen=True, slots=True)
class RelayGroupPolicy:
    """A relay with several sinks: as many of them as ``ack_quorum`` says move it."""

    name: str
    #: The topic to send to several sinks.
    topic: Annotated[str, FileSetting(TOPIC, write="give topic and sinks")]
    #: The address of each sink, by its name.
    sinks: Annotated[
        dict[str, str],
        FileSetting(FileValue("an address for each name", _sinks), write="give topic and sinks"),
    ]
    #: How many sinks have to pass an event before the relay has.
    ack_quorum: Annotated[int, FileSetting(count(1, 100))] = 0
    #: Whether retention waits for all sinks, or for as many as the quorum.
    retain_for: Annotated[str, FileSetting(word("all", "quorum"))] = "all"
    #: As for one relay, for each sink.
    max_attempts: Annotated[int, FileSetting(count(1, 1_000_000))] = 0
    #: As for one relay, for each sink.
    rules: Annotated[
        tuple[tuple[str, str], ...], FileSetting(FileValue("rules of the relay", _rules))
    ] = ()

    @property
    def quorum(self) -> int:
        """How many sinks have to pass an event."""
        return self.ack_quorum or len(self.sinks)

    def relays(self) -> dict[str, RelayPolicy]:
        """Each sink as the relay that it is."""
        return {
            f"{self.name}.{sink}": RelayPolicy(
                f"{self.name}.{sink}", self.topic, f"{self.name}.{sink}", address,
                self.max_attempts, self.rules, self.name,
            )
            for sink, address in self.sinks.items()
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """What the file says of a subscription beside its policies: where its dead letters go on to."""

    #: Where its dead letters go on to.
    dead_letters_to: Annotated[str | None, FileSetting(TOPIC)] = None


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """A place for archives, and what an object store needs: variables are not resolved yet."""

    #: A folder or the address of an object store; without other settings it is written as NAME:
    #: uri.
    uri: Annotated[str, FileSetting(TEXT, is_entry=True)]
    #: Region, endpoint and keys.
    options: Annotated[
        dict[str, str], FileSetting(FileValue("options of the store", _store_options))
    ] = field(default_factory=dict, repr=False)
    #: A target of weight 2 is the home of twice as many copies.
    weight: Annotated[int, FileSetting(count(1, MAX_WEIGHT))] = 1


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """How late each part of the work may be, in seconds."""

    #: How late events may get their sequence.
    unsequenced: Annotated[int, FileSetting(SECONDS)] = 15
    #: How late a relay may be.
    relay_lag: Annotated[int, FileSetting(SECONDS)] = 30
    #: How late a consumer may be.
    consumer_lag: Annotated[int, FileSetting(SECONDS)] = 300
    #: How long the event of the canary may take.
    end_to_end: Annotated[int, FileSetting(SECONDS)] = 90
