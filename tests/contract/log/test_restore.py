"""Histories and stops on every engine: no sequence stands for two events within one (S21)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from penstock import database, log, subscriptions
from penstock.cli import exit_codes, main
from penstock.errors import InvalidArgument, LogBehind, StaleLease, TopicNotFound
from penstock.leases.database_keeper import LeaseKeeper
from penstock.leases.heartbeat import HeartbeatThreads
from penstock.log.histories import histories, reconcile, restore_status
from penstock.log.restores import Seen, report_position, require_log
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.kit import kill, open_transaction, sql
from tests.contract.stream_kit import Guard, without
from tests.kit.log import part, put, wait_until
from tests.kit.proof import proves
from tests.kit.stream import (
    STREAM,
    SUBSCRIPTION,
    filled,
    member_with_lease,
    more,
    short_leases,
)

NO_STOP: Guard = {
    "postgres": ("require_readable", "IF found_row.seen IS NOT NULL", "IF false"),
    "mysql": ("require_readable", "IF stopped IS NOT NULL THEN", "IF FALSE THEN"),
}
NOT_BROUGHT_BACK: Guard = {
    "postgres": (
        "open_history",
        "GREATEST(o.position, o.reached) > w.watermark",
        "false",
    ),
    "mysql": (
        "bring_back",
        "IF GREATEST(stands_at, current_reached(owner_id, part_id)) > watermark THEN",
        "IF FALSE THEN",
    ),
}
SEQUENCE_ALONE: Guard = {
    "postgres": (
        "report_positions",
        "WHERE (EXCLUDED.history, EXCLUDED.sequence) > (s.history, s.sequence);",
        "WHERE EXCLUDED.history > s.history OR EXCLUDED.sequence > s.sequence;",
    ),
    "mysql": ("stop_partition", "seen_history = known_history AND", "TRUE AND"),
}
OLD_LEASES: Guard = {
    "postgres": ("open_history", "SET state = 'AVAILABLE', holder = NULL,", "SET"),
    "mysql": ("open_history", "CALL bring_back(owner_id, part_id, opened);", ""),
}


def _report(connection: Any, sequence: Any, history: Any = 1, by: str = "sink") -> Any:
    own = part(connection, name=STREAM)
    return report_position(connection, own, sequence, history=history, source=by)


SEQUENCER_FIRST: Guard = {
    "postgres": (
        "reconcile",
        "PERFORM FROM leases AS l ORDER BY l.subscription_id, l.partition_id FOR UPDATE;",
        "",
    ),
    "mysql": ("reconcile", "FROM leases AS l ORDER BY", "FROM leases AS l WHERE FALSE ORDER BY"),
}


def _pass_beside_a_reconcile_that_waits(db: ContractDatabase) -> bool:
    """Whether the log goes on while a consumer is inside a transaction and a reconcile waits."""
    own, waiting = db.connect(), db.connect()
    filled(own)
    with open_transaction(db) as consumer, ThreadPoolExecutor(1) as pool:
        sql(consumer, "SELECT * FROM penstock.leases FOR UPDATE")
        opened = pool.submit(reconcile, waiting, "restored from yesterday")
        db.wait_until_blocked(waiting)
        put(own, "x", name=STREAM)
        goes_on = not log.sequence(own).busy
        consumer.rollback()
        assert opened.result() == 2
    return goes_on


def test_a_reconcile_that_waits_holds_up_no_pass(db: ContractDatabase) -> None:
    """Guard: leases are locked before the sequencer, in the order of every deletion."""
    assert _pass_beside_a_reconcile_that_waits(db)


def test_the_sequencer_first_holds_the_log_up(db: ContractDatabase) -> None:
    """Mutant: the leases are locked when the sequencer is held."""
    without(db, SEQUENCER_FIRST)
    assert not _pass_beside_a_reconcile_that_waits(db)


@proves("S21", how="all")
def test_a_position_beyond_the_log_stops_the_partition(db: ContractDatabase) -> None:
    """Guards: report_position, require_readable; reconcile opens it again, under a new history."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    fine = _report(own, 10, by="archive")
    assert (fine.stopped, fine.high_watermark, fine.history) == (False, 10, 1)
    assert restore_status(own) == []
    assert _report(own, 11).stopped is True
    assert _report(own, 15).stopped is True
    assert _report(own, 12).stopped is True
    with pytest.raises(LogBehind, match="sink has seen sequence 15"):
        log.fetch(own, STREAM, 0, 1)
    with pytest.raises(LogBehind):
        stream.poll(own, member, [lease])
    with pytest.raises(LogBehind):
        database.call(
            own,
            "open_block",
            subscription=SUBSCRIPTION,
            consumer="a",
            partition_id=lease.partition_id,
            lease_epoch=lease.lease_epoch,
            max_events=10,
            max_bytes=1000,
        )
    (beyond,) = restore_status(own)
    assert (beyond.topic, beyond.partition, beyond.high_watermark) == (STREAM, 0, 10)
    assert (beyond.sequence, beyond.history, beyond.source) == (15, 1, "sink")
    assert beyond.reported_at is not None
    assert beyond.reported_at.tzinfo is not None
    assert reconcile(own, "the volume of this morning") == 2
    assert restore_status(own) == []
    assert [each.history for each in histories(own)] == [1, 2]
    assert histories(own)[-1].reason == "the volume of this morning"
    assert {event.history for event in log.fetch(own, STREAM, 0, 1)} == {2}
    assert (_report(own, 15).stopped, _report(own, 15).history) == (False, 2)


