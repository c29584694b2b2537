"""Values of the policy file, read: every fault is an error that names the place in the file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigurationError, InvalidArgument, InvalidName
from penstock.topics import validation

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
#: A hundred years: what is longer is a mistake, and dates cannot be reckoned with it.
_LONGEST_DAYS = 36_500
_DURATION = re.compile(r"(\d{1,12})\s*([smhd])")
#: The binary units first: in them a size is said again.
_SIZES = {
    "TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "TB": 10**12, "GB": 10**9, "MB": 10**6,
    "kB": 10**3, "B": 1,
}  # fmt: skip
_SIZE = re.compile(rf"(\d{{1,18}})\s*({'|'.join(_SIZES)})", re.ASCII)
#: The database counts bytes in 64 bits.
_LARGEST_SIZE = 2**63 - 1
#: What Dagster takes for an owner: it loads nothing at all with another one.
_OWNER = re.compile(r"team:[\w.-]+|\w[\w.%+-]*@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,7}", re.ASCII)
#: A value that is taken from the environment.
REFERENCE = re.compile(r"\$\{(\w+)\}")
_NAMES: dict[str, Callable[[str], object]] = {
    "topic": validation.topic,
    "namespace": validation.namespace,
    "subscription": lambda name: validation.name(name, "subscription"),
}


@contextmanager
def at(where: str) -> Iterator[None]:
    """Errors in it name this place, as errors in the configuration."""
    try:
        yield
    except (ConfigurationError, InvalidArgument, InvalidName) as error:
        raise ConfigurationError(f"{where}: {error.message}", hint=error.hint) from None


def entries(top: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section whose keys are names."""
    value = top.get(name) or {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name} is not a table", hint="write one `name: ...` a line")
    return {text(key, name): entry for key, entry in value.items()}


def section(value: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """A section whose keys are settings."""
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} is not a table", hint=f"it may hold: {', '.join(known)}")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise ConfigurationError(
            f"{where} has the unknown setting {unknown[0]!r}", hint=f"known: {', '.join(known)}"
        )
    return value


def require_name(name: str, scope: str, where: str) -> None:
    """ConfigurationError unless a topic, namespace or subscription can have this name."""
    with at(where):
        _NAMES[scope](name)


def text(value: Any, where: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{where} is {value!r}", hint="write text; quote what is not")
    return value


def topic(value: Any, where: str) -> str:
    """The address that a topic can have."""
    require_name(text(value, where), "topic", where)
    return str(value)


def owner(value: Any, where: str) -> str | None:
    """An owner that Dagster takes, or none."""
    if value is None:
        return None
    given = text(value, where)
    if not _OWNER.fullmatch(given):
        raise ConfigurationError(
            f"{where} is {given!r}",
            hint="write team:name, or an e-mail address of letters, digits and . _ % + - only",
        )
    return given


@dataclass(frozen=True, slots=True)
class FileValue:
    """What a setting of the file may be: in words, and what reads it."""

    form: str
    read: Callable[[Any, str], Any] = lambda value, _: value


def count(lowest: int, highest: int) -> FileValue:
    """A whole number within its bounds."""

    def read(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ConfigurationError(
                f"{where} is {value!r}", hint=f"write a whole number from {lowest} to {highest}"
            )
        return value

    return FileValue(f"{lowest:,} to {highest:,}", read)


def word(*known: str) -> FileValue:
    """One of some words."""

    def read(value: Any, where: str) -> str:
        if value not in known:
            raise ConfigurationError(
                f"{where} is {value!r}", hint=f"write one of: {', '.join(known)}"
            )
        return str(value)

    return FileValue(" or ".join(known), read)


def _seconds(value: Any, where: str) -> int:
    """A duration: whole seconds, or ``90s``, ``15m``, ``2h``, ``7d``."""
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    found = int(match[1]) * _UNITS[match[2]] if match else value
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise ConfigurationError(f"{where} is {value!r}", hint="write 90s, 15m, 2h or 7d")
    if found > _LONGEST_DAYS * _UNITS["d"]:
        raise ConfigurationError(
            f"{where} is {value!r}: that is too long", hint=f"write at most {_LONGEST_DAYS}d"
        )
    return found


def _size(value: Any, where: str) -> int:
    """A number of bytes: a whole number, or ``500MB``, ``200GiB``."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    found = int(match[1]) * _SIZES[match[2]] if match else value
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= _LARGEST_SIZE:
        raise ConfigurationError(
            f"{where} is {value!r}",
            hint="write bytes as a whole number, or 500MB, 200GiB; the units are B, kB, MB, GB, "
            "TB, KiB, MiB, GiB and TiB",
        )
    return found


TEXT = FileValue("text", text)
TOPIC = FileValue("a topic", topic)
SECONDS = FileValue(f"a duration, up to {_LONGEST_DAYS}d", _seconds)
BYTES = FileValue("a size", _size)


def said_size(count: int) -> str:
    """A number of bytes in the largest unit that says it exactly."""
    unit = next(unit for unit, each in _SIZES.items() if count % each == 0)
    return f"{count // _SIZES[unit]} {unit}"


def expand(value: str, where: str, environ: Mapping[str, str] | None) -> str:
    """The value itself, or the value of the environment variable that it names."""
    found = known(value, environ)
    if found is None:
        variable = value[2:-1]
        raise ConfigurationError(
            f"{where} is taken from {variable}, which is not set",
            hint=f"set the environment variable {variable}, or change the policy file",
        )
    return found


def known(value: str, environ: Mapping[str, str] | None) -> str | None:
    """The same; None when the variable is not set."""
    environ = os.environ if environ is None else environ
    reference = REFERENCE.fullmatch(value)
    if reference is None:
        return value
    return environ.get(reference[1], "").strip() or None
