"""Event ids: UUIDs of version 7, rising within a process."""

from __future__ import annotations

import os
import threading
import time
import uuid

_NANOSECONDS = 1_000_000  # in a millisecond


class Identifiers:
    """Makes UUIDv7s: milliseconds, 12 bits of their fraction or of a counter, 62 random bits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def make(self, count: int) -> list[uuid.UUID]:
        """That many new ids, each greater than every id made before."""
        milliseconds, rest = divmod(time.time_ns(), _NANOSECONDS)
        with self._lock:
            first = max(milliseconds << 12 | (rest << 12) // _NANOSECONDS, self._last + 1)
            self._last = first + count - 1
        random = os.urandom(8 * count)
        return [
            _uuid7(first + i, int.from_bytes(random[8 * i : 8 * i + 8]) >> 2) for i in range(count)
        ]


def _uuid7(tick: int, random: int) -> uuid.UUID:
    return uuid.UUID(int=tick >> 12 << 80 | 7 << 76 | (tick & 0xFFF) << 64 | 2 << 62 | random)


_identifiers = Identifiers()


def uuid7() -> uuid.UUID:
    """A new event id."""
    return _identifiers.make(1)[0]


def uuid7s(count: int) -> list[uuid.UUID]:
    """New event ids for a batch, in rising order."""
    return _identifiers.make(count)
