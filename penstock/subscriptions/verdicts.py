"""What a handler of a queue may say of an event: done, again, or discard."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidArgument
from penstock.topics.validation import Range

_DELAY = Range(0, 31_536_000)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A handler returns one of :data:`DONE`, :data:`DISCARD`, :data:`AGAIN`, or :func:`again`."""

    kind: str
    delay_seconds: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        # Here, because the handler learns of it; later it would end the worker.
        if self.delay_seconds is not None:
            _DELAY.require("delay_seconds", self.delay_seconds)
        if not isinstance(self.reason, str):
            raise InvalidArgument(
                f"the reason of a verdict is a {type(self.reason).__name__}", hint="give a text"
            )


#: It is finished.  A handler that returns nothing says the same.
DONE = Verdict("done")
#: It is finished although nothing was done with it; that is counted and logged.
DISCARD = Verdict("discard")
#: It has failed, and comes again after the queue's backoff.
AGAIN = Verdict("again", reason="the handler asked for it again")


def again(delay_seconds: float | None = None, reason: str = AGAIN.reason) -> Verdict:
    """It has failed, and comes again after so long; without a time after the queue's backoff."""
    return Verdict("again", delay_seconds, reason)
