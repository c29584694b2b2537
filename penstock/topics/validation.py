"""What is refused before the database sees it, so that the caller's transaction can go on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from penstock.errors import (
    ControlCharacter,
    EmptyName,
    EmptySegment,
    InvalidArgument,
    InvalidName,
    InvalidPartition,
    NameTooLong,
    PathTooLong,
)

# The limits of names and events; texts are counted in code points.
MAX_NAME = 500
MAX_ADDRESS = 4_000
MAX_NAMESPACE = MAX_ADDRESS - 2  # so that the shortest topic still fits below it
MAX_KEY = 255
MAX_TYPE = 255
MAX_CONTENT_TYPE = 255
MAX_CONSUMER_ID = 255
MAX_PARTITIONS = 65_536
MAX_HEADERS_BYTES = 65_536
MAX_HEADERS_DEPTH = 32
MAX_HEADER_DIGITS = 400
MAX_ATTEMPTS = 1_000

# Control characters and blanks are those of Unicode, spelled out as in the database's require_name.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BLANK = re.compile(r"[ \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*")
_IS_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
SURROGATE = re.compile(r"[\ud800-\udfff]")


def name(text: str, what: str) -> str:
    """One name, which may hold a slash: of a subscription or a consumer."""
    if not isinstance(text, str):
        raise InvalidName(
            f"the name of a {what} is a {type(text).__name__}", hint="names are text (str)"
        )
    if SURROGATE.search(text):
        raise InvalidName(
            f"the name of a {what} holds half a surrogate pair", hint="use valid Unicode"
        )
    if _CONTROL.search(text):
        raise ControlCharacter(
            f"the name of a {what} holds a control character", hint="use printable characters only"
        )
    if _BLANK.fullmatch(text):
        raise EmptyName(f"the name of a {what} is empty", hint="give 1 to 500 characters")
    if len(text) > MAX_NAME:
        raise NameTooLong(
            f"the name of a {what} has {len(text)} characters",
            hint=f"use at most {MAX_NAME}",
        )
    return text


def single_name(text: str, what: str) -> str:
    """One name of a path."""
    name(text, what)
    if "/" in text:
        raise EmptySegment(
            f"the name of a {what} holds '/'", hint="/ separates the names of a path"
        )
    return text


def namespace(path: str) -> str:
    """A namespace path, ``name/name/...``."""
    return _path(path, "namespace", MAX_NAMESPACE)


def topic(address: str) -> str:
    """A topic address, ``namespace/path/topic``."""
    if not isinstance(address, str):
        raise InvalidName(f"a topic is a {type(address).__name__}", hint=_order_of(address))
    return _topic(address)


def _order_of(address: object) -> str:
    """What to say of a topic that is no text: most often it is another argument of the call."""
    if isinstance(address, bytes | bytearray | memoryview):
        return "names are text (str); the topic comes before the payload"
    if hasattr(address, "cursor") or hasattr(address, "commit"):
        return "names are text (str); the connection comes before the topic"
    return "names are text (str)"


@lru_cache(maxsize=1_024)
def _topic(address: str) -> str:
    _path(address, "topic", MAX_ADDRESS)
    if "/" not in address:
        raise InvalidName(f"the topic {address!r} has no namespace", hint="write namespace/topic")
    return address


def partition_count(count: int) -> int:
    """A number of partitions."""
    if is_integer(count) and 1 <= count <= MAX_PARTITIONS:
        return count
    raise InvalidPartition(
        f"a topic cannot have {count!r} partitions",
        hint=f"use 1 to {MAX_PARTITIONS}; up to 1,024 is practical",
    )


def number(value: Any, what: str) -> float:
    """A finite number, which databases can calculate with."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise InvalidArgument(f"the {what} is {value!r}", hint="give a number that is finite")


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a setting or an option may be, the bounds included.

    With ``is_above`` the lower bound is excluded.
    """

    lowest: float
    highest: float = math.inf
    is_whole: bool = False
    is_above: bool = False

    def problem(self, value: object) -> str | None:
        """What has to be given instead; None when the value is valid."""
        kind = int if self.is_whole else int | float
        if (
            isinstance(value, kind)
            and not isinstance(value, bool)
            and self.lowest <= value <= self.highest
            and value < math.inf
            and not (self.is_above and value == self.lowest)
        ):
            return None
        what = "a whole number" if self.is_whole else "a number"
        if self.is_above:
            return f"use {what} above {self.lowest}, or leave it out for no limit"
        if self.highest == math.inf:
            return f"use {what} from {self.lowest} on"
        return f"use {what} from {self.lowest} to {self.highest}"

    def require(self, name: str, value: object) -> None:
        """InvalidArgument when the value of this name is not one of these numbers."""
        problem = self.problem(value)
        if problem:
            raise InvalidArgument(f"{name} cannot be {value!r}", hint=problem)


def function(what: str, value: object, hint: str = "give a function") -> None:
    """InvalidArgument when a value cannot be called."""
    if not callable(value):
        raise InvalidArgument(f"{what} is a {type(value).__name__}", hint=hint)


def known(given: Iterable[str], names: Sequence[str], whose: str) -> None:
    """InvalidArgument for a name that is none of these, with the one that was probably meant."""
    for each in given:
        if each not in names:
            from difflib import get_close_matches  # only who errs loads it

            close = get_close_matches(each, names, 1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise InvalidArgument(
                f"{whose} has no {each}", hint=f"{meant}It has: {', '.join(names)}"
            )


def fetched(partition: Any, from_sequence: Any, max_events: Any) -> None:
    """Refuse what is not a whole number.  The database checks the bounds."""
    given = {"partition": partition, "from_sequence": from_sequence, "max_events": max_events}
    for what, value in given.items():
        if not is_integer(value):
            raise InvalidArgument(f"{what} is a {type(value).__name__}", hint="give a whole number")


def position(given: Any) -> None:
    """InvalidArgument for a position that is not a whole number: the database would round it."""
    if not is_integer(given):
        raise InvalidArgument(
            f"a position is a {type(given).__name__}",
            hint="give the sequence of the last event that is done",
        )


def _path(path: str, what: str, longest: int) -> str:
    if not isinstance(path, str):
        raise InvalidName(f"a {what} is a {type(path).__name__}", hint="names are text (str)")
    if not path:
        raise EmptyName(f"the path of the {what} is empty", hint="give its path")
    if len(path) > longest:
        raise PathTooLong(
            f"the path of the {what} has {len(path)} characters", hint=f"use at most {longest}"
        )
    parts = path.split("/")
    for place, part in enumerate(parts, start=1):
        if not part and _IS_URL.search(path):  # it is not repeated: it may hold a password
            raise EmptySegment(
                f"the {what} is a URL, which is not repeated here",
                hint="write namespace/topic; the URL of the database is another argument",
            )
        if not part:
            raise EmptySegment(
                f"the {what} {path[:80]!r} has an empty name in its path",
                hint="write names with one / between them, none at the start or the end",
            )
        name(part, what if place == len(parts) else "namespace")
    return path


def is_integer(value: Any) -> bool:
    """Whether a value is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)
