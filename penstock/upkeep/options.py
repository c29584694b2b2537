"""The options of a long-running program, each written once, as a field of a class of settings.

    @dataclass(frozen=True, slots=True)
    class Settings:
        http_port: int = option("whole", 0, "0: any free port", 0, 65_535)

Flags, environment variables and keys of a file are made from these fields.  The first source that
names an option decides its value.  A wrong value in another source is refused all the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConfigurationError

Value = Any

_OPTION = "option"

#: What Kubernetes sets in every pod next to a service with the name penstock-daemon.
_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?")
#: What it sets a name to that may be an option too: `port`.
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Option:
    """One option.  It has a kind (text, number, whole, word, words or pairs) and bounds."""

    kind: str
    default: Value
    about: str
    lowest: float = 0
    highest: float = 0
    words: tuple[str, ...] = ()

    def read(self, given: object, where: str) -> Value:
        """The value from a file, or from the text of a flag or variable."""
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

    def flag(self, name: str) -> str:
        """The flag on the command line.  A flag that may repeat has a name in the singular."""
        singular = name.removesuffix("s") if self.kind == "pairs" else name
        return f"--{singular.replace('_', '-')}"

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


def option(
    kind: str,
    default: Value,
    about: str,
    lowest: float = 0,
    highest: float = 0,
    *,
    words: tuple[str, ...] = (),
) -> Any:
    """A field of a class of settings that flags, variables or a file can set."""
    made = Option(kind, default, about, lowest, highest, words)
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={_OPTION: made})
    return field(default=default, metadata={_OPTION: made})


def options_of(settings: type) -> dict[str, Option]:
    """The options of a class of settings: first its own, then the inherited ones."""
    found: dict[str, Option] = {}
    fields = {each.name: each for each in dataclasses.fields(settings)}
    for kind in settings.__mro__:
        for name in inspect.get_annotations(kind):
            if name in fields and _OPTION in fields[name].metadata:
                found.setdefault(name, fields[name].metadata[_OPTION])
    return found


@dataclass(frozen=True, slots=True)
class Effective:
    """The value of every option, and the source of each."""

    values: dict[str, Value]
    sources: dict[str, str] = field(default_factory=dict)


def chosen(options: Mapping[str, Option], given: Mapping[str, Mapping[str, Value]]) -> Effective:
    """The value of each option, from the first source that names it, or its default."""
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for name, each in options.items():
        source = next((source for source, found in given.items() if name in found), "default")
        values[name] = given[source][name] if source in given else each.default
        sources[name] = source
    return Effective(values, sources)


def from_flags(options: Mapping[str, Option], flags: Mapping[str, object]) -> dict[str, Value]:
    """The values of the flags that were given."""
    return {
        name: options[name].read(value, options[name].flag(name))
        for name, value in flags.items()
        if name in options and value is not None and value != []
    }


def from_environment(
    options: Mapping[str, Option], prefix: str, environ: Mapping[str, str], *others: str
) -> dict[str, Value]:
    """The values of the variables with this prefix.

    A variable that is neither an option nor one of ``others`` is an error.
    """
    known = {f"{prefix}{name.upper()}": name for name in options}
    for variable in sorted(environ):
        name = variable.removeprefix(prefix)
        if (
            name != variable
            and variable not in (*known, *others)
            and not _SERVICE_LINK.fullmatch(name)
        ):
            raise unknown("the variable", variable, [*known, *others])
    return {
        name: options[name].read(environ[variable], variable)
        for variable, name in known.items()
        if environ.get(variable, "").strip()
        and not _is_link(variable.removeprefix(prefix), environ[variable])
    }


def _is_link(name: str, value: str) -> bool:
    """Whether Kubernetes gave an option this value, and no operator."""
    return bool(_SERVICE_LINK.fullmatch(name) and _SERVICE_ADDRESS.match(value))


def unknown(what: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """The error for an unknown name, with the nearest known one."""
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
            raise unknown(f"{where}: the word", each, known)
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
