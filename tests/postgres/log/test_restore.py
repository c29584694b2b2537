"""Restores, with real servers: no sequence stands for two events within one history (S21, F7).

Three ways back: a dump into a new cluster, whose transaction numbers begin anew; a point in time on
another timeline of the same cluster; a copy of the whole volume, which nothing inside can tell.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from ops.retention.clean import drop_slices
from penstock import log
from penstock.database.migrate import migrate
from penstock.errors import InvalidArgument, LogBehind, PenstockError, StaleLease
from penstock.log.histories import histories, reconcile, restore_status
from penstock.log.restores import report_position
from penstock.records import Lease
from penstock.subscriptions import stream
from penstock.subscriptions.stream import Membership
from resources.embedded import EmbeddedPostgres
from resources.system_user import give_to_server_user
from tests.guards import without_guard
from tests.kit.log import (
    TOPIC,
    Connection,
    drain,
    open_transaction,
    part,
    put,
    texts,
    topic,
    value,
    wait_until,
)
from tests.kit.proof import proves
from tests.kit.storage import many
from tests.support import FAST_SETTINGS, missing

READER = "reader"

#: What readers got: history and sequence, and the payloads that they saw under the two.
Seen = dict[tuple[int, int], set[bytes]]


def _server(directory: Path, **settings: str) -> EmbeddedPostgres:
    try:
        return EmbeddedPostgres(directory, settings={**FAST_SETTINGS, **settings})
    except PenstockError as error:
        missing("PostgreSQL", error)


def _copy(server: EmbeddedPostgres, directory: Path) -> None:
    """A copy of a stopped server's files, as a volume snapshot is."""
    shutil.copytree(server.directory, directory)
    (directory / "port").unlink(missing_ok=True)
    give_to_server_user(*directory.rglob("*"))


@contextmanager
def _on_another_timeline(directory: Path) -> Iterator[Connection]:
    """A server that recovers to the end of its log, as to a point in time, and is promoted."""
    (directory / "data" / "recovery.signal").touch()
    give_to_server_user(directory / "data" / "recovery.signal")
    with (
        _server(directory, restore_command="false") as server,
        psycopg.connect(server.url(), autocommit=True) as connection,
    ):
        # It can be read before, and written afterwards.
        wait_until(lambda: not value(connection, "SELECT pg_is_in_recovery()"), "the promotion")
        yield connection


def _read_all(connection: Connection, member: Membership, leases: list[Lease], seen: Seen) -> int:
    """Poll and commit until nothing is left.  Returns the last position."""
    (lease,) = leases
    position = lease.position
    while found := stream.poll(connection, member, [_at(lease, position)]):
        for event in found[0][1]:
            seen.setdefault((event.history, event.sequence), set()).add(event.payload)
            position = event.sequence
        stream.commit(connection, member, [(lease, position)])
    return position


def _at(lease: Lease, position: int) -> Lease:
    return Lease(
        lease.topic,
        lease.partition,
        lease.partition_id,
        lease.lease_epoch,
        lease.state,
        position,
        lease.history,
    )


def _two_payloads(seen: Seen) -> dict[tuple[int, int], set[bytes]]:
    return {place: payloads for place, payloads in seen.items() if len(payloads) > 1}


# A dump into a new cluster.


def _burn(connection: Connection, until: int) -> None:
    """Use up transaction numbers."""
    loop = f"WHILE pg_current_xact_id()::text::bigint < {until} LOOP COMMIT; END LOOP;"
    connection.execute(f"DO $$ BEGIN {loop} END $$".encode())


def _dump_and_restore(old: EmbeddedPostgres, new: EmbeddedPostgres, file: Path) -> str:
    """``pg_dump`` from one cluster, ``pg_restore`` into the other."""
    if not (old.bin_dir / "pg_dump").exists():
        missing("pg_dump", "it does not lie beside the server's programs")
    url = new.url("restored")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PG")}
    for program, *arguments in (
        ["pg_dump", "--format=custom", f"--file={file}", old.url()],
        ["pg_restore", "--exit-on-error", f"--dbname={url}", str(file)],
    ):
        subprocess.run(
            [str(old.bin_dir / program), *arguments], check=True, env=environment, timeout=120
        )
    return url