def test_without_the_stop_it_is_read(db: ContractDatabase) -> None:
    """Mutant: a stopped partition is read."""
    own = db.connect()
    filled(own)
    without(db, NO_STOP)
    assert _report(own, 11).stopped
    assert len(log.fetch(own, STREAM, 0, 1)) == 10


def test_a_block_that_was_written_down_waits_too(db: ContractDatabase) -> None:
    """Guard: open_block asks before it returns an open block; else a relay would send on."""
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    fence = {
        "subscription": SUBSCRIPTION,
        "consumer": member.consumer,
        "partition_id": lease.partition_id,
        "lease_epoch": lease.lease_epoch,
    }
    assert database.call(own, "open_block", **fence, max_events=4, max_bytes=1000)
    assert _report(own, 11).stopped
    with pytest.raises(LogBehind):
        database.call(own, "open_block", **fence, max_events=4, max_bytes=1000)


def _after_a_history(db: ContractDatabase) -> tuple[Any, Any, Any]:
    own = db.connect()
    filled(own)
    member, lease = member_with_lease(own, "a")
    reconcile(own, "a test")
    return own, member, lease


def test_a_new_history_takes_the_leases(db: ContractDatabase) -> None:
    """Guard: open_history; lease_epoch rises above whatever the lost time gave out."""
    own, member, lease = _after_a_history(db)
    with pytest.raises(StaleLease):
        stream.commit(own, member, [(lease, 10)])
    (again,) = stream.check_in(own, member)
    assert again.lease_epoch > 2 << 32
    assert again.history == 2
    stream.commit(own, member, [(again, 10)])
    changes = db.run("SELECT holder FROM penstock.lease_history ORDER BY id")
    assert changes == [("a",), ("a",), ("a",)]


def test_without_it_a_lease_outlives_its_history(db: ContractDatabase) -> None:
    """Mutant: leases stay where they are."""
    without(db, OLD_LEASES)
    own, member, lease = _after_a_history(db)
    (again,) = stream.check_in(own, member)
    assert again.lease_epoch <= lease.lease_epoch or db.engine == "postgres"
    assert subscriptions.lag(own, SUBSCRIPTION)[0].holder == "a"


def _beyond(db: ContractDatabase) -> list[int]:
    """A position in the ledger beyond the log, and where it stands after a reconcile."""
    own = db.connect()
    filled(own, events=5)
    db.run(
        "INSERT INTO penstock.positions"
        " (subscription_id, partition_id, position, lease_epoch, reason)"
        " SELECT subscription_id, partition_id, 9, 1, 'commit' FROM penstock.leases"
    )
    (found,) = restore_status(own)
    assert (found.source, found.sequence) == (f'subscription "{SUBSCRIPTION}"', 9)
    assert found.reported_at is None
    reconcile(own, "a test")
    return list(stream.position(own, SUBSCRIPTION, STREAM).values())


