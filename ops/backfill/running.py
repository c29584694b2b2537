"""Works backfill requests off: claims one, brings range after range, and records each as done.

A range is done once, whichever attempt brings it.  A runner that is killed repeats at most the
range that it had in hand.  A runner that was paused for too long, or whose request was cancelled,
finds out at its next call and stops (StaleAttempt).  A range that cannot be brought stops no other;
the attempt then fails, and the request waits for its next one.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ops.backfill import requests as requests
from ops.backfill.requests import LEASE_SECONDS, BackfillClaim, BackfillUnit
from penstock import database
from penstock.errors import (
    ConfigurationError,
    NoDiskSpace,
    PenstockError,
    PermissionDenied,
    SinkError,
    StaleAttempt,
    TargetUnavailable,
    error_text,
)

if TYPE_CHECKING:
    from penstock.database import Connection

log = logging.getLogger(__name__)

#: The longest statement computes the checksum of one log epoch, of a million events at most.
_STATEMENT_MS = 600_000
#: Ranges that are looked up at once.
_UNITS_AT_ONCE = 100
#: An error names so many ranges with their reasons.
_MOST_NAMED = 10
#: What is at fault for every range ends the attempt.
_FOR_ALL = (ConfigurationError, NoDiskSpace, PermissionDenied, SinkError, TargetUnavailable)


@dataclass(frozen=True, slots=True)
class BackfillRun:
    """What became of an attempt.

    ``state`` is "done", "waiting" or "failed" as the request is now, or "lost" when it was no
    longer this runner's.
    """

    request: int
    kind: str
    attempt: int
    state: str
    done_events: int
    error: str = ""


class BackfillWorker(Protocol):
    """Brings the ranges of one request."""

    def bring(self, unit: BackfillUnit) -> None:
        """Bring a range, and record it as done; may be repeated after a kill."""

    def close(self) -> None:
        """Close what is held open."""


class KeepAlive:
    """Says from a thread of its own that the runner is alive, and notices when it is too late."""

    def __init__(self, url: str, claim: BackfillClaim, lease_seconds: float) -> None:
        self._url = url
        self._claim = claim
        self._lease_seconds = lease_seconds
        self._lost: StaleAttempt | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backfill", daemon=True)

    def __enter__(self) -> KeepAlive:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """StaleAttempt when the request is no longer this runner's."""
        if self._lost is not None:
            raise self._lost

    def _run(self) -> None:
        while not self._ended.wait(self._lease_seconds / 3):
            try:
                with database.connect(self._url, application_name="penstock backfill") as own:
                    requests.extend(own, self._claim, self._lease_seconds)
            except StaleAttempt as error:
                self._lost = error
                return
            except Exception as error:  # the next call, or the runner's own, finds out
                log.warning("backfill %s: %s", self._claim.request, error)


@dataclass(frozen=True, slots=True)
class Job:
    """A claimed request, and the connection that works on it."""

    url: str
    connection: Connection
    claim: BackfillClaim
    alive: KeepAlive
    lease_seconds: float = LEASE_SECONDS

    def done(self, unit: BackfillUnit) -> None:
        """Record a range as done."""
        requests.progress(self.connection, self.claim, unit, self.lease_seconds)


#: How each kind of request is worked off.
Workers = Mapping[str, Callable[[Job], BackfillWorker]]


@dataclass(slots=True)
class _Failures:
    """The ranges that could not be brought, and why."""

    count: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, unit: BackfillUnit, error: Exception) -> None:
        """Count one, and name the first ones."""
        self.count += 1
        if len(self.named) < _MOST_NAMED:
            place = f"partition {unit.partition}, {unit.first_sequence} to {unit.last_sequence}"
            self.named.append(f"{place}: {error}")

    def __str__(self) -> str:
        more = self.count - len(self.named)
        rest = f"; and {more} more" if more else ""
        return f"{self.count} ranges could not be brought: {'; '.join(self.named)}{rest}"


def run_name() -> str:
    """The name of this process, for who looks at the requests."""
    return f"{socket.gethostname()}:{os.getpid()}"


def run_backfill(
    url: str,
    workers: Workers,
    *,
    run: str | None = None,
    request: int | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> BackfillRun | None:
    """Claim the next request that is due, or a given one, and work it off; None when none is.

    Several runners may do this at once: each request is one runner's at a time.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(
            database.connect(
                url, application_name="penstock backfill", statement_timeout_ms=_STATEMENT_MS
            )
        )
        claim = requests.claim_backfill(
            connection,
            run or run_name(),
            request=request,
            kinds=sorted(workers),
            lease_seconds=lease_seconds,
        )
        if claim is None:
            return None
        alive = stack.enter_context(KeepAlive(url, claim, lease_seconds))
        return _work(Job(url, connection, claim, alive, lease_seconds), workers[claim.kind])


def run_due(url: str, workers: Workers, *, run: str | None = None) -> list[BackfillRun]:
    """Work off every request that is due now, one after the other."""
    done: list[BackfillRun] = []
    while (result := run_backfill(url, workers, run=run)) is not None:
        done.append(result)
    return done


def _work(job: Job, make: Callable[[Job], BackfillWorker]) -> BackfillRun:
    """One attempt, to its end; only a database that is away ends it with an error."""
    try:
        worker = make(job)
        try:
            failures = _bring_all(job, worker)
        finally:
            worker.close()
        if failures.count:
            return _failed(job, str(failures))
        requests.finish(job.connection, job.claim)
    except StaleAttempt as error:
        return _result(job, "lost", str(error))
    except Exception as error:
        if database.is_unavailable(error):
            raise
        unexpected = None if isinstance(error, PenstockError) else error
        log.warning("backfill %s failed: %s", job.claim.request, error, exc_info=unexpected)
        return _failed(job, error_text(error))
    return _result(job, "done")


def _bring_all(job: Job, worker: BackfillWorker) -> _Failures:
    failures = _Failures()
    after: BackfillUnit | None = None
    while units := requests.open_units(job.connection, job.claim, after, _UNITS_AT_ONCE):
        for after in units:
            job.alive.check()
            try:
                worker.bring(after)
            except (StaleAttempt, *_FOR_ALL):
                raise
            except PenstockError as error:
                failures.add(after, error)
    return failures


def _failed(job: Job, error: str) -> BackfillRun:
    try:
        state = requests.fail(job.connection, job.claim, error)
    except StaleAttempt as lost:
        return _result(job, "lost", str(lost))
    return _result(job, state, error)


def _result(job: Job, state: str, error: str = "") -> BackfillRun:
    claim = job.claim
    found = requests.list_backfills(job.connection, request=claim.request)
    events = found[0].done_events if found else claim.done_events
    return BackfillRun(claim.request, claim.kind, claim.attempt, state, events, error)
