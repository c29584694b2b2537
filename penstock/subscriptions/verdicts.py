"""What a handler of a queue may say of an event: done, again, or discard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """A handler returns one of :data:`DONE`, :data:`DISCARD`, :data:`AGAIN`, or :func:`again`."""

    kind: str
    delay_seconds: float | None = None
    reason: str = ""


#: It is finished.  A handler that returns nothing says the same.
DONE = Verdict("done")
#: It is finished although nothing was done with it; that is counted and logged.
DISCARD = Verdict("discard")
#: It has failed, and comes again after the queue's backoff.
AGAIN = Verdict("again", reason="the handler asked for it again")


def again(delay_seconds: float | None = None, reason: str = AGAIN.reason) -> Verdict:
    """It has failed, and comes again after so long; without a time after the queue's backoff."""
    return Verdict("again", delay_seconds, reason)
