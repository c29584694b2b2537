"""How much code a consumer that keeps up runs for one event: whoever reads it has to follow."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock.consumer.handlers import tracing
from penstock.consumer.stream.consumer import Consumer
from penstock.database import timings
from penstock.records import Event
from tests.kit.log import Connection
from tests.kit.stream import SUBSCRIPTION, Clock, filled, more, stored

HOME = str(Path(penstock.__file__).parent)
MOST_FUNCTIONS = 80
MOST_CHANGES_OF_FILE = 60


class Trail:
    """The calls of functions of Penstock, in order: of which file and by which name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, kind: str, _: Any) -> None:
        code = frame.f_code
        is_part = code.co_name.startswith("<")  # a comprehension is part of its function
        if kind == "call" and code.co_filename.startswith(HOME) and not is_part:
            self.calls.append((code.co_filename[len(HOME) + 1 :], code.co_qualname))

    @property
    def functions(self) -> set[tuple[str, str]]:
        """Each of them once."""
        return set(self.calls)

    @property
    def changes_of_file(self) -> int:
        """How often the next call is of another file."""
        files = [file for file, _ in self.calls]
        return sum(one != other for one, other in itertools.pairwise(files))


@contextmanager
def followed() -> Iterator[Trail]:
    """Follow this thread."""
    trail = Trail()
    sys.setprofile(trail)
    try:
        yield trail
    finally:
        sys.setprofile(None)


def test_a_steady_turn_of_one_event_is_short(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that reads one event, handles it and commits it."""
    # As where no metrics are kept, and nothing is traced.
    monkeypatch.setattr(timings, "observer", None)
    monkeypatch.setattr(tracing, "around_handlers", lambda *_, **__: None)
    filled(connection, partitions=1, events=3)
    handled: list[Event] = []
    consumer = Consumer(
        database_url,
        SUBSCRIPTION,
        handler=handled.append,
        idle_seconds=0.05,
        clock=Clock(),  # nothing is due meanwhile, such as a look at the policy
        commit_every_events=1,
    )
    with ExitStack() as stack:
        stack.enter_context(consumer.keeper)
        stack.enter_context(consumer.at_work())
        own = stack.enter_context(consumer.open())
        stack.enter_context(consumer.session(own))
        while consumer.turn(own):
            pass
        more(connection, events=1)
        with followed() as trail:
            assert consumer.turn(own) == 1
        assert [event.sequence for event in handled] == [1, 2, 3, 4]
        assert stored(connection) == 4
    assert len(trail.functions) <= MOST_FUNCTIONS, trail.calls
    assert trail.changes_of_file <= MOST_CHANGES_OF_FILE, trail.calls
