"""Ways in which PostgreSQL itself can go back in time, with real servers (F7).

A point in time: a base backup that is made under load, and the WAL that was archived since.  A
failover by logical replication: rows, without counters and without tables of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ops.retention.clean import drop_slices
from penstock import log
from penstock.database.migrate import migrate
from penstock.errors import LogBehind, PenstockError
from penstock.log.histories import histories
from penstock.subscriptions import stream
from resources.embedded import EmbeddedPostgres
from resources.system_user import give_to_server_user
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, put, texts, topic, value, wait_until
from tests.kit.proof import proves
from tests.kit.storage import move_low, next_slice
from tests.support import FAST_SETTINGS, missing

READER = "reader"


@contextmanager
def _server(directory: Path, **settings: str) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(directory, settings={**FAST_SETTINGS, **settings})
    try:
        server.start()
    except PenstockError as error:
        missing("PostgreSQL", error)
    try:
        yield server
    finally:
        server.stop()


def _publish_until(url: str, stop: threading.Event) -> None:
    with psycopg.connect(url, autocommit=True) as own:
        number = 0
        while not stop.is_set():
            number += 1
            put(own, f"load {number}")


def _sequence_until(url: str, stop: threading.Event) -> None:
    with psycopg.connect(url, autocommit=True) as own:
        while not stop.is_set():
            log.sequence(own)


@contextmanager
def _load(url: str) -> Iterator[None]:
    stop = threading.Event()
    workers = [
        threading.Thread(target=each, args=(url, stop))
        for each in (_publish_until, _sequence_until)
    ]
    for each in workers:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in workers:
            each.join()


def _ignored(folder: str, names: list[str]) -> list[str]:
    """What a base backup leaves out; files that go away meanwhile are the server's own."""
    return [name for name in names if name in {"postmaster.pid", "port", "pg_wal", "log"}]


def _base_backup(server: EmbeddedPostgres, url: str, directory: Path) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as own:
        major = own.info.server_version // 10_000
        begin, end = (
            ("pg_backup_start", "pg_backup_stop") if major >= 15
            else ("pg_start_backup", "pg_stop_backup")
        )  # fmt: skip
        more = "" if major >= 15 else ", false"
        own.execute(f"SELECT {begin}('test', true{more})".encode())
        shutil.copytree(
            server.directory, directory, ignore=_ignored, copy_function=_copied_if_there
        )
        given = "true" if major >= 15 else "false, true"
        label = value(own, f"SELECT labelfile FROM {end}({given})")
    data = directory / "data"
    (data / "pg_wal").mkdir(mode=0o700)
    (data / "backup_label").write_text(label)
    (data / "recovery.signal").touch()
    (directory / "log").mkdir(exist_ok=True)
    give_to_server_user(directory, *directory.rglob("*"))


def _copied_if_there(source: str, target: str) -> str:
    try:
        return str(shutil.copy2(source, target))
    except FileNotFoundError:
        return target


@proves("F7")
def test_a_point_in_time_from_archived_wal(tmp_path: Path) -> None:
    """Guards: is_other_era, open_history; the load goes on while backup and point are made."""
    archive = tmp_path / "archive"
    archive.mkdir(mode=0o777)
    give_to_server_user(archive)
    archiving = {
        "wal_level": "replica",
        "archive_mode": "on",
        "archive_command": f"cp %p {archive}/%f",
    }
    with _server(tmp_path / "first", **archiving) as server:
        url = server.url("app")
        migrate(url)
        with psycopg.connect(url, autocommit=True) as own:
            topic(own)
            stream.subscribe(own, READER, [TOPIC])
            with _load(url):
                wait_until(lambda: log.fetch(own, TOPIC, 0, 20), "the load is at work")
                _base_backup(server, url, tmp_path / "copy")
                put(own, "before the point")
                own.execute("SELECT pg_create_restore_point('here')")
                before = value(own, "SELECT max(id) FROM penstock.events")
                wait_until(
                    lambda: value(own, "SELECT max(id) FROM penstock.events") > before + 20,
                    "events come that the point does not have",
                )
            drain(own)
            member = stream.join(own, READER, "one")
            (lease,) = stream.check_in(own, member)
            last = log.fetch(own, TOPIC, 0, 1, 100_000)[-1].sequence
            stream.commit(own, member, [(lease, last)])
            own.execute("SELECT pg_switch_wal()")
            wait_until(
                lambda: (
                    value(own, "SELECT archived_count > 0 FROM pg_stat_archiver")
                    and not list((server.data_directory / "pg_wal/archive_status").glob("*.ready"))
                ),
                "the WAL is archived",
            )
            lost = texts(own)
    recovery = {
        "restore_command": f"cp {archive}/%f %p",
        "recovery_target_name": "here",
        "recovery_target_action": "promote",
    }
    with (
        _server(tmp_path / "copy", **recovery) as server,
        psycopg.connect(server.url("app"), autocommit=True) as own,
    ):
        wait_until(lambda: not value(own, "SELECT pg_is_in_recovery()"), "it is promoted")
        put(own, "published at once")
        with pytest.raises(LogBehind):
            stream.join(own, READER, "one", known=[_at(lease, last)])
        drain(own)
        found = texts(own)
        events = value(own, "SELECT count(*) FROM penstock.events")
        assert len(found) == len(set(found)) == events
        assert {"before the point", "published at once"} <= set(found)
        assert len(lost) > len(found)
        assert log.gaps(own, TOPIC) == []
        assert [each.history for each in histories(own)] == [1, 2]


def _at(lease: Any, position: int) -> Any:
    return type(lease)(
        lease.topic,
        lease.partition,
        lease.partition_id,
        lease.lease_epoch,
        lease.state,
        position,
        lease.history,
    )


