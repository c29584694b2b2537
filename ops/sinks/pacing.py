"""The rules about speed that stand behind the ``#`` of a sink's address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import ConfigurationError

NAMES = ("rate", "rate_bytes", "breaker", "breaker_seconds")
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pacing:
    """How fast a relay sends, and after how many failures in a row it leaves the sink alone.

    0: without a limit, and never.
    """

    events_per_second: float = 0.0
    bytes_per_second: float = 0.0
    breaker: int = 0
    breaker_seconds: float = 30.0

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Pacing:
        """From the rules; ConfigurationError for what is no number above 0."""
        found = {name: _number(name, given[name]) for name in NAMES if name in given}
        if "breaker" in found and not found["breaker"].is_integer():
            raise ConfigurationError("breaker= of a sink's address is no whole number")
        return cls(
            found.get("rate", 0.0),
            found.get("rate_bytes", 0.0),
            int(found.get("breaker", 0)),
            found.get("breaker_seconds", cls().breaker_seconds),
        )

    def block_events(self, most: int) -> int:
        """The events of a block: about a second's, so that the pace is even."""
        return _within(self.events_per_second, most)

    def block_bytes(self, most: int) -> int:
        """The bytes of a block: the same."""
        return _within(self.bytes_per_second, most)


def _within(a_second: float, most: int) -> int:
    return min(most, max(1, int(a_second))) if a_second else most


def _number(name: str, text: str) -> float:
    found = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not found:
        raise ConfigurationError(f"{name}= of a sink's address is no number above 0")
    return found
