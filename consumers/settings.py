"""What a daemon is asked to run, checked before anything starts."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigurationError

LOG_LEVELS = ("debug", "info", "warning", "error")
ROLES = ("sequencer", "sweep", "relay", "consumers")


@dataclass(frozen=True, slots=True)
class Settings:
    """The daemon's settings; the dictionaries map a subscription to what serves it."""

    url: str
    roles: frozenset[str]
    consumers: dict[str, Callable[..., Any]]
    batch_consumers: dict[str, Callable[..., Any]]
    relays: dict[str, str]
    consumer_id: str | None
    batch_size: int
    http_host: str
    http_port: int
    drain_seconds: float
    stuck_seconds: float

    def subscriptions(self) -> list[str]:
        """What is read; a subscription that is given twice is there twice."""
        return [*self.consumers, *self.batch_consumers, *self.relays]


def parse_roles(text: str) -> frozenset[str]:
    """A comma-separated list of roles."""
    roles = frozenset(part.strip() for part in text.split(",") if part.strip())
    unknown = sorted(roles.difference(ROLES))
    if unknown or not roles:
        raise ConfigurationError(
            f"unknown role {unknown[0]!r}" if unknown else "the daemon has no role",
            hint=f"use some of {', '.join(ROLES)}",
        )
    return roles


def parse_log_level(text: str) -> str:
    """A level of the standard library's logging."""
    if text.lower() not in LOG_LEVELS:
        raise ConfigurationError(
            f"unknown log level {text!r}", hint=f"use one of {', '.join(LOG_LEVELS)}"
        )
    return text.lower()


def parse_pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """``subscription=value`` options as a dictionary."""
    pairs: dict[str, str] = {}
    for text in given:
        name, found, value = text.partition("=")
        if not found or not name or not value:
            raise ConfigurationError(f"{option} {text!r} is not SUBSCRIPTION=VALUE")
        if name in pairs:
            raise ConfigurationError(f"{option} names the subscription {name!r} twice")
        pairs[name] = value
    return pairs


def load_handler(address: str) -> Callable[..., Any]:
    """The function that ``module:function`` names."""
    module_name, found, attribute = address.partition(":")
    if not (module_name and found and attribute):
        raise ConfigurationError(f"handler {address!r} is not module:function")
    try:
        handler = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a module may fail in any way while it is imported
        problem = (str(error).splitlines() or [""])[0]
        raise ConfigurationError(
            f"handler {address!r} cannot be loaded: {type(error).__name__}: {problem}",
            hint="the module must be importable where the daemon runs",
        ) from error
    if not callable(handler):
        raise ConfigurationError(f"handler {address!r} is not a function")
    return handler  # type: ignore[no-any-return]