# Logical replication.


def _tables(connection: Connection) -> list[str]:
    rows = connection.execute(
        "SELECT c.oid::regclass::text FROM pg_class AS c"
        " WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind IN ('r', 'p')"
        " AND NOT c.relispartition"
    ).fetchall()
    return [name for (name,) in rows]


def _published(url: str) -> None:
    """What somebody sets up who replicates the whole schema."""
    with psycopg.connect(url, autocommit=True) as own:
        for name in _tables(own):
            if not value(
                own,
                "SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass AND indisprimary",
                name,
            ):
                own.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL".encode())
        own.execute(
            b"CREATE PUBLICATION all_of_it FOR ALL TABLES WITH (publish_via_partition_root = true)"
        )


def _rows_of(url: str) -> list[Any]:
    """How many rows each table has."""
    with psycopg.connect(url, autocommit=True) as own:
        return [(name, value(own, f"SELECT count(*) FROM {name}")) for name in sorted(_tables(own))]


def _subscribed(old: str, url: str) -> None:
    """A subscriber that was installed, and then got every row."""
    with psycopg.connect(url, autocommit=True) as own:
        own.execute(f"TRUNCATE {', '.join(_tables(own))}".encode())
        own.execute(f"CREATE SUBSCRIPTION it CONNECTION '{old}' PUBLICATION all_of_it".encode())
        wait_until(lambda: _rows_of(url) == _rows_of(old), "all rows are there", 60)
        own.execute("ALTER SUBSCRIPTION it DISABLE")
        own.execute("ALTER SUBSCRIPTION it SET (slot_name = NONE)")
        own.execute("DROP SUBSCRIPTION it")


def _failed_over(folder: Path, *, guarded: bool) -> tuple[list[str], dict[int, int]]:
    """What the log of the subscriber holds, and where its reader stands."""
    with (
        _server(folder / "old", wal_level="logical") as first,
        _server(folder / "new", wal_level="logical") as second,
    ):
        old, new = first.url("app"), second.url("app")
        migrate(old)
        migrate(new)
        with psycopg.connect(old, autocommit=True) as own:
            # Its transaction numbers are far above those of the other one.
            own.execute(
                "DO $$ BEGIN WHILE pg_current_xact_id()::text::bigint < 3000"
                " LOOP COMMIT; END LOOP; END $$"
            )
            topic(own)
            stream.subscribe(own, READER, [TOPIC])
            for number in range(10):
                put(own, f"old {number}")
                drain(own)
            member = stream.join(own, READER, "one")
            (lease,) = stream.check_in(own, member)
            stream.commit(own, member, [(lease, 4)])
            put(own, "waiting")
        _published(old)
        _subscribed(old, new)
        with psycopg.connect(new, autocommit=True) as own:
            if not guarded:
                without_guard(own, "open_history", "PERFORM raise_counters(true);", "")
            drain(own)
            for number in range(5):
                put(own, f"new {number}")
                drain(own)
            member = stream.join(own, READER, "two")
            own.execute("UPDATE penstock.consumers SET deadline = '-infinity' WHERE id = 'one'")
            (lease,) = stream.check_in(own, member)
            stream.commit(own, member, [(lease, lease.position + 3)])
            log.ensure_slices(own)
            assert [each.history for each in histories(own)] == [1, 2]
            return texts(own), stream.position(own, READER, TOPIC)


@proves("F7")
def test_a_failover_by_logical_replication(tmp_path: Path) -> None:
    """Guard: raise_counters: the subscriber's sequences were never used."""
    found, position = _failed_over(tmp_path, guarded=True)
    old, new = ([f"{name} {number}" for number in range(10)] for name in ("old", "new"))
    assert found == [*old, "waiting", *new[:5]]
    assert position == {0: 7}


@proves("F7", guard="the counters")
@pytest.mark.long
def test_without_the_counters_it_cannot_go_on(tmp_path: Path) -> None:
    """Mutant: they stay where the subscriber's installation left them."""
    with pytest.raises((psycopg.Error, PenstockError)):
        _failed_over(tmp_path, guarded=False)


def test_a_subscriber_is_set_up_again_after_a_clean(tmp_path: Path) -> None:
    """Its tables come from the publisher: clean has made some that migrate does not make."""
    with (
        _server(tmp_path / "old", wal_level="logical") as first,
        _server(tmp_path / "new", wal_level="logical") as second,
    ):
        if not (first.bin_dir / "pg_dump").exists():
            missing("pg_dump", "it does not lie beside the server's programs")
        old, new = first.url("app"), second.url("app")
        migrate(old)
        with psycopg.connect(old, autocommit=True) as own:
            topic(own)
            for number in range(10):
                put(own, f"old {number}")
                drain(own)
            next_slice(own, "events")
            put(own, "next")
            drain(own)
            move_low(own, 9)
            drop_slices(old)
            assert value(own, "SELECT count(*) FROM penstock.events_kept") == 1
        file = tmp_path / "tables"
        for program, *arguments in (
            ["pg_dump", "--format=custom", "--schema-only", f"--file={file}", old],
            ["pg_restore", "--exit-on-error", f"--dbname={new}", str(file)],
        ):
            subprocess.run([str(first.bin_dir / program), *arguments], check=True, timeout=120)
        _published(old)
        _subscribed(old, new)
        with psycopg.connect(new, autocommit=True) as own:
            drain(own)
            put(own, "new")
            drain(own)
            events = log.fetch(own, TOPIC, 0, 10)
            assert [event.payload for event in events] == [b"old 9", b"next", b"new"]
