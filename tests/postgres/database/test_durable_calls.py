"""Calls that fence or acknowledge wait for the disk, whatever the login's settings are.

A login, a database or a session with ``synchronous_commit = off`` is fast and loses its last
commits in a crash.  A lease_epoch, a block or a seal that was answered must not be lost: it would
be given out a second time (D7).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import database, log, subscriptions
from penstock.database.migrate import migrate
from penstock.errors import PenstockError
from penstock.log.histories import reconcile
from penstock.log.restores import report_position
from penstock.subscriptions import queue, stream
from penstock.topics import holds, names
from resources.embedded import EmbeddedPostgres
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, part, put, topic, value, wait_until
from tests.kit.proof import proves
from tests.support import missing

READER = "reader"
OFF = "options=-c%20synchronous_commit%3Doff"

#: Functions that change something and leave it to the caller how durable that is, and why they may.
LEFT_TO_THE_CALLER = {
    "publish": "the application's own transaction: its events are as durable as what they tell of",
    "publish_text": "as publish",
    "publish_json": "as publish",
    "publish_batch": "as publish",
    "publish_columns": "as publish",
    "publish_for_accounts": "as publish",
    "publish_bulk": "as publish",
    "prepare_bulk": "a temporary table",
    "stage_events": "lost, publish_staged refuses and the writer stages again",
    "claim_sends": "as publish, and in the transaction of its events",
    "claim_rows": "as publish, and in the transaction of its events",
    "claim_write": "as publish, and in the transaction of its events",
    "discard_staged": "what is left is swept",
    "suspect_copy": "a note: who reads the copy again makes it again",
    "clear_suspicion": "lost, the copy is read back once more",
    "sweep_staged": "done again by the next sweep",
    "commit": "with what the handler wrote in the same transaction; lost, it is handled again (D5)",
    "finish_redriven": "as commit, of a letter",
    "poll_redriven": "its letters are fenced by the lease; lost, they are handed out again",
    "heartbeat": "lost, the lease ends earlier, and its successor gets another lease_epoch",
    "heartbeats": "as heartbeat",
    "release": "lost, the lease is held until its time is over",
    "leave": "as release",
    "sweep": "gives nothing out: who takes a lease over commits durably, and all before it",
    "report_error": "a text for operators",
    "measure_pressure": "measured anew each second",
    "measure_accounts": "as measure_pressure",
    "turn_dedup": "done again by the next upkeep",
    "ensure_slices": "as turn_dedup",
    "condemn_slices": "noted again; a drop waits for the disk by itself",
    "close_slice": "the DETACH after it waits for the disk",
    "slice_detaching": "since when, for the doctor; the DETACH behind it waits for the disk",
    "slice_dropped": "the next clean finds the table gone",
    "merge_chunks": "a table that the next clean fills anew",
    "release_rehydrated": "released again by the next call",
    "act_as": "only a local setting",
    "next_letter_move": "only locks a row",
    "note_uses": "only counts",
    "announce": "a notice, which is no part of the log",
    "wake_sequencer": "as announce",
    "count_log_epochs": "counted again by the next clean",
    "note_target_speed": "only the order in which targets are written",
    "receive": "lost, the events are handed out again, and its receipts are good no longer",
    "acknowledge": "as commit, of single events",
    "extend": "as acknowledge",
    "release_claims": "as acknowledge",
    "reject": "as acknowledge",
    "bury_claims": "as acknowledge",
}

#: They set it themselves, or call one that does.
BY_ANOTHER = {
    "sequence": "set_config('synchronous_commit', 'on', true)",
    "clear_policy": "set_policy(",
    "extend_backfill": "hold_backfill(",
    "backfill_work": "hold_backfill(",
    "progress_backfill": "hold_backfill(",
    "finish_backfill": "hold_backfill(",
    "fail_backfill": "hold_backfill(",
    "begin_rehydration": "hold_rehydration(",
    "put_rehydrated": "hold_rehydration(",
    "finish_rehydration": "hold_rehydration(",
    "erase_events": "hold_erasure(",
    "erase_letters": "hold_erasure(",
    "finish_erasure": "hold_erasure(",
}


@proves("D7 over a crash")
def test_each_function_that_changes_something_has_decided(connection: Connection) -> None:
    """Guard: a new function calls commit_durably(), or is named above with its reason."""
    rows = connection.execute(
        "SELECT DISTINCT p.proname, p.prosrc FROM pg_proc AS p"
        " JOIN penstock.function_roles() AS r ON r.function = p.proname"
        " WHERE p.pronamespace = 'penstock'::regnamespace AND p.provolatile = 'v'"
    ).fetchall()
    durable = {name for name, source in rows if "commit_durably()" in source}
    durable |= {name for name, source in rows if BY_ANOTHER.get(name, "\0") in source}
    assert {name for name, _ in rows} - durable - LEFT_TO_THE_CALLER.keys() == _only_reads()
    assert durable & LEFT_TO_THE_CALLER.keys() == set()


def _only_reads() -> set[str]:
    """They are volatile and change nothing."""
    return {"droppable_slices", "condemned_can_go"}


def _fence(own: Connection) -> tuple[stream.Membership, dict[str, Any]]:
    member = stream.join(own, READER, "one")
    (lease,) = stream.check_in(own, member)
    return member, {
        "subscription": READER,
        "consumer": "one",
        "partition_id": lease.partition_id,
        "lease_epoch": lease.lease_epoch,
    }


def _claim(own: Connection) -> None:
    member = stream.join(own, READER, "two")
    database.call(
        own,
        "claim",
        subscription=READER,
        consumer="two",
        session=member.session,
        partition_id=part(own),
        lease_epoch=0,
    )


def _lead(own: Connection) -> None:
    member = stream.join(own, READER, "two")
    binds = {"subscription": READER, "consumer": "two", "session": member.session}
    database.call(own, "lead_subscription", **binds)


CALLS: dict[str, Callable[[Connection], object]] = {
    "sequence": log.sequence,
    "check_in": _fence,
    "claim": _claim,
    "lead_subscription": _lead,
    "seek": lambda own: stream.seek(own, READER, TOPIC, 0, "latest"),
    "reset_subscription": lambda own: stream.reset(own, READER, "latest"),
    "open_block": lambda own: database.call(
        own, "open_block", **_fence(own)[1], max_events=1, max_bytes=1
    ),
    "seal": lambda own: own.execute("SELECT penstock.seal('tests/log', 0, 1)"),
    "reconcile": lambda own: reconcile(own, "a test"),
    "report_positions": lambda own: report_position(own, part(own), 9, history=1, source="x"),
    "create_topic": lambda own: topic(own, name="tests/other"),
    "ensure_topic": lambda own: names.create_topic(own, "tests/new", if_not_exists=True),
    "delete_topic": lambda own: names.delete_topic(own, TOPIC, with_subscriptions=True),
    "subscribe": lambda own: stream.subscribe(own, "other", [TOPIC]),
    "pause_subscription": lambda own: subscriptions.pause(own, READER),
    "set_setting": lambda own: own.execute(
        "SELECT penstock.set_setting('sequencer_idle_seconds', 1)"
    ),
    "grant_namespace": lambda own: own.execute(
        "SELECT penstock.grant_namespace('tests', current_user::text, 'operate')"
    ),
    "set_policy": lambda own: own.execute(
        "SELECT penstock.set_policy('retry', 'topic', 'tests/log', '{\"max_attempts\": 3}')"
    ),
    "set_retention": lambda own: own.execute("SELECT penstock.set_retention('tests/log', 60, 1)"),
    "place_hold": lambda own: holds.place_hold(own, TOPIC, "case", "a claim"),
    "place_bookmark": lambda own: log.place_bookmark(own, TOPIC, "mark"),
    "drop_bookmark": lambda own: log.drop_bookmark(own, TOPIC, "mark"),
    "release_hold": lambda own: holds.release_hold(own, TOPIC, "case", "over"),
}


def _in_force(own: Connection, call: Callable[[Connection], object]) -> str:
    with own.transaction(force_rollback=True):
        call(own)
        return str(value(own, "SHOW synchronous_commit"))


def _filled(connection: Connection) -> None:
    topic(connection)
    stream.subscribe(connection, READER, [TOPIC])
    for number in range(3):
        put(connection, str(number))
    drain(connection)


@proves("D7 over a crash")
@pytest.mark.parametrize("given", ["off", "local", "remote_write"])
def test_its_commit_waits_for_the_disk(connection: Connection, given: str) -> None:
    """Guard: commit_durably(), to the end of the caller's transaction; more is left as it is."""
    _filled(connection)
    connection.execute(f"SET synchronous_commit = {given}".encode())
    for name, call in CALLS.items():
        expected = "on" if given in {"off", "local"} else given
        assert _in_force(connection, call) == expected, name
        assert value(connection, "SHOW synchronous_commit") == given


