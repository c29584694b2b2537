"""What the log may lack: a sequencer, storage, its schema."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest
from psycopg import sql

import penstock
from penstock.database import migrate
from penstock.doctor import Limits, Severity, doctor
from penstock.log.restores import report_position
from resources.embedded import EmbeddedPostgres
from tests.doctor.kit import ROOT, TOPIC, Connection, Run, begin, only
from tests.kit.log import backend_pid, part, wait_until_blocked

pytestmark = pytest.mark.timeout(240)


def publish(connection: Connection, events: int = 1) -> None:
    """Events that wait for an hour already, as no pass was made for an hour."""
    for _ in range(events):
        penstock.publish(connection, TOPIC, b"{}")
    connection.execute("UPDATE penstock.events SET created_at = created_at - interval '1 hour'")
    connection.execute("UPDATE penstock.ticks SET passed_at = passed_at - interval '1 hour'")


def test_nobody_sequences(url: str, admin: Connection, run: Run) -> None:
    publish(admin)
    assert doctor(url, Limits(waiting_seconds=3_700)) == []
    found = only(doctor(url))
    assert (found.check, found.severity) == ("sequencer", Severity.ERROR)
    assert "1 events wait for their sequence, the oldest for 60 minutes" in found.what
    assert found.what.endswith("and nobody sequences")
    run(found.command, url)


def test_a_sequencer_that_is_stuck_is_named(url: str, admin: Connection, run: Run) -> None:
    with ExitStack() as stack:
        stuck = begin(
            stack, url, "SELECT FROM penstock.sequencer FOR UPDATE", application_name="daemon 7"
        )
        publish(admin)
        assert penstock.sequence(admin).busy
        found = only(doctor(url, Limits(waiting_seconds=0)))
        assert found.check == "sequencer"
        assert f"session {stuck.info.backend_pid} of postgres" in found.what
        assert "(application 'daemon 7') holds the sequencer" in found.what
        run(found.command, url)
        assert penstock.sequence(admin).sequenced == 1


def test_a_sequencer_that_is_behind(url: str, admin: Connection, run: Run) -> None:
    """Passes are made all the time, and the oldest event waits nevertheless."""
    publish(admin, 3)
    penstock.sequence(admin, max_events=1)
    found = only(doctor(url))
    assert (found.check, found.severity) == ("unsequenced", Severity.WARNING)
    assert "the oldest for 60 minutes" in found.what
    run(found.command, url)


def test_an_event_that_has_just_appeared_is_no_finding(url: str, admin: Connection) -> None:
    """Its transaction was open for long, so it is old: the doctor looks a second time."""
    with ExitStack() as stack:
        held = begin(stack, url)
        publish(held)
        sequencer = subprocess.Popen([sys.executable, "-c", _SEQUENCER, url], cwd=ROOT)
        stack.callback(sequencer.wait)
        stack.callback(sequencer.kill)  # it leaves nothing, and a signal may be blocked
        until_it_runs(admin)
        held.commit()
        assert doctor(url) == []


def until_it_runs(admin: Connection) -> None:
    """The test's sequencer has made its first pass."""
    asked = "SELECT FROM pg_stat_activity WHERE application_name = 'test sequencer' AND query <> ''"
    deadline = time.monotonic() + 30
    while not admin.execute(asked).fetchall():
        assert time.monotonic() < deadline
        time.sleep(0.02)


_SEQUENCER = """
import sys, time, penstock
with penstock.connect(sys.argv[1], application_name="test sequencer") as connection:
    while True:
        penstock.sequence(connection)
        time.sleep(0.5)
"""


def newest_slice(admin: Connection, parent: str) -> tuple[str, int]:
    row = admin.execute(
        "SELECT slice, first_id FROM penstock.slices WHERE parent = %s ORDER BY first_id DESC",
        (parent,),
    ).fetchone()
    assert row is not None
    return row


@pytest.mark.parametrize("parent", ["events", "positions", "ticks", "chunks", "delayed"])
def test_too_little_storage(url: str, admin: Connection, run: Run, parent: str) -> None:
    while True:
        name, _ = newest_slice(admin, parent)
        admin.execute(sql.SQL("DROP TABLE penstock.{}").format(sql.Identifier(name)))
        admin.execute("SELECT penstock.slice_dropped(%s)", (name,))
        if found := doctor(url):
            break
    assert (only(found).check, parent in found[0].what or parent == "delayed") == ("storage", True)
    run(found[0].command, url)


def test_storage_for_less_than_two_days(url: str, admin: Connection, run: Run) -> None:
    admin.execute("SELECT penstock.measure_slices()")
    ready = admin.execute(
        "SELECT ready FROM penstock.slices_ready() WHERE parent = 'events'"
    ).fetchone()
    assert ready is not None
    admin.execute(
        "UPDATE penstock.slice_rates SET peak_per_second = %s / 86400.0 WHERE parent = 'events'",
        ready,
    )
    found = only(doctor(url))
    assert "1.0 days at the highest rate seen" in found.what
    run(found.command, url)
    assert doctor(url) == []
    admin.execute("UPDATE penstock.slice_rates SET peak_per_second = 0")


