"""Whether committed events get their sequences: what waits, the last pass, who holds the lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from penstock import database
from penstock.driver_errors import errno_of
from penstock.errors import PermissionDenied
from penstock.log.sequences import status

#: An idle sequencer looks at least this often for new events.
NEXT_PASS_SECONDS = 1.0
#: When the last pass is older than this, no sequencer is at work.
FRESH_SECONDS = 2.0
#: MySQL and MariaDB: the errors that a login without the right PROCESS gets.
_DENIED = frozenset({1227, 1142, 1045})


T = TypeVar("T")


def wait_for_a_pass() -> None:
    """Wait until an idle sequencer must have looked for new events."""
    time.sleep(NEXT_PASS_SECONDS + 0.1)


def second_look(
    look: Callable[[], T],
    is_wrong: Callable[[T], bool],
    pause: Callable[[], object] = wait_for_a_pass,
) -> T:
    """What a look at the sequencer finds.  If that is wrong, what another one finds after a pause.

    Events of a long transaction are already old when they appear, and the next pass takes them.
    """
    found = look()
    if is_wrong(found):
        pause()
        found = look()
    return found


class Sequencing(StrEnum):
    """What the sequencer does."""

    IDLE = "nothing waits"
    AT_WORK = "at work"
    NOBODY = "nobody sequences"
    HELD = "held by a session"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SequencerState:
    """What waits for its sequence and why; ages in seconds.

    ``last_pass_seconds`` is None for a login that may not see it.  ``holder`` is the session that
    holds the sequencer's lock.  MySQL and MariaDB do not show that session: there it is the session
    that has held locks for longest.
    """

    waiting_events: int
    waiting_seconds: float
    last_pass_seconds: float | None
    state: Sequencing
    holder: str | None = None
    held_seconds: float | None = None


def sequencer_state(connection: Any) -> SequencerState:
    """Look twice when events wait and the last pass is old: the next pass may be about to begin.

    Needs a connection that commits by itself.
    """
    found = second_look(lambda: _look(connection), lambda state: state.state is Sequencing.NOBODY)
    return _with_holder(connection, found)


def one_look(connection: Any) -> SequencerState:
    """The same without a pause, for a caller that looks again by itself."""
    return _with_holder(connection, _look(connection))


def _look(connection: Any) -> SequencerState:
    now = status(connection)
    last = now.last_pass_age_seconds
    if not now.unsequenced_events:
        state = Sequencing.IDLE
    elif last is None:
        state = Sequencing.UNKNOWN
    else:
        state = Sequencing.AT_WORK if last <= FRESH_SECONDS else Sequencing.NOBODY
    return SequencerState(now.unsequenced_events, float(now.unsequenced_age_seconds), last, state)


def _with_holder(connection: Any, found: SequencerState) -> SequencerState:
    """The state with its holder, which is asked for only when no passes are made."""
    if found.state is not Sequencing.NOBODY:
        return found
    if database.dialect_of(connection) == "mysql":
        return _with_locks(connection, found)
    try:
        row = database.call(connection, "doctor_sequencer")[0]
    except PermissionDenied:
        return found
    *_, pid, login, application, held = row
    if pid is None or held <= FRESH_SECONDS:
        return found
    holder = f"session {pid} of {login} (application {application or 'unnamed'!r})"
    return replace(found, state=Sequencing.HELD, holder=holder, held_seconds=held)


def _with_locks(connection: Any, found: SequencerState) -> SequencerState:
    holder = longest_locks(connection)
    if holder is None or holder.held_seconds <= FRESH_SECONDS:
        return found
    return replace(found, holder=holder.session, held_seconds=holder.held_seconds)


class LockHolder(NamedTuple):
    """A session that holds locks, in words, and for how long."""

    session: str
    held_seconds: float


def longest_locks(connection: Any) -> LockHolder | None:
    """MySQL and MariaDB: the session that has held locks for longest, and for how long."""
    try:
        rows = database.call(connection, "doctor_locks")
    except Exception as problem:
        if errno_of(problem) not in _DENIED:
            raise
        return None
    if not rows:
        return None
    pid, login, host, held = rows[0]
    return LockHolder(f"session {pid} of {login} (from {host})", float(held))