def test_positions_beyond_the_log_are_brought_back(db: ContractDatabase) -> None:
    """Guard: open_history, recorded in the ledger with the reason."""
    assert _beyond(db) == [5]
    assert db.run("SELECT reason FROM penstock.positions ORDER BY id DESC")[0] == ("history",)
    assert restore_status(db.connect()) == []


def test_without_it_they_stay_beyond(db: ContractDatabase) -> None:
    """Mutant: positions are left where they are."""
    without(db, NOT_BROUGHT_BACK)
    assert _beyond(db) == [9]


def _furthest(db: ContractDatabase, *reports: tuple[int, int]) -> tuple[int, int]:
    own = db.connect()
    reconcile(own, "what was reported before is over")
    for sequence, history in reports:
        _report(own, sequence, history)
    (status,) = restore_status(own)
    return status.sequence, status.history


def test_of_several_reports_the_furthest_counts(db: ContractDatabase) -> None:
    """Guard: report_positions, on MySQL stop_partition: first by history, then by sequence."""
    filled(db.connect())
    assert _furthest(db, (50, 9), (70, 2)) == (50, 9)
    assert _furthest(db, (50, 9), (40, 9)) == (50, 9)
    assert _furthest(db, (70, 4), (50, 9)) == (50, 9)
    without(db, SEQUENCE_ALONE)
    assert _furthest(db, (50, 9), (70, 5)) == (70, 5)


def test_a_report_of_a_later_history_stops_too(db: ContractDatabase) -> None:
    """A database from before a reconcile: the reporter knows better."""
    own = db.connect()
    filled(own)
    assert _report(own, 0, 2).stopped
    assert reconcile(own, "once") == 2
    assert not _report(own, 0, 2).stopped
    more(own, events=2, start=11)
    assert [each.sequence for each in log.fetch(own, STREAM, 0, 11)] == [11, 12]


@pytest.mark.parametrize(
    ("sequence", "history", "source"),
    [
        (-1, 1, "x"),
        (None, 1, "x"),
        (1, 0, "x"),
        (1, None, "x"),
        (1, 2**31, "x"),
        (1, 1, ""),
        (1, 1, None),
    ],
)
def test_wrong_reports_are_typed_errors(
    db: ContractDatabase, sequence: int, history: int, source: str
) -> None:
    """Guard: report_position looks at its arguments."""
    own = db.connect()
    filled(own, events=1)
    with pytest.raises(InvalidArgument):
        _report(own, sequence, history, source)


def test_reports_name_a_partition_that_there_is(db: ContractDatabase) -> None:
    """Typed errors, as everywhere."""
    own = db.connect()
    filled(own, events=1)
    for gone in (part(own, name=STREAM) + 1, 9 << 16, 0, 2**62):
        with pytest.raises(TopicNotFound):
            report_position(own, gone, 1, history=1, source="x")