def test_publish_and_commit_leave_it(connection: Connection) -> None:
    """They stand in the application's transaction, which knows what it wants."""
    _filled(connection)
    member, fence = _fence(connection)
    (lease,) = stream.held_leases(connection, member)
    assert fence["lease_epoch"] == lease.lease_epoch
    connection.execute("SET synchronous_commit = off")
    assert _in_force(connection, lambda own: put(own, "x")) == "off"
    assert _in_force(connection, lambda own: stream.commit(own, member, [(lease, 1)])) == "off"


# A crash.


def _kill(server: EmbeddedPostgres) -> None:
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server is dead")


def _tokens(server: EmbeddedPostgres, url: str, consumer: str) -> set[int]:
    """What a consumer gets whose login is set to off."""
    with closing(psycopg.connect(f"{url}?{OFF}", autocommit=True)) as own:
        assert value(own, "SHOW synchronous_commit") == "off"
        member = stream.join(own, READER, consumer)
        return {each.lease_epoch for each in stream.check_in(own, member)}


@contextmanager
def _forgetful(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A server that leaves what nobody waits for in memory, as each one does for a moment."""
    settings = {"wal_writer_delay": "10s", "autovacuum": "off", "fsync": "off"}
    try:
        server = EmbeddedPostgres(folder, settings=settings)
        server.start()
    except PenstockError as error:
        missing("PostgreSQL", error)
    try:
        migrate(server.url("app"))
        yield server
    finally:
        server.stop()


def _over_a_crash(folder: Path, *, guarded: bool) -> tuple[set[int], set[int]]:
    with _forgetful(folder) as server:
        with closing(psycopg.connect(server.url("app"), autocommit=True)) as own:
            if not guarded:
                without_guard(own, "commit_durably", "IN ('off', 'local')", "IN ('none')")
            _filled(own)
            stream.configure_subscription(
                own, READER, heartbeat_seconds=20, lease_seconds=600, release_seconds=10
            )
        first = _tokens(server, server.url("app"), "A")
        _kill(server)
        server.start()
        return first, _tokens(server, server.url("app"), "B")


@proves("D7 over a crash")
def test_a_lease_epoch_is_not_given_twice_after_a_crash(tmp_path: Path) -> None:
    """Guard: commit_durably() in check_in: A holds the lease when the server is back."""
    first, second = _over_a_crash(tmp_path / "pg", guarded=True)
    assert first == {1}
    assert second == set()


@proves("D7 over a crash", guard="commit_durably")
def test_without_it_a_lease_epoch_is_given_twice(tmp_path: Path) -> None:
    """Mutant: the session's setting holds."""
    assert _over_a_crash(tmp_path / "pg", guarded=False) == ({1}, {1})


@proves("D7 over a crash", how="what a crash may undo, and what is good then")
@pytest.mark.long
def test_a_hand_out_that_a_crash_undoes_leaves_the_receipt_before_it_good(tmp_path: Path) -> None:
    """Nobody else has the event then: A, who was late, finishes it, and B is refused.

    The checker of queue histories allows for this (tests/faults/told_jobs.py).
    """
    with _forgetful(tmp_path / "pg") as server:
        with closing(psycopg.connect(server.url("app"), autocommit=True)) as own:
            topic(own)
            queue.subscribe(own, "jobs", [TOPIC])
            put(own, "one")
            drain(own)
            (late,) = queue.receive(own, "jobs", visibility_seconds=1)
            put(own, "its commit takes the hand-out to the disk")
            found: list[queue.Delivery] = []

            def is_handed_out_again() -> bool:
                found.extend(queue.receive(own, "jobs", visibility_seconds=60))
                return bool(found)

            wait_until(is_handed_out_again, "another one has the event")
            assert found[0].event.sequence == late.event.sequence
            with own.transaction(force_rollback=True):  # whose end does not go to the disk
                assert queue.acknowledge(own, "jobs", [late.receipt], partly=True) == [False]
        _kill(server)
        server.start()
        with closing(psycopg.connect(server.url("app"), autocommit=True)) as own:
            receipts = [late.receipt, found[0].receipt]
            assert queue.acknowledge(own, "jobs", receipts, partly=True) == [True, False]
