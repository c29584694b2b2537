"""Sequence: give committed events their sequences, and keep storage ahead of the publishers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from penstock import database, log

logger = logging.getLogger(__name__)

T = TypeVar("T")

PASS_EVENTS = 10_000

#: The result of a pass that the database has ended.
_ENDED = log.SequenceResult(sequenced=0, more=True, busy=True, grown=())


@dataclass(frozen=True, slots=True)
class Sequenced:
    """What a round of passes did.

    ``busy``: another sequencer was at work, or the database ended a pass in favour of another
    transaction.
    """

    events: int
    passes: int
    busy: bool
    slices_added: int = 0


def sequence_round(
    connection: database.Connection,
    *,
    max_events: int = PASS_EVENTS,
    max_passes: int = 100,
    after_pass: Callable[[], object] = lambda: None,
) -> Sequenced:
    """Run passes until nothing is left, at most ``max_passes``.  Each pass wakes consumers.

    The connection is in autocommit mode, so that every pass is a transaction of its own.
    """
    events = passes = 0
    while passes < max_passes:
        result = unless_locked("a pass", lambda: _announced(connection, max_events), _ENDED)
        after_pass()
        if result.busy:
            return Sequenced(events, passes, busy=True)
        events += result.sequenced
        passes += 1
        if not result.more:
            break
    return Sequenced(events, passes, busy=False)


def _announced(connection: database.Connection, max_events: int) -> log.SequenceResult:
    """A pass that wakes consumers if it can.  If it cannot, they still look by themselves."""
    try:
        return log.sequence(connection, max_events, announce=True)
    except Exception as error:
        if not database.is_without_notice(error):
            raise
        logger.warning("no consumer is woken, `penstock doctor` says who holds notices: %s", error)
        return log.sequence(connection, max_events)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What was done for the log besides its events, and the longest pause that is set for it."""

    slices_added: int
    dedup_turned: bool
    idle_seconds: float


def keep_up(connection: database.Connection) -> Upkeep:
    """Do what is due now and then: make storage ahead, and forget old dedup keys.

    Neither waits for long.  What could not be locked is done the next time.
    """
    added = unless_locked("more storage", lambda: log.ensure_slices(connection), 0)
    turned = unless_locked(
        "forgetting dedup keys", lambda: database.call(connection, "turn_dedup")[0][0], False
    )
    idle = database.call(connection, "setting", name="sequencer_idle_seconds")[0][0]
    return Upkeep(added, bool(turned), float(idle))


def sequence(url: str, *, max_events: int = PASS_EVENTS, max_passes: int = 1000) -> Sequenced:
    """One round on a new connection, with storage made ahead: for jobs and the command."""
    with database.connect(url, application_name="penstock sequence") as connection:
        added = keep_up(connection).slices_added
        done = sequence_round(connection, max_events=max_events, max_passes=max_passes)
    return Sequenced(done.events, done.passes, done.busy, added)


def unless_locked(what: str, work: Callable[[], T], otherwise: T) -> T:
    """Do work that is repeated in any case.  A lock not obtained, or a deadlock, ends it for now.

    So the sequencer does not fail because of what others do at the same moment.
    """
    try:
        return work()
    except Exception as error:
        if not database.is_contention(error):
            raise
        logger.warning("%s is left for the next time: %s", what, error)
        return otherwise
