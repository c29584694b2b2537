"""The clock of a log in memory: a test moves it on."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from penstock.errors import InvalidArgument


class VirtualClock:
    """Stands still until :meth:`advance`.  With ``running``, real time that passes counts as well.

    Leases, delays, the window of dedup keys and the times of events use this clock.
    """

    def __init__(self, start: datetime | None = None, *, running: bool = False) -> None:
        if start is not None and start.utcoffset() is None:
            raise InvalidArgument(
                "the start of the clock has no zone", hint="use datetime(..., tzinfo=UTC)"
            )
        self._at = start or datetime.now(UTC)
        self._since = time.monotonic() if running else None

    def now(self) -> datetime:
        """The present time."""
        if self._since is None:
            return self._at
        return self._at + timedelta(seconds=time.monotonic() - self._since)

    def monotonic(self) -> float:
        """The present time in seconds, for code that takes a clock such as time.monotonic."""
        return self.now().timestamp()

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        if not seconds >= 0:
            raise InvalidArgument(f"the clock cannot go {seconds!r} seconds", hint="give 0 or more")
        self._at += timedelta(seconds=seconds)
