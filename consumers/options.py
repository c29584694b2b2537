"""What a daemon can be told, and where: a flag, the environment, a file, a profile, the default.

The first of these that names an option decides it.  A file's unknown key, a variable
``PENSTOCK_DAEMON_...`` that is none and a value out of range are refused, whatever would win.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops import yaml_file
from penstock.errors import ConfigurationError

PREFIX = "PENSTOCK_DAEMON_"
FILE = f"{PREFIX}CONFIG"
ROLES = ("sequencer", "sweep", "relay", "consumers")

#: What Kubernetes sets in every pod beside a service of the name penstock-daemon.
_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?")

Value = Any


@dataclass(frozen=True, slots=True)
class Option:
    """One option: of a kind (text, number, whole, word, words or pairs), within bounds."""

    kind: str
    default: Value
    about: str
    lowest: float = 0
    highest: float = 0
    words: tuple[str, ...] = ()

    def read(self, given: object, where: str) -> Value:
        """The value out of a file, or out of the text of a flag or variable."""
        if self.kind == "pairs":
            return _pairs(given, where)
        if self.kind == "words":
            return _words(given, where, self.words)
        if self.kind == "word":
            if not isinstance(given, str) or given.lower() not in self.words:
                raise _wrong(where, given, f"use one of {', '.join(self.words)}")
            return given.lower()
        if self.kind == "text":
            if not isinstance(given, str) or not given.strip():
                raise _wrong(where, given, "write text; quote what is not")
            return given.strip()
        return self._number(given, where)

    def _number(self, given: object, where: str) -> float:
        value: object = given
        if isinstance(given, str):
            with contextlib.suppress(ValueError):
                value = int(given) if self.kind == "whole" else float(given)
        kinds = int if self.kind == "whole" else int | float
        if (
            isinstance(value, bool)
            or not isinstance(value, kinds)
            or not self.lowest <= value <= self.highest
        ):
            what = "a whole number" if self.kind == "whole" else "a number"
            raise _wrong(where, given, f"use {what} from {self.lowest:,} to {self.highest:,}")
        return value if self.kind == "whole" else float(value)


_NAMED: dict[str, str] = {}

OPTIONS: dict[str, Option] = {
    "profile": Option(
        "word", "balanced", "what the options below are for",
        words=("balanced", "latency", "throughput", "cost"),
    ),
    "roles": Option("words", ("sequencer", "sweep"), "what the daemon does", words=ROLES),
    "processes": Option("whole", 1, "how many processes share the consumers and relays", 1, 64),
    "consumers": Option("pairs", _NAMED, "SUBSCRIPTION=module:function, called with an event"),
    "batch_consumers": Option("pairs", _NAMED, "the same, for functions that take a batch"),
    "relays": Option("pairs", _NAMED, "SUBSCRIPTION=SINK, e.g. jsonl:folder"),
    "consumer_id": Option("text", None, "default: host, process, random"),
    "coordination": Option(
        "text", None, "where consumers' leases live: etcd://, redis://; default: the database"
    ),
    "assign": Option("text", "stealing", "with coordination: stealing or coordinated"),
    "weight": Option("number", 1.0, "the share of the partitions, against others'", 0.001, 1000),
    "batch_size": Option("whole", 500, "events of a poll", 1, 100_000),
    "concurrency": Option("whole", 1, "handlers at a time; each key in order", 1, 1000),
    "handler_seconds": Option("number", None, "a handler that takes longer failed", 0.001, 86_400),
    "idle_seconds": Option("number", 0.5, "the longest rest of a consumer", 0.01, 60),
    "sequencer_events": Option("whole", 10_000, "events of a pass", 1, 1_000_000),
    "sweep_seconds": Option("number", 5.0, "between two looks for dead consumers", 0.1, 3600),
    "reconnects_per_second": Option(
        "number", 2.0, "attempts to connect again, of all processes", 0.1, 1000
    ),
    "http_host": Option("text", "127.0.0.1", "where /livez, /readyz and /metrics listen"),
    "http_port": Option("whole", 0, "0: any free port; the log names it", 0, 65_535),
    "drain_seconds": Option("number", 30.0, "how long SIGTERM waits for work in hand", 0, 86_400),
    "stuck_seconds": Option(
        "number", 300.0, "a batch that takes longer turns /livez to 503", 1, 86_400
    ),
    "log_level": Option(
        "word", "info", "what is logged", words=("debug", "info", "warning", "error")
    ),
    "log_format": Option("word", "json", "how it is written", words=("json", "text")),
}  # fmt: skip

#: What a profile says instead of the defaults; docs/daemon.md has the policies that go with it.
PROFILES: dict[str, dict[str, Value]] = {
    "balanced": {},
    "latency": {
        "batch_size": 100, "idle_seconds": 0.1, "sequencer_events": 2_000, "sweep_seconds": 2.0,
    },
    "throughput": {
        "batch_size": 1_000, "idle_seconds": 0.5, "sequencer_events": 50_000, "sweep_seconds": 5.0,
    },
    "cost": {
        "batch_size": 500, "idle_seconds": 5.0, "sequencer_events": 10_000, "sweep_seconds": 30.0,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effective:
    """The value of every option, and who said so."""

    values: dict[str, Value]
    sources: dict[str, str] = field(default_factory=dict)


def effective(flags: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Effective:
    """Every option's value; ``flags`` are those of the command line that were given."""
    environ = os.environ if environ is None else environ
    path = flags.get("config") or environ.get(FILE, "").strip()
    given = {
        "flag": _from_flags(flags),
        "environment": _from_environment(environ),
        "file": _from_file(Path(str(path))) if path else {},
    }
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for name, option in OPTIONS.items():
        source = next((each for each, found in given.items() if name in found), "default")
        values[name] = given[source][name] if source in given else option.default
        sources[name] = source
    for name, value in PROFILES[values["profile"]].items():
        if sources[name] == "default":
            values[name], sources[name] = value, f"profile {values['profile']}"
    return Effective(values, sources)


