"""Published events do not arrive: what `penstock status` and the doctor say, on every engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import database, log
from penstock.doctor import Limits, doctor
from penstock.log import sequencer_state as module
from penstock.publishing.publish import publish
from penstock.subscriptions import dead_letters, stream
from tests import command
from tests.command import Result
from tests.contract.databases import ContractDatabase
from tests.contract.kit import open_transaction
from tests.contract.reads import counted
from tests.kit.log import drain, topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, member_with_lease

Run = Callable[..., Result]


@pytest.fixture
def run(
    db: ContractDatabase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command on a database with a topic and a subscription, whose last pass is long ago."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    own = db.connect()
    topic(own, 1, STREAM)
    stream.subscribe(own, SUBSCRIPTION, [STREAM])
    return partial(command.run, capsys)


def _long_ago(db: ContractDatabase) -> None:
    """No pass was made for an hour, and what waits has waited for as long."""
    if db.engine == "postgres":
        db.run("UPDATE penstock.ticks SET passed_at = passed_at - interval '1 hour'")
        db.run("UPDATE penstock.events SET created_at = created_at - interval '1 hour'")
    else:
        db.run("UPDATE penstock.sequencer SET passed_at = passed_at - INTERVAL 1 HOUR")
        db.run("UPDATE penstock.events SET created_at = created_at - INTERVAL 1 HOUR")


def _status(run: Run) -> dict[str, Any]:
    found = run("status", "-o", "json")
    assert found.code == 0, found.err
    answer: dict[str, Any] = found.json
    return answer


@proves("what waits is said")
@pytest.mark.long_on("mariadb")
def test_what_waits_for_its_sequence_is_said(db: ContractDatabase, run: Run) -> None:
    """Guard: the sequencer in `status`; every lag is 0 while nothing has a sequence."""
    for _ in range(3):
        publish(db.connect(), STREAM, b"x")
    _long_ago(db)
    found = _status(run)
    assert {each["lag_events"] for each in found["subscriptions"]} == {0}
    assert found["sequencer"]["waiting_events"] == 3
    assert found["sequencer"]["waiting_seconds"] >= 3_600
    assert found["sequencer"]["last_pass_seconds"] >= 3_600
    assert found["sequencer"]["state"] == "nobody sequences"
    said = run("status").err
    for words in ("3 committed events wait", "60 minutes", "nobody sequences", "run: penstock"):
        assert words in said
    assert found["sequencer"]["holder"] is None
    log.sequence(db.connect())
    again = _status(run)
    assert (again["sequencer"]["waiting_events"], again["sequencer"]["state"]) == (
        0, "nothing waits",
    )  # fmt: skip
    assert "sequencer: nothing waits" in run("status").err


def _instead_of_a_rest(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """The name in that module alone: threads of others rest by the same function."""
    rests = SimpleNamespace(sleep=lambda _: act())
    monkeypatch.setattr("penstock.log.sequencer_state.time", rests)


@proves("what waits is said", guard="the second look")
def test_a_sequencer_at_work_is_not_missed(
    db: ContractDatabase, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the second look; the event of a transaction that was long open is old at once."""
    own = db.connect()
    publish(own, STREAM, b"x")
    _long_ago(db)
    _instead_of_a_rest(monkeypatch, lambda: log.sequence(own))
    assert _status(run)["sequencer"]["state"] == "nothing waits"
    publish(own, STREAM, b"x")
    assert _status(run)["sequencer"]["state"] == "at work"


