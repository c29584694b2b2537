"""The duties: what is done with a unit.  Each runs alike in this process and in a task of Spark.

What fences a unit is in the database: the lock on the sequencer's row, the run token of clean, the
lease_epoch of a relay, the attempt of a backfill request.  So a unit may be repeated, and two
processes may work on it at once.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ops.duties.setup import Setup
from ops.duties.units import DONE, FAILED, LEFT, DutyOutcome, DutyUnit
from penstock import database
from penstock.errors import ConfigurationError, PenstockError, RetentionRefused, error_text, lasts

if TYPE_CHECKING:
    from ops.backfill.running import Workers

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Did:
    """What a duty did with a unit; ``result`` is a record of its own."""

    events: int
    result: object = None
    state: str = DONE
    error: str = ""


Work = Callable[[DutyUnit], DutyOutcome]
Duty = Callable[[DutyUnit, Setup], Did]


def do_unit(unit: DutyUnit, setup: Setup) -> DutyOutcome:
    """Work a unit off.  Every error is its outcome's, so it stops no other unit."""
    started, is_lasting = time.monotonic(), False
    try:
        did = duty(unit.duty)(unit, setup)
    except Exception as error:
        is_lasting = lasts(error)
        if not isinstance(error, PenstockError):
            log.warning("%s failed with an unexpected error", unit, exc_info=error)
        did = Did(0, state=FAILED, error=error_text(error))
    seconds = round(time.monotonic() - started, 3)
    return DutyOutcome(
        unit,
        did.state,
        did.events,
        seconds,
        did.error,
        did.result,
        this_process(),
        is_lasting,
    )


def this_process() -> str:
    """The name of this process in a report."""
    return f"{socket.gethostname()}:{os.getpid()}"


def duty(name: str) -> Duty:
    """The function of a duty; ConfigurationError when there is none of this name."""
    if name not in DUTIES:
        raise ConfigurationError(
            f"there is no duty {name!r}", hint=f"choose one of: {', '.join(DUTIES)}"
        )
    return DUTIES[name]


def _sequence(unit: DutyUnit, setup: Setup) -> Did:
    """Give the committed events of a database their sequences: only its own function can."""
    from penstock.upkeep.sequencing import sequence

    done = sequence(setup.url(unit))
    return Did(done.events, done, LEFT if done.busy else DONE)


def _sweep(unit: DutyUnit, setup: Setup) -> Did:
    """Free what dead programs hold in a database, and drop dead letters by their age."""
    from penstock.upkeep.sweeping import sweep

    with database.connect(setup.url(unit), application_name="penstock sweep") as connection:
        done = sweep(connection)
    return Did(done.expired_letters, done, LEFT if done.locked_leases else DONE)


def _begin_clean(unit: DutyUnit, setup: Setup) -> Did:
    """Begin a run of clean.  Returns its token, and the log epochs to read back."""
    from ops.retention.clean import begin

    return Did(0, begin(setup.url(unit), unit.topic))


def _read_back(unit: DutyUnit, setup: Setup) -> Did:
    """Read the copies of some log epochs, and tell the database under the token of the run."""
    from ops.archive.read_back import plain_reader
    from ops.policies.policy import retention_in_force
    from ops.retention.guard import read_back

    url = setup.url(unit)
    with database.connect(url, application_name="penstock clean") as connection:
        policy = retention_in_force(connection).get(unit.topic)
    wanted = policy.targets if policy else ()
    targets = [each for each in setup.targets if each.name in wanted]
    read = read_back(url, unit.run, unit.due, targets, plain_reader(url))
    for name in sorted({*wanted} - {each.name for each in targets}):
        read.unavailable[name] = f"the archive target {name} has no place here"
    wrong = [
        f"{each.target}: {each.partition}/{each.log_epoch} is damaged: {each.damage}"
        for each in read.damaged
    ]
    away = list(read.unavailable.values())
    state = FAILED if wrong else LEFT if away else DONE
    return Did(read.events, read, state, "; ".join([*wrong, *away]))


