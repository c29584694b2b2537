"""The options of the format, read and checked before anything is read or written."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.archive.targets import Target
from penstock.database import config, connect
from penstock.errors import ConfigurationError, InvalidArgument
from penstock.topics import validation

if TYPE_CHECKING:
    from penstock.database import Connection

#: The places that have a name.
EARLIEST, LATEST = "earliest", "latest"
_BOOKMARK = "bookmark:"
#: What becomes of a payload that does not fit: NULL, an error, or the event is left out.
PERMISSIVE, FAILFAST, DROPMALFORMED = "permissive", "failfast", "dropmalformed"
#: What payloads are decoded from.
JSON, AVRO = "json", "avro"
#: Where events are read: the database, the archive, or both.
HOT, COLD, AUTO = "hot", "cold", "auto"

_MOST_EVENTS = 100_000_000
_MOST_CONNECTIONS = 10_000
_MOST_VERSIONS = 10**18
_MOST_PARTITION = 99_999
_MOST_SAMPLED = 1_000_000
_OFFSETS_HINT = (
    'use "earliest", "latest", "bookmark:NAME", or a JSON object of positions by partition, like '
    '{"0": 1200}'
)
_TIME_HINT = "write a time with its zone, like 2026-01-31T09:30:00+01:00, or milliseconds"
_TYPES_HINT = 'leave it out for all; events whose type is the empty text are types = [""]'
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A user name and a password before a host.  A type or a subscription may be another URL.
_SECRET = re.compile(r"://[^/\s]*@")
_MAY_HOLD_SECRETS = frozenset({"url", "urlvariable", "targets"})
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
READ_NAMES = (
    "url", "urlVariable", "topic", "partitions", "types", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "eventsPerTask", "maxConnections",
    "maxEventsPerTrigger", "minEventsPerTrigger", "maxTriggerDelay", "failOnHistoryChange",
    "subscription", "source", "targets", "decode", "decodeSchema", "decodeWriters", "decodeSample",
    "decodeMode",
)  # fmt: skip
WRITE_NAMES = (
    "url", "urlVariable", "topic", "topicColumn", "writeId", "writeVersion",
    "failOnDifferentRows",
)  # fmt: skip
#: What Spark itself passes on to a data source.
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """Where the database is: a URL, or the environment variable of the worker that holds it."""

    url: str | None = field(default=None, repr=False)
    variable: str | None = None

    def connect(self, *, autocommit: bool = True, seconds: int = 30) -> Connection:
        """A connection; a statement may take so many seconds."""
        return connect(
            self.found(),
            autocommit=autocommit,
            application_name="penstock spark",
            statement_timeout_ms=seconds * 1_000,
        )

    def found(self) -> str:
        """The URL; ConfigurationError when this process does not have it."""
        if self.url:
            return self.url
        if self.variable is None:
            return config.database_url()
        found = os.environ.get(self.variable, "").strip()
        if not found:
            raise ConfigurationError(
                f"the variable {self.variable} that urlVariable names is not set in this process",
                hint="set it in the environment of the driver and of the executors",
            )
        return found


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write, and what a repeated write is known by."""

    address: DatabaseAddress
    topic: str | None
    topic_column: str | None
    write_id: str | None
    write_version: int
    fail_on_different_rows: bool


@dataclass(frozen=True, slots=True)
class ReadBound:
    """Where a read begins or ends: a name, a bookmark, a position for each partition, or a time."""

    name: str = ""
    bookmark: str | None = None
    positions: Mapping[int, int] | None = None
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReadPace:
    """How much a stream reads at once."""

    max_events: int | None
    min_events: int | None
    max_delay_seconds: float


