"""What schedules and sensors have in common: they look cheaply, and ask for a run only if needed.

A run costs a process and some seconds of a processor, so an evaluation looks at the database first.
While the database is down it says so in one line instead of an error each time.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import dagster as dg

from penstock import database as databases
from penstock.errors import DatabaseUnavailable, NotMigrated
from resources.database import DatabaseResource

#: The tag by which runs that a sensor asked for are found again.
WORK_TAG = "penstock/work"

#: A tag of every job of ours, and so of each of its runs.  Another code location of this Dagster
#: may have a job of the same name, and what becomes of its runs is none of our business.
OURS = {"penstock/control-plane": "true"}

#: The tag of a run that is short.  Dagster's launcher cannot tell that its process is gone, as
#: after a restart of the code server. Nothing asks for another run until this time is over.
SHORT = {"dagster/max_runtime": "1800"}

#: The tag of a failed run that says with which of many it has failed, as JSON; without it with all.
FAILED_TAG = "penstock/failed"

#: A failed run is asked for again after so long, doubled each time up to the longer one.
FIRST_PAUSE_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 3_600.0

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]

#: A tick waits so long for the ticks of other sensors of the same database.
MOST_WAITING_SECONDS = 10.0

_making_locks = threading.Lock()
_ticks: dict[str, threading.Lock] = {}

C = TypeVar("C")
R = TypeVar("R")
#: What a tick looks at, and what Dagster calls: it knows nothing of the database.
Look = Callable[[C, DatabaseResource], R]
Tick = Callable[[C], R]


def skip_while_down(name: str) -> Callable[[Look[C, R]], Tick[C, R | dg.SkipReason]]:
    """For a schedule of a database, which skips with the reason while that cannot be used.

    It gives the database to the function, so that Dagster does not have to.  For a tick that has a
    resource Dagster opens its own storage, and that costs more than to look and find nothing.
    """
    database = DatabaseResource(name=name)

    def bind(function: Look[C, R]) -> Tick[C, R | dg.SkipReason]:
        @functools.wraps(function)
        def run(context: C) -> R | dg.SkipReason:
            try:
                with one_tick(name):
                    return function(context, database)
            except Exception as error:
                return _down(error)

        # What Dagster reads: without it, it would see the parameters of the function.
        parameter = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
        return run

    return bind


def sense_while_up(name: str) -> Callable[[Look[C, dg.SensorResult]], Tick[C, dg.SensorResult]]:
    """For a sensor of a database, which skips with the reason while that cannot be used."""

    def bind(function: Look[C, dg.SensorResult]) -> Tick[C, dg.SensorResult]:
        skipping = skip_while_down(name)(function)

        @functools.wraps(skipping)
        def run(context: C) -> dg.SensorResult:
            done = skipping(context)
            return dg.SensorResult(skip_reason=done) if isinstance(done, dg.SkipReason) else done

        return run

    return bind


@contextmanager
def one_tick(name: str) -> Iterator[None]:
    """One tick of a database at a time: one that hangs holds up a thread, and not every thread.

    A server that is frozen, and not down, leaves a client waiting for it.  The sensors of all
    databases share the threads of one process.
    """
    with _making_locks:
        lock = _ticks.setdefault(name, threading.Lock())
    if not lock.acquire(timeout=MOST_WAITING_SECONDS):
        raise DatabaseUnavailable(
            "an earlier tick still waits for the database",
            hint="it is frozen, or very slow: look at the server",
        )
    try:
        yield
    finally:
        lock.release()


@contextmanager
def others_go_on(context: dg.SensorEvaluationContext, what: str) -> Iterator[None]:
    """What fails for one topic or target is logged, and the tick goes on with the others.

    Only a database that is down ends it.
    """
    try:
        yield
    except Exception as error:
        if _why_down(error) is not None:
            raise
        context.log.exception(f"{what} is left out of this tick")  # noqa: G004


def is_running(instance: dg.DagsterInstance, *, job: str = "", work: str = "") -> bool:
    """Whether a run of this job, or one with this work tag, is queued or under way."""
    return bool(instance.get_runs(_runs(job, work, statuses=UNFINISHED), limit=1))


def _runs(job: str, work: str = "", **more: Any) -> dg.RunsFilter:
    """The runs of a job of ours, or of work, which has names of ours only."""
    tags = {**(OURS if job else {}), **({WORK_TAG: work} if work else {})}
    return dg.RunsFilter(job_name=job or None, tags=tags, **more)


def ran_since(instance: dg.DagsterInstance, job: str, since: dt.datetime) -> bool:
    """Whether a run of this job that was asked for since then has succeeded."""
    filters = _runs(job, statuses=[dg.DagsterRunStatus.SUCCESS], created_after=since)
    return bool(instance.get_runs(filters, limit=1))


def cursor_of(context: dg.SensorEvaluationContext, version: int) -> dict[str, Any]:
    """What the last tick has left; nothing when another version of the sensor has written it.

    Each sensor works without: the database is the truth, and a cursor holds only how far it looked.
    """
    try:
        found = json.loads(context.cursor or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.get("version") == version else {}


def dump_cursor(version: int, **held: Any) -> str:
    """The text of a cursor."""
    return json.dumps({"version": version, **held})


@dataclass(frozen=True, slots=True)
class Attempt:
    """How often a piece of work was asked for, and when it may be asked for again."""

    fingerprint: str
    count: int
    not_before: float

    @classmethod
    def next_of(cls, given: Any, fingerprint: str, now: float) -> Attempt | None:
        """The next attempt at this work, or None while the last one's pause lasts."""
        before = cls(*given) if given else None
        if before is None or before.fingerprint != fingerprint:
            return cls(fingerprint, 1, now + pause_after(1))
        if now < before.not_before:
            return None
        return cls(fingerprint, before.count + 1, now + pause_after(before.count + 1))

    def dump(self) -> list[Any]:
        """For a cursor."""
        return [self.fingerprint, self.count, self.not_before]


