"""``penstock upkeep``: the one program that a small installation needs beside its applications."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import Any

import pytest

from penstock import database, log
from penstock.consumer.running.supervisor import STARTED_AFTER_SECONDS
from penstock.publishing.publish import publish_batch
from penstock.records import Message
from tests.consumers.process import Daemon, until
from tests.contract.databases import ContractDatabase
from tests.contract.kit import end_sessions
from tests.contract.stream_kit import end_lease
from tests.contract.upkeep.conftest import Start
from tests.kit.log import put, texts, topic
from tests.kit.proof import proves
from tests.kit.stream import filled, holders, member_with_lease

TOPIC = "tests/log"
SEQUENCED = "penstock_sequenced_events_total"


def room(connection: Any) -> int:
    """How many ids the storage of events can still take."""
    rows = database.call(connection, "slices_ready")
    return next(int(ready) for parent, _, ready, *_ in rows if parent == "events")


def need_room(db: ContractDatabase) -> None:
    """What makes more storage due."""
    db.run(
        "SELECT setval('penstock.events_id', 10000000)"
        if db.engine == "postgres"
        else "UPDATE penstock.slice_rates SET peak_per_second = 500000 WHERE parent = 'events'"
    )


def test_it_sequences_sweeps_and_keeps_storage_ahead(db: ContractDatabase, start: Start) -> None:
    own = db.connect()
    filled(own)
    member_with_lease(own, "dead")
    end_lease(db, "dead")
    log.ensure_slices(own)
    need_room(db)
    before = room(own)
    program = start(db.url, "--sweep-seconds", "0.1").wait_started()
    topic(own)
    for number in range(1, 6):
        put(own, f"{number}")
    until(lambda: texts(own) == ["1", "2", "3", "4", "5"], "the events in the log")
    until(lambda: holders(own) == {}, "the lease of the dead consumer to be free")
    until(lambda: room(own) > before, "more storage")
    until(lambda: program.metric(SEQUENCED, "sequencer") == 5, "the count")
    until(lambda: program.metric("penstock_swept_consumers_total", "sweep") == 1, "the other one")
    assert program.get("/livez") == (200, "ok\n")
    until(lambda: program.get("/readyz") == (200, "ok\n"), "it is ready")
    program.terminate()
    assert program.exit_code() == 0
    assert program.events()[-1]["event"] == "draining"


def sequences(connection: Any) -> list[int]:
    """Every sequence of the topic's only partition."""
    return [
        event.sequence
        for start in range(1, 2_000, 500)
        for event in log.fetch(connection, TOPIC, 0, start, 500)
    ]


def total(programs: list[Daemon]) -> float:
    """How many events the programs have sequenced together."""
    return sum(each.metric(SEQUENCED, "sequencer") for each in programs)


@proves("sequencers side by side")
@pytest.mark.long_on("mysql", "mariadb")
def test_several_beside_each_other_do_no_harm(db: ContractDatabase, start: Start) -> None:
    """Two of them and the daemon of a checkout: each event gets one sequence, and none fails.

    Guard: the lock of the sequencer, which tests/contract/log/test_sequence.py takes out.
    """
    own = db.connect()
    topic(own)
    programs = [
        start(db.url, "--sweep-seconds", "0.1"),
        start(db.url, "--sweep-seconds", "0.1"),
        start(db.url, "--roles", "sequencer,sweep", "--sweep-seconds", "0.1", daemon=True),
    ]
    for each in programs:
        each.wait_started()

    def publish() -> None:
        with database.connect(db.url) as connection:
            for first in range(0, 400, 4):
                publish_batch(
                    connection,
                    [Message(TOPIC, f"{number}".encode()) for number in range(first, first + 4)],
                )

    publishers = [threading.Thread(target=publish) for _ in range(2)]
    for thread in publishers:
        thread.start()
    for thread in publishers:
        thread.join()
    until(lambda: len(sequences(own)) == 800, "all events in the log")
    assert sequences(own) == list(range(1, 801))
    until(lambda: total(programs) == 800, "each event counted once")
    # One is killed in the middle of whatever it does: the others go on.
    programs.pop().kill()
    put(own, "last")
    until(lambda: len(sequences(own)) == 801, "the event after that")
    for each in programs:
        assert each.metric("penstock_worker_restarts_total", "sequencer") == 0
        assert each.metric("penstock_worker_restarts_total", "sweep") == 0
        until(partial(each.says, "/readyz", 200), "it is ready")
        each.terminate()
    assert [each.exit_code() for each in programs] == [0, 0]


@pytest.mark.long_on("mysql", "mariadb")
def test_it_connects_again_and_says_so(db: ContractDatabase, start: Start) -> None:
    topic(db.connect())
    program = start(db.url, PENSTOCK_UPKEEP_SWEEP_SECONDS="0.1").wait_started()
    until(lambda: program.age() > STARTED_AFTER_SECONDS, "the end of the start")
    end_sessions(db, db.connect(), "penstock s%")
    until(lambda: "sequencer is connected again" in program.text(), "the sequencer again")
    until(lambda: "sweep is connected again" in program.text(), "the sweep again")
    own = db.connect()
    put(own, "after")
    until(lambda: texts(own) == ["after"], "an event after that")
    program.terminate()
    assert program.exit_code() == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--sweep-seconds", "0"], {}, "--sweep-seconds is '0'. use a number from 0.1"),
        (["--log-format", "xml"], {}, "use one of json, text"),
        ([], {"PENSTOCK_UPKEEP_HTTPPORT": "80"}, "nearest is PENSTOCK_UPKEEP_HTTP_PORT"),
        ([], {"PENSTOCK_UPKEEP_HTTP_PORT": "many"}, "PENSTOCK_UPKEEP_HTTP_PORT is 'many'"),
    ],
)
def test_a_wrong_call_is_one_line(
    start: Start, arguments: list[str], environment: dict[str, str], said: str
) -> None:
    program = start("postgresql://nobody@127.0.0.1:1/none", *arguments, **environment)
    assert program.exit_code() == 2
    (line,) = program.text().splitlines()
    assert said in line


def test_a_database_that_is_away_at_the_start(start: Start) -> None:
    program = start("postgresql://me:hunter2@127.0.0.1:1/none")
    assert program.exit_code() == 3
    (line,) = program.text().splitlines()
    assert "hunter2" not in line


def test_a_port_that_is_taken(db: ContractDatabase, start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        program = start(db.url, "--http-port", str(taken.getsockname()[1]))
        assert program.exit_code() == 2
    assert "choose another with --http-port" in program.text()