def test_the_commands(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status says no while something lies beyond the log; reconcile wants --yes and a reason."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    own = db.connect()
    filled(own)
    assert main.run(["restore", "status"]) == 0
    _report(own, 12)
    assert main.run(["restore", "status", "--output", "json"]) == exit_codes.EXIT_NO
    assert main.run(["restore", "reconcile", "a test"]) not in {0, exit_codes.EXIT_NO}
    assert main.run(["restore", "reconcile", "a test", "--yes"]) == 0
    assert main.run(["restore", "status"]) == 0
    captured = capsys.readouterr()
    assert '"sequence": 12' in captured.out
    assert "history 2" in captured.out + captured.err


_NO_REASON = ["\t\t", " \n ", "", "x" * 1001, "x" * 100_000]


def test_a_history_has_a_reason_of_some_words(db: ContractDatabase) -> None:
    """Guard: reconcile, before anything is written."""
    own = db.connect()
    for reason in _NO_REASON:
        with pytest.raises(InvalidArgument, match="reason"):
            reconcile(own, reason)
    assert reconcile(own, "x" * 1000) == 2


# Clients.


def _behind(db: ContractDatabase) -> tuple[Any, Any]:
    """A member that has done ten events, of which the log then holds none."""
    own = db.connect()
    filled(own)
    _, lease = member_with_lease(own, "a")
    db.run("DELETE FROM penstock.chunks")
    return own, replace(lease, position=10)


def test_who_joins_with_a_position_beyond_the_log_stops_it(db: ContractDatabase) -> None:
    """Guard: join reports what the client knows, before it is a member."""
    own, lease = _behind(db)
    with pytest.raises(LogBehind, match="a restore lost commits"):
        stream.join(own, SUBSCRIPTION, "b", known=[lease])
    assert {each.source for each in restore_status(own)} >= {'consumer "b"'}
    assert db.run("SELECT id FROM penstock.consumers") == [("a",)]
    reconcile(own, "a test")
    assert stream.join(own, SUBSCRIPTION, "b", known=[lease]).consumer == "b"


def _reconnected(db: ContractDatabase) -> tuple[Any, LeaseKeeper]:
    """The sessions of a keeper are killed, and the server comes back with an earlier state.

    The keeper connects again only when that state is there: no check-in is under way before.
    """
    own = db.connect()
    filled(own)
    short_leases(own, 3)
    opened: list[Any] = []
    waiting: list[str] = []
    restored = threading.Event()
    keeper = LeaseKeeper(db.url, SUBSCRIPTION, consumer="a")
    connect = HeartbeatThreads.open

    def remembered(heartbeat_threads: HeartbeatThreads) -> Any:
        if len(opened) >= 2:  # its heartbeats and its check-ins had a session each
            waiting.append(threading.current_thread().name)
            assert restored.wait(30)
        opened.append(connect(heartbeat_threads))
        return opened[-1]

    with patch.object(HeartbeatThreads, "open", remembered), keeper:
        (lease,) = keeper.leases()
        stream.commit(own, keeper.member, [(lease, 10)])
        keeper.moved(lease, 10)
        wait_until(lambda: len(opened) == 2, "both threads are connected")
        joined = keeper.last_success
        for connection in opened:
            kill(db, connection)
        keeper.check_in_soon()
        wait_until(lambda: "penstock check-ins" in waiting, "its check-ins connect again")
        db.run("DELETE FROM penstock.chunks")
        restored.set()
        wait_until(
            lambda: db.run("SELECT * FROM penstock.stops") or keeper.last_success > joined,
            "the keeper is back",
        )
    return own, keeper


def test_a_consumer_that_reconnects_reports_where_it_was(db: ContractDatabase) -> None:
    """Guard: the keeper compares before it checks in again; it holds nothing meanwhile."""
    own, keeper = _reconnected(db)
    assert 'consumer "a"' in {each.source for each in restore_status(own)}
    assert keeper.leases() == []


def test_without_it_it_goes_on_in_a_log_that_is_behind(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: a new connection is as good as the one before."""
    monkeypatch.setattr(LeaseKeeper, "_require_known", lambda keeper, connection: None)
    own, _ = _reconnected(db)
    assert db.run("SELECT * FROM penstock.stops") == []
    assert {each.source for each in restore_status(own)} == {f'subscription "{SUBSCRIPTION}"'}


def test_many_positions_are_one_call(db: ContractDatabase) -> None:
    """Guard: each place is compared with its own partition; unknown partitions are refused."""
    own = db.connect()
    filled(own, partitions=3)
    first = part(own, name=STREAM)
    seen = {first: Seen(10, 1), first + 1: Seen(11, 1), first + 2: Seen(3, 2)}
    with pytest.raises(LogBehind) as behind:
        require_log(own, seen, "x")
    assert "partition 0 " not in str(behind.value)
    assert [each.partition for each in restore_status(own)] == [1, 2]
    assert reconcile(own, "a test") == 2
    require_log(own, seen, "x")
    require_log(own, {}, "x")
    with pytest.raises(TopicNotFound):
        require_log(own, {first: Seen(1, 1), first + 7: Seen(1, 1)}, "x")


def test_a_reconcile_needs_a_reason(db: ContractDatabase) -> None:
    """Guard: reconcile."""
    for reason in (" ", "", None):
        with pytest.raises(InvalidArgument):
            reconcile(db.connect(), reason)  # type: ignore[arg-type]