@dataclass(frozen=True, slots=True)
class Decode:
    """How payloads become columns; without a schema it is inferred from so many events."""

    kind: str
    schema: str | None
    #: For Avro: the schemas that payloads name by a number.
    writers: str | None
    sample: int
    mode: str


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and how it is shared out among tasks."""

    address: DatabaseAddress
    topic: str
    partitions: frozenset[int] | None
    types: tuple[str, ...] | None
    starting: ReadBound
    ending: ReadBound
    events_per_task: int
    max_connections: int | None
    pace: ReadPace
    fail_on_history_change: bool
    subscription: str | None
    source: str
    targets: tuple[Target, ...]
    decode: Decode | None


def read_options(given: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """The options of a read."""
    _refuse_unknown(given, READ_NAMES)
    if streaming:
        _refuse_ends(given)
    starting = _place(given, "starting", LATEST if streaming else EARLIEST)
    ending = _place(given, "ending", LATEST)
    _require_order(starting, ending)
    return ReadOptions(
        address=address(given),
        topic=topic(given),
        partitions=_partitions(given.get("partitions")),
        types=_types(given.get("types")),
        starting=starting,
        ending=ending,
        events_per_task=_number(given, "eventsPerTask", 100_000, _MOST_EVENTS),
        max_connections=_number(given, "maxConnections", None, _MOST_CONNECTIONS),
        pace=_pace(given),
        fail_on_history_change=_truth(given, "failOnHistoryChange", True),
        subscription=_subscription(given),
        source=_source(given, streaming=streaming),
        targets=_targets(given.get("targets")),
        decode=_decode(given),
    )


def write_options(given: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """The options of a write."""
    _refuse_unknown(given, WRITE_NAMES)
    column, write_id = given.get("topicColumn"), given.get("writeId")
    if column is not None and given.get("topic") is not None:
        raise InvalidArgument("topic and topicColumn are both given", hint="give one of them")
    if (write_id is None) != (given.get("writeVersion") is None):
        raise InvalidArgument(
            "writeId and writeVersion belong together",
            hint="give both, so that a repeated write is known, or neither",
        )
    if streaming and write_id is not None:
        raise InvalidArgument(
            "a stream has no writeId", hint="its query and its micro-batch are the version"
        )
    return WriteOptions(
        address=address(given),
        topic=topic(given) if column is None else None,
        topic_column=column,
        write_id=None if write_id is None else validation.name(write_id, "writer"),
        write_version=_version(given.get("writeVersion")),
        fail_on_different_rows=_truth(given, "failOnDifferentRows", True),
    )


def address(given: Mapping[str, str]) -> DatabaseAddress:
    """The options url and urlVariable; without them, the worker's own environment decides."""
    url, variable = given.get("url"), given.get("urlVariable")
    if url is not None and variable is not None:
        raise InvalidArgument("url and urlVariable are both given", hint="give one of them")
    if url is not None:
        config.dialect_of_url(url)
    if variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        # It is not repeated: somebody may have given the URL itself.
        raise InvalidArgument(
            "urlVariable is not the name of an environment variable",
            hint="give a name, for example PENSTOCK_DATABASE_URL; the URL itself goes to url",
        )
    return DatabaseAddress(url, variable)


def topic(given: Mapping[str, str]) -> str:
    """The option topic."""
    found = given.get("topic")
    if not found:
        raise InvalidArgument(
            "the option topic is missing", hint='write .option("topic", "namespace/topic")'
        )
    validation.topic(found)
    return found


def _refuse_unknown(given: Mapping[str, str], names: Sequence[str]) -> None:
    known = {name.lower(): name for name in names}
    for option, text in given.items():
        if option.lower() in _OF_SPARK:
            continue
        if option.lower() in known:
            _refuse_secret(known[option.lower()], text)
            continue
        near = difflib.get_close_matches(option.lower(), known, 1)
        hint = f"did you mean {known[near[0]]}?" if near else f"there are: {', '.join(names)}"
        raise InvalidArgument(f"there is no option {option[:80]!r}", hint=hint)


