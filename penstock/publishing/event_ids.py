"""Event ids: UUIDs of version 7, rising within a process."""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid

_NANOSECONDS = 1_000_000  # in a millisecond


class Identifiers:
    """Makes UUIDv7s: milliseconds, 12 bits of their fraction or of a counter, 62 random bits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def after_fork(self) -> None:
        """In the new process: another thread may have had the lock, and is not there."""
        self._lock = threading.Lock()

    def make(self, count: int) -> list[uuid.UUID]:
        """That many new ids, each greater than every id made before."""
        first = self._taken(count)
        randoms = struct.unpack(f"{count}Q", os.urandom(8 * count))
        made = []
        for tick, random in enumerate(randoms, first):
            # UUID.__init__ costs five times what the rest does; these are its two slots.
            each = _new(uuid.UUID)
            _set_int(
                each, tick >> 12 << 80 | 7 << 76 | (tick & 0xFFF) << 64 | 2 << 62 | random >> 2
            )
            _set_is_safe(each, uuid.SafeUUID.unknown)
            made.append(each)
        return made

    def make_packed(self, count: int) -> bytes:
        """The same as bytes: of each id its size in four bytes, and its sixteen."""
        first = self._taken(count)
        ticks = range(first, first + count)
        times = struct.pack(f">{count}Q", *(t >> 12 << 16 | 7 << 12 | t & 0xFFF for t in ticks))
        randoms = os.urandom(8 * count)
        packed = bytearray(20 * count)
        packed[3::20] = b"\x10" * count
        packed[12::20] = randoms[::8].translate(_VARIANT)
        for place in range(8):
            packed[4 + place :: 20] = times[place::8]
            if place:
                packed[12 + place :: 20] = randoms[place::8]
        return bytes(packed)

    def _taken(self, count: int) -> int:
        """The first of so many ticks that no other id has."""
        milliseconds, rest = divmod(time.time_ns(), _NANOSECONDS)
        with self._lock:
            first = max(milliseconds << 12 | (rest << 12) // _NANOSECONDS, self._last + 1)
            self._last = first + count - 1
        return first


#: The two highest bits of the random part are 10.
_VARIANT = bytes(each & 0x3F | 0x80 for each in range(256))
_new = uuid.UUID.__new__
_set_int = uuid.UUID.__dict__["int"].__set__
_set_is_safe = uuid.UUID.__dict__["is_safe"].__set__


_identifiers = Identifiers()
os.register_at_fork(after_in_child=_identifiers.after_fork)


def uuid7() -> uuid.UUID:
    """A new event id."""
    return _identifiers.make(1)[0]


def uuid7s(count: int) -> list[uuid.UUID]:
    """New event ids for a batch, in rising order."""
    return _identifiers.make(count)


def packed_uuid7s(count: int) -> bytes:
    """The same as the elements of a binary array: each id with its size before it."""
    return _identifiers.make_packed(count)
