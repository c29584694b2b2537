"""Checks of a consumer's options, and the filter of events."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from penstock.errors import InvalidArgument
from penstock.records import Event
from penstock.topics import validation


def event_filter(
    types: Collection[str] | None, headers: Mapping[str, Any] | None
) -> Callable[[Event], bool] | None:
    """Which events are handled: those of one of the types that have all these headers."""
    if isinstance(types, str):
        raise InvalidArgument("types is a text", hint="give a list of event types")
    if types is not None and not types:
        raise InvalidArgument("types is empty: nothing would be handled", hint="leave it out")
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidArgument(
            f"headers is a {type(headers).__name__}", hint="give a dict of names and values"
        )
    if types is None and not headers:
        return None
    wanted_types = None if types is None else frozenset(types)
    wanted_headers = dict(headers or {})

    def wanted(event: Event) -> bool:
        if wanted_types is not None and event.type not in wanted_types:
            return False
        if not wanted_headers:
            return True
        found = event.headers
        return all(name in found and found[name] == value for name, value in wanted_headers.items())

    return wanted


def at_least(name: str, value: Any, least: float) -> None:
    """InvalidArgument when an option is no number or too low."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < least
    ):
        raise InvalidArgument(f"{name} cannot be {value!r}", hint=f"use a number from {least} on")


def whole(name: str, value: Any, least: int) -> None:
    """InvalidArgument when an option is no whole number or too low."""
    if not validation.is_integer(value) or value < least:
        raise InvalidArgument(
            f"{name} cannot be {value!r}", hint=f"use a whole number from {least} on"
        )


def callback(name: str, value: Any) -> None:
    """InvalidArgument when an option is neither left out nor a function."""
    if value is not None and not callable(value):
        raise InvalidArgument(f"{name} is a {type(value).__name__}", hint="give a function")


def above_zero(name: str, value: float | None) -> None:
    """The same for what may be left out and else must be positive."""
    if value is not None:
        at_least(name, value, 0)
        if value == 0:
            raise InvalidArgument(f"{name} cannot be 0", hint="leave it out for no limit")
