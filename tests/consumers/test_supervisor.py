"""The supervisor with workers that fail on command and a clock that stands still."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator

import psycopg
import pymysql
import pytest

from penstock.consumer.running import supervisor as module
from penstock.consumer.running.supervisor import ProcessEnded, Supervisor
from penstock.errors import (
    DatabaseUnavailable,
    DuplicateSession,
    PenstockError,
    SubscriptionNotFound,
)
from tests.consumers.process import until
from tests.kit.proof import proves


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Puppet:
    """A worker that runs until it is told to stop or to fail."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.turned = clock()
        self.starts = 0
        self.failure: BaseException | None = None
        self.stopped = threading.Event()
        self.stubborn: threading.Event | None = None

    def run(self, stop: threading.Event) -> None:
        self.starts += 1
        while not stop.wait(0.005):
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
        if self.stubborn is not None:
            self.stubborn.wait(30)
        self.stopped.set()

    def last_turn(self) -> float:
        return self.turned

    def counters(self) -> dict[str, float]:
        return {}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The upper bounds of all pauses before a restart; the pauses themselves are short."""
    found: list[float] = []

    def uniform(low: float, high: float) -> float:
        found.append(high)
        return 0.001

    monkeypatch.setattr(random, "uniform", uniform)
    return found


@pytest.fixture
def pair(clock: Clock) -> Iterator[tuple[Supervisor, Puppet, Puppet]]:
    """A running supervisor over two workers."""
    one, two = Puppet("one", clock), Puppet("two", clock)
    supervisor = Supervisor([one, two], clock=clock)
    supervisor.start()
    yield supervisor, one, two
    for each in (one, two):
        if each.stubborn is not None:
            each.stubborn.set()
    supervisor.stop()
    with contextlib.suppress(PenstockError):  # the test has seen it
        assert supervisor.drain(30)


Pair = tuple[Supervisor, Puppet, Puppet]


def fail(supervisor: Supervisor, worker: Puppet, error: BaseException) -> None:
    """Let the worker fail, and wait until it runs again."""
    starts = worker.starts
    worker.failure = error
    until(lambda: worker.starts > starts, "the restart")


def test_a_failure_during_the_start_ends_all(pair: Pair, clock: Clock) -> None:
    supervisor, one, two = pair
    clock.now += module.STARTED_AFTER_SECONDS - 0.1
    one.failure = DuplicateSession("taken")
    supervisor.wait()
    with pytest.raises(DuplicateSession, match="taken"):
        supervisor.drain(30)
    assert two.stopped.is_set()
    assert (one.starts, two.starts) == (1, 1)


def test_a_failure_later_is_a_restart_of_that_worker_only(
    pair: Pair, clock: Clock, bounds: list[float]
) -> None:
    supervisor, one, two = pair
    clock.now += module.STARTED_AFTER_SECONDS + 1
    fail(supervisor, one, OSError("gone"))
    states = {worker.name: (restarts, error) for worker, restarts, error in supervisor.states()}
    assert states == {"one": (1, ""), "two": (0, "")}
    assert two.starts == 1
    supervisor.stop()
    supervisor.wait()
    assert supervisor.drain(30)


def _error_during_the_pause(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch, message: str
) -> list[str]:
    """What states() says of the worker that failed, and of it once it runs again."""
    supervisor, one, _ = pair
    clock.now += module.STARTED_AFTER_SECONDS + 1
    with monkeypatch.context() as patch:
        patch.setattr(random, "uniform", lambda low, high: 0.2)
        one.failure = OSError(message)
        until(lambda: supervisor.states()[0][1] == 1, "the failure")
        found = [supervisor.states()[0][2]]
    until(lambda: one.starts == 2, "the restart")
    return [*found, supervisor.states()[0][2]]


def test_a_failure_is_kept_until_the_worker_runs_again(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: each.error; the page and the metrics would say that all is well."""
    found = _error_during_the_pause(pair, clock, monkeypatch, "the disk is gone")
    assert found == ["OSError: the disk is gone", ""]


