"""How a relay of a queue works."""

from __future__ import annotations

from dataclasses import dataclass

from ops.relay.lanes import AT_ONCE
from ops.sinks.routing import KEY, NONE
from penstock.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class QueueRelayOptions:
    """How a relay of a queue works; times in seconds.  Without options as the Go outbox did.

    ``longest_poll_seconds``: while nothing comes, each pause is twice as long, up to this; 0: all
    are the same.
    """

    order: str = NONE
    batch: int = 100
    poll_seconds: float = 2.0
    longest_poll_seconds: float = 0.0
    send_seconds: float = 5.0
    mark_seconds: float = 10.0
    lease_seconds: float = 60.0
    attempts: int = 10
    counts_absence: bool = False
    first_backoff_seconds: float = 2.0
    longest_backoff_seconds: float = 300.0
    at_once: int = AT_ONCE

    def __post_init__(self) -> None:
        """InvalidArgument for what no relay can be."""
        if self.order not in {NONE, KEY}:
            raise InvalidArgument(f"a relay has no order {self.order!r}", hint="use none or key")
        for name in ("batch", "attempts", "at_once"):
            if getattr(self, name) < 1:
                raise InvalidArgument(
                    f"{name} of a relay is {getattr(self, name)}", hint="1 at least"
                )
        if not self.lease_seconds > 0 or not self.send_seconds > 0:
            raise InvalidArgument("a lease and a time limit of a relay are longer than 0 seconds")

    def settings(self) -> dict[str, float | str]:
        """What the queue itself has to know."""
        return {
            "visibility_seconds": self.lease_seconds,
            "max_deliveries": self.attempts,
            "max_failures": self.attempts,
            "first_backoff_seconds": self.first_backoff_seconds,
            "longest_backoff_seconds": self.longest_backoff_seconds,
            "order": self.order,
        }
