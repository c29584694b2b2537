"""Sequence: give committed events their sequences, and keep storage ahead of the publishers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from penstock import database, log

logger = logging.getLogger(__name__)

PASS_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Sequenced:
    """What a round of passes did.

    ``busy``: another sequencer was at work, or the database ended a pass for somebody else's sake.
    """

    events: int
    passes: int
    busy: bool
    slices_added: int = 0


def sequence_round(
    connection: database.Connection, *, max_events: int = PASS_EVENTS, max_passes: int = 100
) -> Sequenced:
    """Passes until nothing is left, at most ``max_passes``; consumers are woken after each.

    The connection is in autocommit mode, so that every pass is a transaction of its own.
    """
    events = passes = 0
    while passes < max_passes:
        result = _pass(connection, max_events)
        if result.busy:
            return Sequenced(events, passes, busy=True)
        if result.sequenced:
            _wake(connection, result.grown)
        events += result.sequenced
        passes += 1
        if not result.more:
            break
    return Sequenced(events, passes, busy=False)


def _pass(connection: database.Connection, max_events: int) -> log.SequenceResult:
    """One pass; the next round makes up for one that was ended."""
    result = log.SequenceResult(sequenced=0, more=True, busy=True, grown=())
    with unless_locked("a pass"):
        result = log.sequence(connection, max_events)
    return result


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What was done for the log beside its events, and the longest pause that is set for it."""

    slices_added: int
    dedup_turned: bool
    idle_seconds: float


def keep_up(connection: database.Connection) -> Upkeep:
    """What has to be done now and then: storage made ahead, old dedup keys forgotten.

    Neither waits for long, and what could not be locked is done the next time.
    """
    added, turned = 0, False
    with unless_locked("more storage"):
        added = log.ensure_slices(connection)
    with unless_locked("forgetting dedup keys"):
        turned = database.call(connection, "turn_dedup")[0][0]
    idle = database.call(connection, "setting", name="sequencer_idle_seconds")[0][0]
    return Upkeep(added, bool(turned), float(idle))


def sequence(url: str, *, max_events: int = PASS_EVENTS, max_passes: int = 1000) -> Sequenced:
    """One round on a connection of its own, with storage made ahead: for jobs and the command."""
    with database.connect(url, application_name="penstock sequence") as connection:
        added = keep_up(connection).slices_added
        done = sequence_round(connection, max_events=max_events, max_passes=max_passes)
    return Sequenced(done.events, done.passes, done.busy, added)


@contextmanager
def unless_locked(what: str) -> Iterator[None]:
    """Around work that comes again: a lock that is not had, or a deadlock, ends it for this time.

    The sequencer must not die of what others do at the same moment.
    """
    try:
        yield
    except Exception as error:
        if not database.is_contention(error):
            raise
        logger.warning("%s is left for the next time: %s", what, error)


def _wake(connection: database.Connection, grown: tuple[int, ...]) -> None:
    """A failed wake-up costs latency and no event: consumers poll as well."""
    try:
        log.announce(connection, grown)
    except psycopg.Error as error:
        if database.is_unavailable(error):
            raise
        logger.warning("consumers were not woken: %s", error)