def _from_flags(flags: Mapping[str, object]) -> dict[str, Value]:
    return {
        name: OPTIONS[name].read(value, flag(name))
        for name, value in flags.items()
        if name in OPTIONS and value is not None and value != []
    }


def flag(name: str) -> str:
    """An option as the command line writes it; those that repeat name one thing each time."""
    singular = name.removesuffix("s") if OPTIONS[name].kind == "pairs" else name
    return f"--{singular.replace('_', '-')}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    known = {f"{PREFIX}{name.upper()}": name for name in OPTIONS}
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX)
        if (
            name != variable
            and variable not in (*known, FILE)
            and not _SERVICE_LINK.fullmatch(name)
        ):
            raise _unknown("the variable", variable, [*known, FILE])
    return {
        name: OPTIONS[name].read(environ[variable], variable)
        for variable, name in known.items()
        if environ.get(variable, "").strip()
    }


def _from_file(path: Path) -> dict[str, Value]:
    hint = f"give another with --config or {FILE}"
    content = yaml_file.parse(yaml_file.read(path, "the daemon's file", hint), path.name)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{path.name} is no table", hint="write one `option: value` a line"
        )
    found = {}
    for key, value in content.items():
        if key not in OPTIONS:
            raise _unknown(f"{path.name}: the option", str(key), OPTIONS)
        if value is not None:
            found[key] = OPTIONS[key].read(value, f"{path.name}: {key}")
    return found


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigurationError:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    return ConfigurationError(f"{what} {name!r} is not known", hint=f"the nearest is {near[0]}")


def _wrong(where: str, given: object, hint: str) -> ConfigurationError:
    return ConfigurationError(f"{where} is {_short(given)}", hint=hint)


def _short(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:80]}..."  # noqa: PLR2004


def _words(given: object, where: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """A list, or the same as text with commas."""
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list) or not all(isinstance(each, str) for each in parts):
        raise _wrong(where, given, f"write some of {', '.join(known)}")
    found = [each.strip() for each in parts if each.strip()]
    for each in found:
        if each not in known:
            raise _unknown(f"{where}: the word", each, known)
    if not found:
        raise _wrong(where, given, f"use some of {', '.join(known)}")
    return tuple(each for each in known if each in found)


def _pairs(given: object, where: str) -> dict[str, str]:
    """A table, or ``name=value`` texts: a list of them, or one with commas."""
    if isinstance(given, dict):
        pairs = list(given.items())
    else:
        texts = given.split(",") if isinstance(given, str) else given
        if not isinstance(texts, list):
            raise _wrong(where, given, "write one `subscription: value` a line")
        pairs = [_pair(each, where) for each in texts]
    found: dict[str, str] = {}
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str) or not name or not value.strip():
            raise _wrong(f"{where}: {name}", value, "write SUBSCRIPTION and VALUE as text")
        if name in found:
            raise ConfigurationError(f"{where} names the subscription {name!r} twice")
        found[name] = value.strip()
    return found


def _pair(text: object, where: str) -> tuple[str, str]:
    name, found, value = str(text).partition("=")
    if not found or not name.strip() or not value.strip():
        raise _wrong(where, text, "write SUBSCRIPTION=VALUE")
    return name.strip(), value.strip()