def _refuse_secret(name: str, text: str) -> None:
    """A URL given to the wrong option would be repeated by its error, with the password."""
    if name.lower() not in _MAY_HOLD_SECRETS and _SECRET.search(text):
        raise InvalidArgument(
            f"{name} is a URL with a user name, which is not repeated here",
            hint="the URL of the database goes to url",
        )


def _refuse_ends(given: Mapping[str, str]) -> None:
    for name in ("endingOffsets", "endingTimestamp"):
        if given.get(name) is not None:
            raise InvalidArgument(
                f"a stream has no {name}", hint="read a batch, or stop the query yourself"
            )


def _partitions(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InvalidArgument(
                f"partitions is {text[:80]!r}", hint="list numbers and ranges, like 0,3,8-15"
            )
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def _types(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    if text.lstrip().startswith("["):
        found = _json(text, "types", 'list types with commas, or as JSON: ["a,b", "c"]')
        if not all(isinstance(each, str) for each in found):
            raise InvalidArgument("types is a list of other things than texts")
        if not found:
            raise InvalidArgument("types is an empty list", hint=_TYPES_HINT)
        return tuple(found)
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise InvalidArgument(f"types is {text[:80]!r}, with an empty one", hint=_TYPES_HINT)
    return parts


def _place(given: Mapping[str, str], side: str, default: str) -> ReadBound:
    offsets, time = given.get(f"{side}Offsets"), given.get(f"{side}Timestamp")
    if offsets is not None and time is not None:
        raise InvalidArgument(
            f"{side}Offsets and {side}Timestamp are both given", hint="give one of them"
        )
    if time is not None:
        return ReadBound(time=_time(time, f"{side}Timestamp"))
    text = default if offsets is None else offsets.strip()
    if text in (EARLIEST, LATEST):
        return ReadBound(name=text)
    if text.startswith(_BOOKMARK):
        return ReadBound(bookmark=text.removeprefix(_BOOKMARK))
    return ReadBound(positions=_positions(text, f"{side}Offsets"))


def _require_order(starting: ReadBound, ending: ReadBound) -> None:
    """What other places stand for is known to the database only; see ``batch_ranges``."""
    if starting.time and ending.time and starting.time > ending.time:
        raise InvalidArgument(
            f"startingTimestamp {starting.time} is after endingTimestamp {ending.time}",
            hint="give an end that is not before the start",
        )


def _positions(text: str, option: str) -> dict[int, int]:
    found = _json(text, option, _OFFSETS_HINT)
    if not isinstance(found, dict):
        raise InvalidArgument(f"{option} is {text[:80]!r}", hint=_OFFSETS_HINT)
    positions = {}
    for name, position in found.items():
        partition = _whole(name, _MOST_PARTITION)
        if partition is None or not validation.is_integer(position) or position < 0:
            raise InvalidArgument(
                f"{option} says {str(position)[:40]!r} for partition {name[:20]!r}",
                hint=_OFFSETS_HINT,
            )
        positions[partition] = position
    return positions


def _json(text: str, option: str, hint: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidArgument(f"{option} is {text[:80]!r}", hint=hint) from None


def _time(text: str, option: str) -> datetime:
    try:
        if text.isdecimal():
            return _EPOCH + timedelta(milliseconds=int(text))
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):  # no time, or beyond the years 1 to 9999 in UTC
        pass
    raise InvalidArgument(f"{option} is {text[:80]!r}", hint=_TIME_HINT)


def _pace(given: Mapping[str, str]) -> ReadPace:
    pace = ReadPace(
        _number(given, "maxEventsPerTrigger", None, _MOST_EVENTS),
        _number(given, "minEventsPerTrigger", None, _MOST_EVENTS),
        _seconds(given.get("maxTriggerDelay", "15m")),
    )
    if pace.min_events and pace.max_events and pace.min_events > pace.max_events:
        raise InvalidArgument(
            f"minEventsPerTrigger {pace.min_events} is above maxEventsPerTrigger {pace.max_events}",
            hint="give a smaller minimum",
        )
    return pace


def _seconds(text: str) -> float:
    match = re.fullmatch(r"\s*(\d{1,9})\s*(ms|s|m|h)\s*", text)
    if match is None:
        raise InvalidArgument(
            f"maxTriggerDelay is {text[:80]!r}", hint="write a number and ms, s, m or h, like 30s"
        )
    return int(match[1]) * _UNITS[match[2]]


def _number(given: Mapping[str, str], name: str, default: Any, most: int) -> Any:
    text = given.get(name)
    if text is None:
        return default
    found = _whole(text, most)
    if not found:
        _refuse(name, text, f"give a whole number from 1 to {most}")
    return found


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in {"true", "false"}:
        _refuse(name, text, "give true or false")
    return text.lower() == "true"


def _subscription(given: Mapping[str, str]) -> str | None:
    found = given.get("subscription")
    return None if found is None else validation.name(found, "subscription")


def _source(given: Mapping[str, str], *, streaming: bool) -> str:
    found = given.get("source", AUTO)
    if found not in (HOT, COLD, AUTO):
        _refuse("source", found, "give auto, hot or cold")
    if streaming and found == COLD:
        _refuse("source", found, "a stream follows the log: give auto or hot")
    if found == COLD and given.get("targets") is None:
        _refuse("source", found, 'say where the archive is: targets, like {"nas": "/mnt/archive"}')
    return found


def _targets(text: str | None) -> tuple[Target, ...]:
    if text is None:
        return ()
    hint = 'write a JSON object of names and places, like {"nas": "/mnt/archive"}'
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    # It is not repeated: a place may hold keys.
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise InvalidArgument("targets is no JSON object of texts", hint=hint)
    return tuple(Target(name, place) for name, place in found.items())


def _decode(given: Mapping[str, str]) -> Decode | None:
    kind, schema, writers = (given.get(f"decode{end}") for end in ("", "Schema", "Writers"))
    if kind is None:
        for name in ("decodeSchema", "decodeWriters", "decodeSample", "decodeMode"):
            if given.get(name) is not None:
                raise InvalidArgument(
                    f"{name} is given without decode", hint='write .option("decode", "json") too'
                )
        return None
    if kind.lower() not in {JSON, AVRO}:
        _refuse("decode", kind, "give json or avro")
    if kind.lower() == AVRO and schema is None:
        _refuse("decode", kind, "give decodeSchema too: Avro payloads do not name their fields")
    if kind.lower() == JSON and writers is not None:
        raise InvalidArgument("decodeWriters is given with decode=json", hint="it is for Avro")
    mode = given.get("decodeMode", PERMISSIVE).lower()
    if mode not in {PERMISSIVE, FAILFAST, DROPMALFORMED}:
        _refuse("decodeMode", mode, "give permissive, failfast or dropmalformed")
    if schema is not None and given.get("decodeSample") is not None:
        raise InvalidArgument(
            "decodeSchema and decodeSample are both given",
            hint="a sample is only read where the schema is to be inferred; give one of them",
        )
    sample = _number(given, "decodeSample", 1_000, _MOST_SAMPLED)
    return Decode(kind.lower(), schema, writers, sample, mode)


def _version(text: str | None) -> int:
    if text is None:
        return 0
    found = _whole(text, _MOST_VERSIONS)
    if found is None:
        _refuse("writeVersion", text, "give a whole number from 0 on")
    return found


def _whole(text: str, most: int) -> int | None:
    """The number from 0 to ``most`` that a text is; Python refuses to read 5,000 digits itself."""
    digits = text.strip().lstrip("0") or "0"
    if not text.strip().isdecimal() or len(digits) > len(str(most)) or int(digits) > most:
        return None
    return int(digits)


def _refuse(name: str, text: str, hint: str) -> NoReturn:
    raise InvalidArgument(f"{name} is {text[:80]!r}", hint=hint)
