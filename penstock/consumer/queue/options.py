"""The options of a consumer of a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from penstock.consumer.handlers.options import Handler, Middleware, require_middleware
from penstock.topics.validation import Range


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueOptions:
    """How a consumer of a queue works.  A wrong value raises InvalidArgument.

    The table of docs/reference/queue.md is made from these comments.
    """

    #: Called with each `penstock.QueueDelivery`; `def` or `async def`.
    handler: Handler | None = None
    #: How many handlers run at once.
    concurrency: int = 1
    #: How many events are received ahead.  Without a value: as many as handlers do in a second, as
    #: measured, and at most as many as a quarter of the visibility is enough for.
    prefetch: int | None = None
    #: Finished events are acknowledged together: when they are so many (1 to 1,000), or one has
    #: waited so long.  Without a value: 5 ms, and at once where the queue keeps the order of keys.
    acknowledge_every_events: int = 100
    acknowledge_every_seconds: float | None = None
    #: How long an event is hidden at a time.  A claim is extended when half is over.  Without a
    #: value: the queue's own.
    visibility_seconds: float | None = None
    #: The longest pause between two looks.  New events wake a worker; a look finds due and expired
    #: ones.
    idle_seconds: float = 0.1
    #: A handler that takes longer has failed.  A thread cannot be ended, but it can change nothing
    #: any more.  A handler in `delivery.transaction()` has not failed: the event comes again after
    #: its time, unless that transaction finishes it.
    handler_seconds: float | None = None
    #: Functions around each call of the handler, the first one outermost.
    middleware: Sequence[Middleware] = ()
    #: For tests: a monotonic clock in seconds.
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name in _NEVER_NONE:
                allowed.require(name, value)
        require_middleware(self.middleware)

    def given(self) -> dict[str, Any]:
        """The value of each option, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


_RANGES = {
    "concurrency": Range(1, is_whole=True),
    "prefetch": Range(0, is_whole=True),
    "acknowledge_every_events": Range(1, 1_000, is_whole=True),
    "acknowledge_every_seconds": Range(0, 60),
    "visibility_seconds": Range(1, 43_200),
    "idle_seconds": Range(0, is_above=True),
    "handler_seconds": Range(0, is_above=True),
}
_NEVER_NONE = ("concurrency", "acknowledge_every_events", "idle_seconds")