@pytest.mark.parametrize("condemned", [True, False])
@pytest.mark.parametrize("parent", ["events", "ticks"])
def test_a_slice_that_is_half_detached(
    url: str, admin: Connection, run: Run, parent: str, condemned: bool
) -> None:
    """As a clean leaves it that is killed while it waits for a reader."""
    name, _ = newest_slice(admin, parent)
    if condemned:
        admin.execute(
            "UPDATE penstock.slices SET condemned_tx = pg_current_xact_id() WHERE slice = %s",
            (name,),
        )
    with ExitStack() as stack:
        begin(stack, url, f"SELECT FROM penstock.{parent} LIMIT 1")
        admin.execute("SET statement_timeout = '500ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            admin.execute(
                sql.SQL("ALTER TABLE penstock.{} DETACH PARTITION penstock.{} CONCURRENTLY").format(
                    sql.Identifier(parent), sql.Identifier(name)
                )
            )
    found = only(doctor(url))
    assert (found.check, f"{name} is half detached" in found.what) == ("slice", True)
    assert found.severity is (Severity.WARNING if condemned else Severity.ERROR)
    if condemned:
        # Clean notes when it begins: for ten minutes the next run is waited for.
        admin.execute("SELECT penstock.slice_detaching(%s)", (name,))
        assert doctor(url) == []
        admin.execute(
            "UPDATE penstock.slices SET detaching_since = detaching_since - interval '11 minutes'"
            " WHERE slice = %s",
            (name,),
        )
        found = only(doctor(url))
        assert "half detached for 11 minutes" in found.what
        assert f"No other slice of {parent} can go before it" in found.what
    run(found.command, url)
    assert (newest_slice(admin, parent)[0] == name) is not condemned
    admin.execute("SELECT penstock.ensure_slices()")


def test_a_slice_that_somebody_is_at_for_long_is_named(
    url: str, admin: Connection, run: Run
) -> None:
    """Guard: a session that works on it for so long waits for ever; a young one is left out."""
    name, _ = newest_slice(admin, "ticks")
    admin.execute(
        "UPDATE penstock.slices SET condemned_tx = pg_current_xact_id() WHERE slice = %s", (name,)
    )
    admin.execute("SELECT penstock.slice_detaching(%s)", (name,))
    detach = f"ALTER TABLE penstock.ticks DETACH PARTITION penstock.{name} CONCURRENTLY"
    with ExitStack() as stack:
        reader = begin(stack, url, "SELECT FROM penstock.ticks LIMIT 1")
        pool = stack.enter_context(ThreadPoolExecutor(1))
        other = stack.enter_context(psycopg.connect(url, autocommit=True))
        waiting = pool.submit(other.execute, detach.encode())
        wait_until_blocked(admin, backend_pid(other))
        assert doctor(url) == []
        admin.execute(
            "UPDATE penstock.slices SET detaching_since = detaching_since - interval '1 hour'"
            " WHERE slice = %s",
            (name,),
        )
        assert "half detached for 60 minutes" in only(doctor(url)).what
        reader.rollback()
        waiting.result()
    run(only(doctor(url)).command, url)
    admin.execute("SELECT penstock.ensure_slices()")


@pytest.mark.parametrize("parent", ["events", "chunks"])
@pytest.mark.parametrize("gone", [True, False])
def test_a_slice_that_is_not_there(
    url: str, admin: Connection, run: Run, parent: str, gone: bool
) -> None:
    name, _ = newest_slice(admin, parent)
    admin.execute(
        sql.SQL("ALTER TABLE penstock.{} DETACH PARTITION penstock.{}").format(
            sql.Identifier(parent), sql.Identifier(name)
        )
    )
    if gone:
        admin.execute(sql.SQL("DROP TABLE penstock.{}").format(sql.Identifier(name)))
    found = only(doctor(url))
    assert (found.check, found.severity) == ("slice", Severity.ERROR)
    assert f"{name} is {'missing' if gone else 'detached'}" in found.what
    run(found.command, url)
    indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = %s"
    first = f"{parent}_1"
    assert admin.execute(indexes, (name,)).fetchone() == admin.execute(indexes, (first,)).fetchone()


def test_a_slice_that_took_rows_with_it(server: EmbeddedPostgres) -> None:
    url = server.url("lost")
    migrate.migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE penstock.ticks_1")
        found = only(doctor(url))
        assert (found.check, found.command.split()[0]) == ("slice", "pg_restore")


def test_a_partition_that_is_stopped_after_a_restore(url: str, admin: Connection, run: Run) -> None:
    report_position(admin, part(admin, name=TOPIC), 1_000, history=1, source="the archive")
    found = only(doctor(url))
    assert (found.check, found.severity) == ("restore", Severity.ERROR)
    assert f"the archive has seen sequence 1000 of {TOPIC} partition 0" in found.what
    run(found.command, url)


def test_a_schema_that_does_not_fit(server: EmbeddedPostgres, run: Run) -> None:
    url = server.url("fresh")
    found = only(doctor(url))
    assert (found.check, found.severity, found.command) == (
        "schema", Severity.ERROR, "penstock migrate",
    )  # fmt: skip
    run(found.command, url)
    assert doctor(url) == []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "UPDATE penstock.schema_migrations SET checksum = 'older' WHERE version = 0"
        )
    found = only(doctor(url))
    assert (found.severity, found.what) == (Severity.WARNING, "not applied yet: functions")
    run(found.command, url)
    assert doctor(url) == []
