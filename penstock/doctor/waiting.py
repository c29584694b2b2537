"""Why published events do not arrive, in words: for `penstock status` and for whoever waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.doctor.findings import behind, duration
from penstock.errors import PenstockError
from penstock.log.sequencer_state import SequencerState, Sequencing, one_look

#: After so long without an event, a reader asks why.  Each time it waits twice as long.
FIRST_LOOK_SECONDS, LONGEST_SECONDS = 10.0, 600.0
#: So much later it looks again, before it says that nobody sequences.
AGAIN_SECONDS = 2.0
#: How often at most the same is said.
SAID_EVERY_SECONDS = 3600.0
#: What a login that does not see the last pass takes for too long.
UNSEEN_SECONDS = 10.0


class Silence:
    """Tells a reader that gets nothing why that is so, when it is not for want of events."""

    def __init__(
        self, say: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._clock = clock
        self._said_at: float | None = None
        self.ended()

    def ended(self) -> None:
        """Something came."""
        self._pause = FIRST_LOOK_SECONDS
        self._look_at = self._clock() + FIRST_LOOK_SECONDS
        self._is_suspected = False

    def look(self, connection: Any) -> None:
        """Nothing came.  Needs a connection that commits by itself."""
        now = self._clock()
        if now < self._look_at:
            return
        try:
            found = one_look(connection)
        except PenstockError:  # this login may not ask
            self._look_at = now + LONGEST_SECONDS
            return
        if not _is_stuck(found) or self._is_suspected:
            if self._is_suspected and _is_stuck(found):
                self._tell(found, now)
            self._is_suspected = False
            self._pause = min(2 * self._pause, LONGEST_SECONDS)
            self._look_at = now + self._pause
        else:  # a pass may be about to begin
            self._is_suspected = True
            self._look_at = now + AGAIN_SECONDS

    def _tell(self, found: SequencerState, now: float) -> None:
        if self._said_at is None or now - self._said_at >= SAID_EVERY_SECONDS:
            self._said_at = now
            self._say(told(found))


def _is_stuck(found: SequencerState) -> bool:
    if found.state is Sequencing.UNKNOWN:
        return found.waiting_seconds >= UNSEEN_SECONDS
    return found.state is Sequencing.NOBODY or found.state is Sequencing.HELD


def told(found: SequencerState) -> str:
    """The sequencer's state in words, with what to do: the lag leaves out unsequenced events."""
    last = found.last_pass_seconds
    passed = "" if last is None else f" (its last pass that found work: {duration(last)} ago)"
    if not found.waiting_events:
        return f"nothing waits{passed}"
    waits = (
        f"{found.waiting_events} committed events wait for their sequence, the oldest "
        f"for {duration(found.waiting_seconds)}"
    )
    holder = (
        "" if found.holder is None else f"{found.holder} for {duration(found.held_seconds or 0)}"
    )
    if found.state is Sequencing.HELD:
        return f"{waits}; the sequencer is held by {holder}. run: penstock doctor"
    if found.state is Sequencing.NOBODY:
        maybe = f", or locks are held by {holder}" if holder else ""
        return (
            f"{waits}, and nobody sequences{maybe}{passed}. run: {behind('', is_idle=True).command}"
        )
    return f"{waits}; {found.state}{passed}"
