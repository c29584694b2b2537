"""Waking a sequencer, without a database: who may ask, and how long it rests."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import InvalidArgument, NotOnThisEngine
from penstock.publishing.waker import Waker
from penstock.upkeep.workers import BUSY_PAUSE, SequencerWorker
from tests.kit.proof import proves

NOWHERE = "postgresql://nowhere/none"
#: Longer than any test waits.
NEVER_SECONDS = 60.0


def test_what_has_no_hook_is_refused() -> None:
    waker = Waker(NOWHERE)
    with pytest.raises(InvalidArgument, match="no hook after the commit"):
        waker.after_commit(object())
    with pytest.raises(InvalidArgument, match="no transaction"):
        waker.transaction(object())


def test_other_engines_are_refused() -> None:
    with pytest.raises(NotOnThisEngine, match="only PostgreSQL"):
        Waker("mysql://root@localhost/test")


class CommitListener:
    """Rings always, or never."""

    def __init__(self, *, rings: bool) -> None:
        self.rings = rings
        self.waited: list[float] = []

    def wait(self, most_seconds: float) -> bool:
        """Nothing really waits."""
        self.waited.append(most_seconds)
        return self.rings


class Waits(threading.Event):
    """Writes down how long it was to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Nothing really waits."""
        assert timeout is not None
        self.waited.append(timeout)
        return False


@proves("S1 with a waker", guard="the pause before a commit is heard")
def test_who_rings_all_the_time_makes_it_look_no_faster_than_at_load() -> None:
    """Guard: the pause before the bell is heard."""
    worker, stop, commit_listener = SequencerWorker(NOWHERE), Waits(), CommitListener(rings=True)
    for _ in range(3):
        worker.rest(stop, commit_listener, NEVER_SECONDS)
    assert stop.waited == [BUSY_PAUSE] * 3
    assert worker.wakes == 3


@proves("S1 with a waker")
def test_a_lost_wake_costs_one_rest() -> None:
    """Guard: the rest ends by itself, and does not wait for the bell."""
    worker, stop, commit_listener = SequencerWorker(NOWHERE), Waits(), CommitListener(rings=False)
    worker.rest(stop, commit_listener, 0.05)
    assert worker.wakes == 0
    assert commit_listener.waited
    assert max(commit_listener.waited) <= 0.05
    without = Waits()
    worker.rest(without, None, 0.05)
    assert without.waited == [0.05]
