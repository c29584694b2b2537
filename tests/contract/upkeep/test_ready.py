"""``/readyz``: whether the database answers, and whether a sequencer runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import log
from penstock.consumer.running.supervisor import Supervisor
from penstock.log import LogStatus
from penstock.upkeep import watch as module
from penstock.upkeep.state import Calls, OneProcess
from penstock.upkeep.watch import Watch
from penstock.upkeep.workers import SequencerWorker
from tests.consumers.process import until
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction, sql
from tests.contract.upkeep.conftest import Start
from tests.kit.log import drain, put, texts, topic
from tests.kit.proof import proves

WAITS = "for their sequence, and no pass was made"


def watching(db: ContractDatabase, limit: float | None) -> tuple[Watch, Callable[[], str]]:
    """A watch, and what it says when it looks anew."""
    now = [0.0]
    watch = Watch(db.url, [], everything=False, waiting_seconds=limit, clock=lambda: now[0])

    def look() -> str:
        now[0] += module.FRESH_SECONDS + 0.1
        return watch.not_ready()

    return watch, look


@proves("readyz")
def test_events_that_nobody_sequences(db: ContractDatabase) -> None:
    """Guard: the look at what waits; who has no sequencer does not look."""
    own = db.connect()
    topic(own)
    watch, look = watching(db, 0.3)
    blind, look_blindly = watching(db, None)
    assert look() == ""
    put(own, "1")
    until(lambda: WAITS in look(), "the event to have waited for long")
    assert look_blindly() == ""
    assert watch.problem() == ""
    assert watch.figures()["database_up", ""] == 1
    drain(own)
    assert look() == ""
    watch.close()
    blind.close()


def test_a_sequencer_that_is_behind_is_at_work(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old events beside a young pass: it is late, and neither away nor stuck."""
    own = db.connect()
    topic(own)
    put(own, "1")
    put(own, "2")
    watch, look = watching(db, 0.3)
    until(lambda: WAITS in look(), "the events to have waited for long")
    log.sequence(own, 1)
    status: Callable[[Any], LogStatus] = log.status
    monkeypatch.setattr(log, "status", lambda connection: _young(status(connection)))
    assert look() == ""
    watch.close()


def _young(found: LogStatus) -> LogStatus:
    """The same with a pass of a moment ago, however slow the machine is."""
    values = {name: getattr(found, name) for name in LogStatus.__slots__}
    assert values["last_pass_age_seconds"] is not None
    return LogStatus(**values | {"last_pass_age_seconds": 0.1})


def _look_at_an_event_that_is_old_when_it_appears(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> str:
    """It waits for long by its own time; the next pass comes between the two looks."""
    own = db.connect()
    topic(own)
    watch, look = watching(db, 0.3)
    put(own, "1")
    time.sleep(0.4)
    with monkeypatch.context() as patch:
        patch.setattr(module, "pause", lambda _: drain(own))
        found = look()
    watch.close()
    return found


@proves("readyz")
def test_an_event_that_has_just_appeared_may_be_old(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction was open for long. Guard: the second look."""
    assert _look_at_an_event_that_is_old_when_it_appears(db, monkeypatch) == ""


@proves("readyz", guard="the second look")
def test_without_a_second_look_it_is_an_alarm(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: what is known before the pause decides, with a last pass of long ago.

    The log's own last pass is that of the test before, which may have been a moment ago.
    """
    own = db.connect()
    old = {"unsequenced_age_seconds": 9.0, "last_pass_age_seconds": 9.0}
    before = LogStatus(**_fields(log.status(own)) | old)
    monkeypatch.setattr(log, "status", lambda _: before)
    assert WAITS in _look_at_an_event_that_is_old_when_it_appears(db, monkeypatch)


def _fields(found: LogStatus) -> dict[str, Any]:
    return {name: getattr(found, name) for name in LogStatus.__slots__}


@proves("readyz")
def test_a_sequencer_of_its_own_that_makes_no_pass(db: ContractDatabase) -> None:
    """Guard: silent_seconds; also when no event waits."""
    watch = Watch(db.url, [], everything=False, waiting_seconds=10.0)
    worker = SequencerWorker(db.url)
    state = OneProcess(Supervisor([worker]), watch, Calls())
    assert state.not_ready() == ""
    worker.passed -= 60.0
    assert "the sequencer has made no pass for" in state.not_ready()
    worker.longest = 60.0  # it may rest so long
    assert state.not_ready() == ""
    watch.close()


@proves("readyz")
@pytest.mark.long_on("mysql", "mariadb")
def test_somebody_holds_the_sequencer_and_does_not_go_on(
    db: ContractDatabase, start: Start
) -> None:
    """The page of a whole program: 503 while the log stands still, 200 when it goes on."""
    own = db.connect()
    topic(own)
    program = start(db.url, "--waiting-seconds", "0.5").wait_started()
    with open_transaction(db) as stuck:
        sql(stuck, "SELECT 1 FROM penstock.sequencer FOR UPDATE")
        put(own, "1")
        # On a busy machine it may say first that its own sequencer is slow.
        until(lambda: program.says("/readyz", 503, WAITS), "the program to be not ready")
        assert program.get("/livez")[0] == 200
        until(lambda: program.says("/metrics", 200, "penstock_database_up 1.0"), "the metric")
        stuck.rollback()
    until(lambda: texts(own) == ["1"], "the event in the log")
    until(lambda: program.get("/readyz")[0] == 200, "the program to be ready again")
    program.terminate()
    assert program.exit_code() == 0