def _clean(unit: DutyUnit, setup: Setup) -> Did:
    """Drop what its run has read back whole.  The database allows it once for each run."""
    from ops.retention.clean import drop

    try:
        done = drop(setup.url(unit), unit.topic, unit.run)
    except RetentionRefused as error:
        # Another attempt of this unit may have dropped, and died before it could say so.
        return Did(0, state=LEFT, error=f"{error.message}; the run may have ended already")
    return Did(sum(each.low_sequence - each.old_low_sequence for each in done), done)


def _storage(unit: DutyUnit, setup: Setup) -> Did:
    """Drop the tables of a database that nobody needs any more."""
    from ops.retention.clean import drop_slices

    return Did(0, drop_slices(setup.url(unit)))


def _relay(unit: DutyUnit, setup: Setup) -> Did:
    """Send what a subscription has as one more consumer of it, until nothing is left to send.

    What of a queue waits for its next attempt is left for the next run, and is no error.
    """
    from ops.relay.making import relay_to
    from ops.relay.relay import Relay
    from ops.sinks.address import configured_sink

    with closing(configured_sink(setup.sink(unit))) as sink:
        relay = relay_to(
            sink,
            setup.url(unit),
            unit.subject,
            archive=setup.targets,
            max_attempts=setup.max_attempts.get((unit.database, unit.subject)),
        )
        if isinstance(relay, Relay):
            done = relay.run_for(setup.max_seconds, until_drained=True)
            return Did(done.events, done, DONE if done.drained else LEFT, done.last_error)
        sent = relay.run_for(setup.max_seconds)
    state, counts = DONE if sent.drained else LEFT, f"{sent.events} events were taken"
    error = f"{counts} and {sent.failures} failed: {sent.last_error}" if sent.is_away else ""
    return Did(sent.events, sent, state, error)


def _backfill(unit: DutyUnit, setup: Setup) -> Did:
    """Work off a backfill request; one that a dead runner holds, when its lease has ended."""
    from ops.backfill import requests as requests
    from ops.backfill.running import BackfillRun, run_backfill

    url, number = setup.url(unit), int(unit.subject)
    end = time.monotonic() + 2 * setup.lease_seconds
    while True:
        done = run_backfill(
            url,
            _tools(setup),
            run=unit.run or None,
            request=number,
            lease_seconds=setup.lease_seconds,
        )
        if done is not None:
            return Did(done.done_events, done, DONE if done.state == "done" else LEFT, done.error)
        with database.connect(url, application_name="penstock backfill") as connection:
            now = requests.request_of(connection, number)
        if now.state != "running" or time.monotonic() >= end:
            state = {"done": DONE, "failed": FAILED}.get(now.state, LEFT)
            ended = BackfillRun(number, now.kind, now.attempts, now.state, now.done_events)
            return Did(now.done_events, ended, state, now.error)
        time.sleep(_PAUSE_SECONDS)


def _tools(setup: Setup) -> Workers:
    """What brings log epochs back and relays again; a copy is a job of Spark, not of a task."""
    from ops.backfill.requests import COPY
    from ops.backfill.workers import Places, workers
    from ops.sinks.address import configured_sink

    def no_session() -> NoReturn:
        raise ConfigurationError("a request of the kind copy is no unit of a task")

    places = Places(
        spark=no_session,
        target=setup.target,
        targets=lambda: list(setup.targets),
        sink=lambda address, beside: configured_sink(address, beside=beside),
    )
    return {kind: make for kind, make in workers(places).items() if kind != COPY}


#: What each duty does.  A backfill request of the kind `copy` is none of them: making copies is a
#: job of Spark by itself (`backfill_all` in ops/duties/verbs.py, `Copier` in
#: ops/backfill/workers.py).
DUTIES: Mapping[str, Duty] = {
    "sequence": _sequence,
    "sweep": _sweep,
    "begin clean": _begin_clean,
    "read back": _read_back,
    "clean": _clean,
    "storage": _storage,
    "relay": _relay,
    "backfill": _backfill,
}