@proves("S21")
def test_a_dump_into_a_new_cluster(tmp_path: Path) -> None:
    """Nothing is lost, doubled or renumbered; numbers that come up again change nothing.

    Guards: open_era, repair_events, straddles; the rows of the dump have a tx above the new ones.
    """
    with _server(tmp_path / "old") as old:
        migrate(old.url())
        with psycopg.connect(old.url(), autocommit=True) as connection:
            topic(connection)
            stream.subscribe(connection, READER, [TOPIC])
            _burn(connection, 3_000)
            with open_transaction(old.url()) as late:
                put(late, "late")
                for number in range(20):
                    put(connection, f"old {number}")
                log.sequence(connection, 7)
                put(connection, "unseen")
                late.commit()
            before = texts(connection)
            newest_tx = value(connection, "SELECT max(tx::text::bigint) FROM penstock.events")
        with _server(tmp_path / "new") as new:
            url = _dump_and_restore(old, new, tmp_path / "dump")
            with psycopg.connect(url, autocommit=True) as connection:
                assert value(connection, "SELECT pg_current_xact_id()::text::bigint") < newest_tx
                assert drop_slices(url) == []
                for number in range(5):
                    put(connection, f"new {number}")
                assert drain(connection, 5) == 22 - len(before) + 5
                while value(connection, "SELECT pg_current_xact_id()::text::bigint") < newest_tx:
                    _burn(connection, newest_tx - 40)
                    put(connection, "again")
                    drain(connection)
                for _ in range(30):
                    put(connection, "again")
                    drain(connection)
                found = texts(connection)
                assert found[: len(before)] == before
                expected = ["late", "unseen", *(f"old {number}" for number in range(20))]
                assert sorted(found[:22]) == sorted(expected)
                assert sorted(found[22:27]) == [f"new {number}" for number in range(5)]
                assert set(found[27:]) == {"again"}
                again = value(connection, "SELECT count(*) FROM penstock.events WHERE tx > '0'")
                assert again == len(found)
                assert [each.history for each in histories(connection)] == [1, 2]
                assert log.gaps(connection, TOPIC) == []


# A point in time, and a copy of the volume.


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[tuple[Path, Membership, Lease, Seen]]:
    """A copy of a server, and a reader who has seen 50 events more than the copy holds."""
    seen: Seen = {}
    server = _server(tmp_path / "first")
    with server:
        migrate(server.url())
        with psycopg.connect(server.url(), autocommit=True) as connection:
            topic(connection)
            stream.subscribe(connection, READER, [TOPIC])
            stream.configure_subscription(
                connection, READER, heartbeat_seconds=20, lease_seconds=600, release_seconds=10
            )
            many(connection, 50)
            drain(connection)
            member = stream.join(connection, READER, "one")
            leases = stream.check_in(connection, member)
            assert _read_all(connection, member, leases, seen) == 50
    _copy(server, tmp_path / "copy")
    with server, psycopg.connect(server.url(), autocommit=True) as connection:
        for number in range(50):
            put(connection, f"lost {number}")
        drain(connection)
        assert _read_all(connection, member, [_at(leases[0], 50)], seen) == 100
    yield tmp_path / "copy", member, _at(leases[0], 100), seen


def _other_events(connection: Connection, count: int) -> None:
    for number in range(count):
        put(connection, f"other {number}")
    drain(connection)


@proves("S21")
@proves("F7")
def test_a_point_in_time_on_another_timeline(
    lost: tuple[Path, Membership, Lease, Seen],
) -> None:
    """Guards: is_other_era sees the timeline; open_era opens a history; its leases are new."""
    directory, member, lease, seen = lost
    with _on_another_timeline(directory) as connection:
        with pytest.raises(LogBehind):
            stream.poll(connection, member, [lease])
        _other_events(connection, 60)
        assert stream.poll(connection, member, [lease]) == []
        with pytest.raises(StaleLease):
            stream.commit(connection, member, [(lease, 101)])
        leases = stream.check_in(connection, member)
        assert [(each.position, each.history) for each in leases] == [(50, 2)]
        assert _read_all(connection, member, leases, seen) == 110
        assert _two_payloads(seen) == {}
        assert len(seen) == 160
        report = report_position(connection, part(connection), 100, history=1, source="sink")
        assert (report.stopped, report.history) == (False, 2)
        assert log.gaps(connection, TOPIC) == []


@proves("S21", guard="histories and stops")
def test_without_a_history_a_sequence_stands_for_two_events(
    lost: tuple[Path, Membership, Lease, Seen],
) -> None:
    """Mutant: an era begins, and no history."""
    directory, member, lease, seen = lost
    with _on_another_timeline(directory) as connection:
        without_guard(connection, "open_era", "PERFORM open_history(", "PERFORM length(")
        _other_events(connection, 60)
        _read_all(connection, member, [_at(lease, 50)], seen)
        assert set(_two_payloads(seen)) == {(1, sequence) for sequence in range(51, 101)}


