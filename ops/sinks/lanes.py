"""The events of a block in lanes: one after another within a lane, several lanes at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor

from ops.sinks.base import EventRefused
from penstock.records import Event

Call = Callable[[Sequence[Event]], None]


def by_key(event: Event) -> Hashable:
    """Each key is a lane, and so is each event without a key."""
    return event.key or event.sequence


class Lanes:
    """Gives the events of a block out to a few workers, in chunks.

    ``lane_of`` says which events stay in order: they are never under way in two calls at a time.
    ``most_of_a_lane`` is how many of a lane a chunk may hold.
    """

    def __init__(
        self,
        events: Iterable[Event],
        lane_of: Callable[[Event], Hashable],
        *,
        workers: int = 1,
        chunk: int = 1,
        most_of_a_lane: int | None = None,
    ) -> None:
        self._workers = workers
        self._chunk = chunk
        self._most = most_of_a_lane or chunk
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        lanes: dict[Hashable, deque[Event]] = {}
        for event in events:
            lanes.setdefault(lane_of(event), deque()).append(event)
        # The longest first: it decides when the block is done.
        self._ready = deque(sorted(lanes.values(), key=len, reverse=True))

    def run(self, call: Call, executor: Executor) -> None:
        """Call for every chunk.  After a failure nothing more is given out, and it is raised.

        What is under way ends first. An event that was refused comes before any other failure,
        because the block gets on without it.
        """
        count = min(self._workers, len(self._ready))
        if count > 1:
            for each in [executor.submit(self._work, call) for _ in range(count)]:
                each.result()
        else:
            self._work(call)
        if self._failure is not None:
            raise self._failure

    def _work(self, call: Call) -> None:
        held: list[deque[Event]] = []
        while chunk := self._next(held):
            try:
                call(chunk)
            except Exception as error:
                with self._lock:
                    if self._failure is None or isinstance(error, EventRefused):
                        self._failure = error

    def _next(self, held: list[deque[Event]]) -> list[Event]:
        """The next chunk of a worker.

        The rest of lanes that it could not take whole is held for its next chunks.
        """
        chunk: list[Event] = []
        rest: list[deque[Event]] = []
        with self._lock:
            if self._failure is not None:
                return chunk
            while len(chunk) < self._chunk and (held or self._ready):
                lane = held.pop() if held else self._ready.popleft()
                count = min(self._most, self._chunk - len(chunk), len(lane))
                chunk.extend(lane.popleft() for _ in range(count))
                if lane:
                    rest.append(lane)
        held.extend(rest)
        return chunk