def test_without_its_text_a_failure_is_forgotten(
    pair: Pair, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the supervisor forgets the error."""
    monkeypatch.setattr(module, "error_text", lambda error: "")
    assert _error_during_the_pause(pair, clock, monkeypatch, "the disk is gone") == ["", ""]


class Silent(BaseException):
    """No Exception, and nobody can ask it what it says."""

    def __str__(self) -> str:
        raise ValueError


@proves("S16, whatever is raised")
@pytest.mark.parametrize("kind", [Silent, SystemExit, KeyboardInterrupt])
def test_whatever_ends_a_worker_it_is_started_again(
    pair: Pair, clock: Clock, bounds: list[float], kind: type[BaseException]
) -> None:
    """Its thread ended, and the program lived on without it.  Guard: Supervisor._keep."""
    supervisor, one, two = pair
    clock.now += module.STARTED_AFTER_SECONDS + 1
    fail(supervisor, one, kind())
    assert (one.starts, two.starts, supervisor.states()[0][1]) == (2, 1, 1)


@proves("what passes ends no consumer")
@proves("D5 over crashes", guard="the look at ProcessEnded")
@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.QueryCanceled(), psycopg.errors.LockNotAvailable(),
        psycopg.errors.ReadOnlySqlTransaction(), DatabaseUnavailable("away"),
        pymysql.err.OperationalError(1290, "running with --read-only"),
        pymysql.err.OperationalError(1836, "read-only mode"), ProcessEnded("killed"),
    ],
)  # fmt: skip
def test_what_passes_ends_no_program_that_is_young(
    pair: Pair, bounds: list[float], error: Exception
) -> None:
    """Guards: the looks at is_passing and ProcessEnded in _ends_all."""
    supervisor, one, _ = pair
    fail(supervisor, one, error)
    assert supervisor.states()[0][1] == 1


@proves("D5 over crashes", guard="the look at ProcessEnded")
def test_without_the_look_a_crash_ends_a_young_program(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: any failure in the first seconds is one of the start."""
    monkeypatch.setattr(module, "ProcessEnded", DuplicateSession)
    supervisor, one, _ = pair
    one.failure = ProcessEnded("killed")
    supervisor.wait()
    with pytest.raises(ProcessEnded, match="killed"):
        supervisor.drain(30)


def test_whatever_ends_a_worker_at_the_start_is_told(pair: Pair, clock: Clock) -> None:
    """An exit would end the program in silence.  Guard: _as_exception."""
    supervisor, one, _ = pair
    one.failure = Silent()
    supervisor.wait()
    with pytest.raises(PenstockError, match=r"Silent: \(its text cannot be read: ValueError\)"):
        supervisor.drain(30)


def test_the_pause_doubles_up_to_a_bound_and_forgets_after_good_times(
    pair: Pair, clock: Clock, bounds: list[float]
) -> None:
    supervisor, one, _ = pair
    clock.now += module.STARTED_AFTER_SECONDS + 1
    for _ in range(7):
        fail(supervisor, one, OSError("gone"))
    assert bounds == [1, 2, 4, 8, 16, 30, 30]
    clock.now += module.HEALTHY_AFTER_SECONDS + 1
    fail(supervisor, one, OSError("gone"))
    assert bounds[-1] == 1
    assert supervisor.states()[0][1] == 8


@proves("a silent connection stops nobody", how="the longest pause")
def test_when_the_database_is_back_a_worker_does_not_wait_for_long(
    pair: Pair, clock: Clock, bounds: list[float]
) -> None:
    """Guard: the shorter bound, that of consumers."""
    supervisor, one, _ = pair
    clock.now += module.STARTED_AFTER_SECONDS + 1
    for _ in range(6):
        fail(supervisor, one, DatabaseUnavailable("gone"))
    assert bounds == [1, 2, 4, 8, 10, 10]


def test_what_was_right_for_a_while_ends_that_worker_only(
    pair: Pair, clock: Clock, bounds: list[float]
) -> None:
    """Somebody deletes one subscription of many."""
    supervisor, one, two = pair
    clock.now += 3600
    fail(supervisor, two, SubscriptionNotFound("gone"))
    assert (one.starts, two.starts, supervisor.states()[1][1]) == (1, 2, 1)


def test_a_wrong_call_ends_all_while_a_worker_is_new(pair: Pair, clock: Clock) -> None:
    supervisor, one, two = pair
    clock.now += module.HEALTHY_AFTER_SECONDS - 1
    two.failure = SubscriptionNotFound("gone")
    supervisor.wait()
    with pytest.raises(SubscriptionNotFound):
        supervisor.drain(30)
    assert one.stopped.is_set()


def test_a_worker_that_stands_still_is_named(pair: Pair, clock: Clock) -> None:
    supervisor, one, _ = pair
    clock.now += module.STUCK_AFTER_SECONDS
    assert supervisor.stuck() == []
    one.turned = clock.now
    clock.now += 1
    assert supervisor.stuck() == ["two"]


def test_a_worker_that_cannot_start_again_is_not_stuck(
    pair: Pair, clock: Clock, bounds: list[float]
) -> None:
    """A database that is away is no reason to kill the daemon."""
    supervisor, one, two = pair
    for _ in range(3):
        clock.now += module.STUCK_AFTER_SECONDS - 1
        fail(supervisor, one, OSError("the database is away"))
        two.turned = clock.now
        assert supervisor.stuck() == []


def test_a_drain_that_takes_too_long_says_so(pair: Pair) -> None:
    supervisor, one, two = pair
    one.stubborn = threading.Event()
    assert not supervisor.drain(0.05)
    assert supervisor.draining
    until(two.stopped.is_set, "the end of the other worker")


def test_stop_from_a_signal_handler_wakes_the_waiting_thread(pair: Pair) -> None:
    supervisor, _, _ = pair
    calls: list[int] = []

    def handler(number: int, frame: object) -> None:
        calls.append(number)
        supervisor.stop()

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1))
    try:
        sender.start()
        supervisor.wait()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert calls == [signal.SIGUSR1]


@proves("L8", guard="waiting that ends now and then")
def test_a_signal_that_another_thread_takes_is_seen(pair: Pair) -> None:
    """Guard: waiting ends now and then; nothing wakes the main thread when it was not interrupted.

    Python's part of the handler is left waiting as it is then, with the main thread blocked.
    """
    supervisor, _, _ = pair
    before = signal.signal(signal.SIGUSR1, lambda number, frame: supervisor.stop())
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

    def take() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    taker = threading.Timer(0.1, take)
    try:
        taker.start()
        supervisor.wait()
    finally:
        taker.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGUSR1, before)