@proves("S21")
def test_a_copy_of_the_volume_is_seen_from_outside(
    lost: tuple[Path, Membership, Lease, Seen],
) -> None:
    """Guards: report_position stops the partition, require_readable refuses, reconcile opens it."""
    directory, member, lease, seen = lost
    with (
        _server(directory) as server,
        psycopg.connect(server.url(), autocommit=True) as connection,
    ):
        assert (
            report_position(connection, part(connection), 50, history=1, source="archive").stopped
            is False
        )
        assert report_position(connection, part(connection), 100, history=1, source="sink").stopped
        _other_events(connection, 60)
        assert value(connection, "SELECT count(*) FROM penstock.eras") == 1
        with pytest.raises(LogBehind, match="sink has seen sequence 100"):
            log.fetch(connection, TOPIC, 0, 51)
        for position in (50, 100):
            with pytest.raises(LogBehind):
                stream.poll(connection, member, [_at(lease, position)])
        (beyond,) = restore_status(connection)
        assert (beyond.sequence, beyond.history, beyond.source) == (100, 1, "sink")
        assert reconcile(connection, "the volume of this morning") == 2
        assert restore_status(connection) == []
        leases = stream.check_in(connection, member)
        assert _read_all(connection, member, leases, seen) == 110
        assert _two_payloads(seen) == {}
        assert histories(connection)[-1].reason == "the volume of this morning"


@proves("S21", guard="histories and stops")
def test_without_the_stop_a_sequence_stands_for_two_events(
    lost: tuple[Path, Membership, Lease, Seen],
) -> None:
    """Mutant: a stopped partition is read."""
    directory, member, lease, seen = lost
    with (
        _server(directory) as server,
        psycopg.connect(server.url(), autocommit=True) as connection,
    ):
        without_guard(connection, "require_readable", "IF found_row.seen IS NOT NULL", "IF false")
        report_position(connection, part(connection), 100, history=1, source="sink")
        _other_events(connection, 60)
        _read_all(connection, member, [_at(lease, 50)], seen)
        assert set(_two_payloads(seen)) == {(1, sequence) for sequence in range(51, 101)}


# Small rules.


def _beyond(connection: Connection) -> list[int]:
    """A position in the ledger beyond the log, and where it stands after a reconcile."""
    topic(connection)
    stream.subscribe(connection, READER, [TOPIC])
    many(connection, 5)
    drain(connection)
    connection.execute(
        "INSERT INTO penstock.positions"
        " (subscription_id, partition_id, position, lease_epoch, reason)"
        " SELECT subscription_id, partition_id, 9, 1, 'commit' FROM penstock.leases"
    )
    assert [each.source for each in restore_status(connection)] == [f'subscription "{READER}"']
    reconcile(connection, "a test")
    return list(stream.position(connection, READER, TOPIC).values())


def test_positions_beyond_the_log_are_brought_back(connection: Connection) -> None:
    """Guard: open_history, recorded in the ledger with the reason."""
    assert _beyond(connection) == [5]
    assert value(connection, "SELECT reason FROM penstock.positions ORDER BY id DESC") == "history"
    assert restore_status(connection) == []


def test_without_it_they_stay_beyond(connection: Connection) -> None:
    """Mutant: positions are left where they are."""
    without_guard(
        connection,
        "open_history",
        "GREATEST(o.position, o.reached) > w.watermark;",
        "GREATEST(o.position, o.reached) > w.watermark AND false;",
    )
    assert _beyond(connection) == [9]


def test_a_report_of_a_later_history_stops_too(connection: Connection) -> None:
    """A database from before a reconcile: the reporter knows better."""
    topic(connection)
    assert report_position(connection, part(connection), 0, history=2, source="client").stopped
    assert reconcile(connection, "once") == 2
    assert not report_position(connection, part(connection), 0, history=2, source="client").stopped


@pytest.mark.parametrize(
    ("sequence", "history", "source"),
    [(-1, 1, "x"), (None, 1, "x"), (1, 0, "x"), (1, None, "x"), (1, 1, ""), (1, 1, None)],
)
def test_wrong_reports_are_typed_errors(
    log_of_one: Connection, sequence: int, history: int, source: str
) -> None:
    """Guard: report_position looks at its arguments."""
    with pytest.raises(InvalidArgument):
        report_position(log_of_one, part(log_of_one), sequence, history=history, source=source)


def test_a_reconcile_needs_a_reason(log_of_one: Connection) -> None:
    """Guard: reconcile."""
    with pytest.raises(InvalidArgument):
        reconcile(log_of_one, " ")
