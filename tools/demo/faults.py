"""What happens to the consumers while the bank is busy: one is killed, one is paused twice."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import psycopg

from penstock import log, subscriptions
from tools.demo.stage import SUBSCRIPTION, TOPIC, Stage


def published(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    """How many events have a sequence."""
    return sum(log.high_watermarks(connection, TOPIC).values())


def kill_in_the_middle(stage: Stage, name: str) -> None:
    """SIGKILL inside the transaction that writes the projection."""
    with stage.halted(name, "inside"):
        stage.kill(name)


def pause_before_transaction(
    stage: Stage, connection: psycopg.Connection[tuple[Any, ...]], name: str
) -> None:
    """SIGSTOP a consumer with events in hand, until its lease ends and another has the partition.

    After it wakes up, its own clock usually stops it from committing. If not, the database rejects
    the commit.
    """
    refused = stage.refused_commits()
    _pause_until_replaced(stage, connection, name, "before")
    if not stage.mutant:
        stage.wait_until(
            lambda: stage.refused_commits() > refused,
            f"no commit of {name} was refused after its pause",
        )


def pause_inside_transaction(
    stage: Stage, connection: psycopg.Connection[tuple[Any, ...]], name: str
) -> None:
    """SIGSTOP between the commit call and COMMIT, past the lease: the hardest case."""
    ended = sessions_ended(connection)
    _pause_until_replaced(stage, connection, name, "inside")
    if not stage.mutant:
        stage.wait_until(
            lambda: sessions_ended(connection) > ended,
            f"the database did not end the transaction that {name} left open",
        )


def sessions_ended(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    """How many sessions the database has ended, by its own statistics."""
    row = connection.execute(
        "SELECT sessions_fatal FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    return int(row[0]) if row else 0


def _pause_until_replaced(
    stage: Stage, connection: psycopg.Connection[tuple[Any, ...]], name: str, point: str
) -> None:
    """The pause ends when another consumer holds all that the paused one held.

    One that was paused before may still be busy with what it has lost. Nobody would take over from
    it then, so it has to hold something again.
    Without the fence its transaction is still open then, and the successor that applies the same
    events waits for its row locks. The pause lasts until that is seen, so that the result does not
    depend on chance.
    """
    stage.wait_until(lambda: name in _holders(connection), f"{name} holds nothing")
    with stage.halted(name, point) as process:
        before = _stop_a_holder(stage, connection, name, process)
        stage.wait_until(
            lambda: (
                subscriptions.take_overs(connection, SUBSCRIPTION) > before
                and name not in _holders(connection)
            ),
            f"nobody took over from {name}",
        )
        if stage.mutant == "unfenced" and point == "inside":
            stage.wait_until(
                lambda: _somebody_waits(connection), "nobody met the paused one's locks"
            )
    process.send_signal(signal.SIGCONT)


def _stop_a_holder(
    stage: Stage,
    connection: psycopg.Connection[tuple[Any, ...]],
    name: str,
    process: subprocess.Popen[bytes],
) -> int:
    """SIGSTOP it while it holds a lease.  Returns how many take-overs there were before.

    On a slow machine its leases may end while it comes to the point where it halts.  Nobody would
    take over from it then, so it first has to join again.
    """
    before = 0

    def stopped() -> bool:
        nonlocal before
        if name not in _holders(connection):
            return False
        process.send_signal(signal.SIGSTOP)
        before = subscriptions.take_overs(connection, SUBSCRIPTION)
        if name in _holders(connection):
            return True
        process.send_signal(signal.SIGCONT)
        return False

    stage.wait_until(stopped, f"{name} holds nothing when it is paused")
    return before


def _holders(connection: psycopg.Connection[tuple[Any, ...]]) -> set[str | None]:
    """Who holds a partition; None where nobody does."""
    return {each.holder for each in subscriptions.lag(connection, SUBSCRIPTION)}


def _somebody_waits(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """Whether a consumer waits for a row.  The bank's clients always wait for each other."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND application_name = %s",
        (f"penstock {SUBSCRIPTION}",),
    ).fetchone()
    return row is not None and row[0] > 0