@dataclass(frozen=True, slots=True)
class Pause:
    """How often in a row the run of a piece of work has failed, and until when it rests."""

    run: str
    failures: int
    not_before: float

    @classmethod
    def after(cls, given: Any, run: str, now: float) -> Pause:
        """The pause after a run that has failed; it begins when a tick has seen the failure."""
        before = cls(*given) if given else cls("", 0, 0.0)
        if before.run == run:
            return before
        return cls(run, before.failures + 1, now + pause_after(before.failures + 1))

    def dump(self) -> list[Any]:
        """For a cursor."""
        return [self.run, self.failures, self.not_before]

    def told(self, what: str) -> str:
        """Why nobody is asked for it."""
        until = dt.datetime.fromtimestamp(self.not_before, dt.UTC)
        return (
            f"{what}: its run {self.run} has failed, {self.failures} in a row; the next one is "
            f"asked for at {until:%H:%M:%S} (UTC)"
        )


class SensorPauses:
    """The pauses of a sensor, as its cursor keeps them, and what it says of them."""

    def __init__(self, held: Any, now: float) -> None:
        self._held: dict[str, Any] = held if isinstance(held, dict) else {}
        self._now = now
        self.said: list[str] = []

    def failed(self, work: str, run: str) -> None:
        """The last run of this work has failed."""
        self._held[work] = Pause.after(self._held.get(work), run, self._now).dump()

    def succeeded(self, work: str) -> None:
        """The last run of this work has not failed."""
        self._held.pop(work, None)

    def rests(self, work: str) -> bool:
        """Whether this work has to wait."""
        pause = Pause(*self._held[work]) if work in self._held else None
        if pause is None or self._now >= pause.not_before:
            return False
        self.said.append(pause.told(work))
        return True

    def rests_after(self, work: str, failed: str) -> bool:
        """The same; ``failed`` is its last run, '' when that did not fail."""
        if failed:
            self.failed(work, failed)
        else:
            self.succeeded(work)
        return self.rests(work)

    def dump(self) -> dict[str, Any]:
        """For a cursor."""
        return self._held


def last_run(
    instance: dg.DagsterInstance, *, job: str = "", work: str = ""
) -> dg.DagsterRun | None:
    """The last run of a job, or of work."""
    return next(iter(instance.get_runs(_runs(job, work), limit=1)), None)


def failed_run(instance: dg.DagsterInstance, *, job: str = "", work: str = "") -> str:
    """The id of the last run when that has failed, else ''."""
    run = last_run(instance, job=job, work=work)
    return run.run_id if run and run.status is dg.DagsterRunStatus.FAILURE else ""


def failed_step(instance: dg.DagsterInstance, job: str, step: str) -> str:
    """The same, and not for a run in which this step has done its work."""
    run = failed_run(instance, job=job)
    if not run:
        return ""
    # Not exported by `dagster`.
    from dagster._core.execution.stats import StepEventStatus as Status

    found = instance.get_run_step_stats(run, [step])
    return "" if any(each.status is Status.SUCCESS for each in found) else run


def pause_after(attempt: int) -> float:
    """Seconds to wait after so many attempts."""
    return float(min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(attempt - 1, 20)))


def result(
    requests: Iterable[dg.RunRequest], cursor: str | None, nothing: str, **more: object
) -> dg.SensorResult:
    """A sensor's result; ``nothing`` is the reason when it asks for no run."""
    found = list(requests)
    reason = None if found else dg.SkipReason(nothing)
    return dg.SensorResult(run_requests=found, skip_reason=reason, cursor=cursor, **more)  # type: ignore[arg-type]


def _down(error: Exception) -> dg.SkipReason:
    reason = _why_down(error)
    if reason is None:
        raise error
    return dg.SkipReason(reason)


def _why_down(error: Exception) -> str | None:
    """Why the database cannot be used; None when it is something else."""
    if isinstance(error, DatabaseUnavailable | NotMigrated):
        return str(error)
    if databases.is_unavailable(error):
        return "the connection to the database was lost"
    return None