@proves("what waits is said")
def test_who_holds_the_sequencer_is_said(
    db: ContractDatabase, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MySQL and MariaDB it is the session that has held locks for longest."""
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)
    _instead_of_a_rest(monkeypatch, lambda: None)
    publish(db.connect(), STREAM, b"x")
    _long_ago(db)
    with open_transaction(db) as stuck:
        database.execute(stuck, "SELECT * FROM penstock.sequencer FOR UPDATE")
        ((pid,),) = database.execute(
            stuck,
            "SELECT pg_backend_pid()" if db.engine == "postgres" else "SELECT CONNECTION_ID()",
        )
        if db.engine != "postgres":
            database.execute(stuck, "SELECT SLEEP(1.1)")  # its age is in whole seconds
        assert log.sequence(db.connect()).busy
        found = _status(run)["sequencer"]
        assert f"session {pid} of " in found["holder"]
        assert found["held_seconds"] > 0
        said = run("status").err
        assert f"session {pid} of " in said
        (finding,) = [
            each for each in doctor(db.url, Limits(waiting_seconds=0)) if each.check == "sequencer"
        ]
        assert f"session {pid} of " in finding.what


def _given_up(db: ContractDatabase, *parked: bool) -> None:
    own = db.connect()
    for number, _ in enumerate(parked):
        publish(own, STREAM, b"x", key=f"k{number}")
    drain(own)
    member, lease = member_with_lease(own, "a")
    for sequence, park in enumerate(parked, 1):
        dead_letters.give_up(own, member, lease, sequence, "no", attempts=3, park=park)


def test_dead_letters_are_counted_by_state(db: ContractDatabase, run: Run) -> None:
    """In `status`, of one subscription and of all; redriven ones by themselves."""
    states = ("dead", "parked", "redriven", "forwarded", "not_forwarded")
    (none,) = _status(run)["dead_letters"]
    empty = dict.fromkeys(states, 0)
    assert none == {"subscription": SUBSCRIPTION, **empty, "oldest_seconds": 0}
    _given_up(db, False, False, True, False)
    own = db.connect()
    (found,) = dead_letters.counts(own, SUBSCRIPTION)
    assert (found.dead, found.parked, found.redriven, found.left) == (3, 1, 0, 4)
    assert 0 <= found.oldest_seconds < 3_600
    newest = dead_letters.dead_letters(own, SUBSCRIPTION)[0]
    dead_letters.redrive(own, SUBSCRIPTION, [newest.id])
    (shown,) = _status(run)["dead_letters"]
    assert (shown["dead"], shown["parked"], shown["redriven"]) == (2, 1, 1)
    assert "dead letters:" in run("status", SUBSCRIPTION).err
    assert dead_letters.counts(own, "nobody") == []


@proves("what waits is said")
def test_the_doctor_names_dead_letters(db: ContractDatabase, run: Run) -> None:
    """Guard: examine_letters; and its command runs."""
    stream.subscribe(db.connect(), "billing two", [STREAM])
    assert "dead_letters" not in {each.check for each in doctor(db.url)}
    _given_up(db, False, True)
    (finding,) = [each for each in doctor(db.url) if each.check == "dead_letters"]
    assert finding.severity == "warning"
    assert f"{SUBSCRIPTION!r} has 2 dead letters, 1 of them parked" in finding.what
    _, *arguments = finding.command.partition("  #")[0].split()
    assert len(json.loads(run(*arguments, "-o", "json").out)) == 2


@proves("what waits is said", guard="counting stops at 10,000")
def test_counting_reads_what_it_counts(db: ContractDatabase, run: Run) -> None:
    """Bounded: the letters of the subscription by its index, and none of another one."""
    _given_up(db, *[False] * 30)
    own = db.connect()
    stream.subscribe(own, "quiet", [STREAM])
    dead_letters.counts(own, "quiet")
    with counted(own) as reads:
        (found,) = dead_letters.counts(own, "quiet")
    assert found.left == 0
    assert reads.rows <= 20, reads
    with counted(own) as reads:
        (found,) = dead_letters.counts(own, SUBSCRIPTION)
    assert found.left == 30
    assert reads.rows <= 30 * 3 + 20, reads
    function = "dead_letter_counts" if db.engine == "postgres" else "count_dead_letters"
    db.without_guard(function, "LIMIT 10000", "LIMIT 20")
    (some,) = dead_letters.counts(own, SUBSCRIPTION)
    assert some.left == 20
