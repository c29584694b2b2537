"""The options of a sink's address, as the modules of the sinks read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qs

from penstock.errors import ConfigurationError

_FLAGS = {"true": True, "false": False}


def options_of(parts: SplitResult, known: Collection[str], said: str) -> dict[str, str]:
    """The options of an address.  ``said`` names the sink in errors: ``Pulsar``."""
    found = parse_qs(parts.query, keep_blank_values=True)
    unknown = sorted(found.keys() - set(known))
    if unknown:
        raise ConfigurationError(
            f"the {said} address has options that are not known: {', '.join(unknown)}"
        )
    return {name: values[-1] for name, values in found.items()}


def flag(options: Mapping[str, str], name: str, said: str, *, default: bool) -> bool:
    """An option that is true or false."""
    text = options.get(name)
    if text is None:
        return default
    if text not in _FLAGS:
        raise ConfigurationError(f"the {said} address has {name}=, which is neither true nor false")
    return _FLAGS[text]


def count(options: Mapping[str, str], name: str, said: str, *, lowest: int) -> int | None:
    """An option that is a whole number, or None."""
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) >= lowest):
        raise ConfigurationError(
            f"the {said} address has {name}=, which is no whole number from {lowest}"
        )
    return int(text)


def host_and_port(parts: SplitResult, said: str, port: int) -> dict[str, Any]:
    """The server of an address, with the usual port when it names none."""
    try:
        found = {"host": parts.hostname, "port": parts.port or port}
    except ValueError:  # the port is no number
        found = {"host": None}
    if not found["host"]:
        raise ConfigurationError(f"the {said} address names no server")
    return found
