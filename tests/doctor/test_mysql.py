"""The doctor on real servers of MySQL and MariaDB."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

import penstock
from penstock.database import migrate
from penstock.doctor import Finding, Limits, Severity, doctor
from penstock.errors import PenstockError
from penstock.log.restores import report_position
from tests import servers
from tests.doctor.kit import ROOT, TOPIC, only
from tests.doctor.mysql_client import on_the_path
from tests.kit.log import part
from tests.kit.proof import proves
from tests.support import missing
from tools.servers import DURABLE, MARIADB, MYSQL, MySQLServer

#: Ages are whole seconds there.
ANY = Limits(snapshot_seconds=-1)

DISTRIBUTIONS = {"mysql": MYSQL, "mariadb": MARIADB}

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Shop:
    """A migrated database on a server as it should be, and the client of that server."""

    engine: str
    server: MySQLServer
    url: str
    programs: Path

    def connect(self, **options: Any) -> pymysql.Connection:
        return pymysql.connect(
            host="127.0.0.1", port=self.server.port or 0, user="root", database="penstock",
            **options,
        )  # fmt: skip

    def run(self, statement: str) -> None:
        with closing(self.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def mend(self, finding: Finding) -> None:
        """Run the command, as the person at the terminal does."""
        path = f"{self.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-ec", finding.command], capture_output=True, text=True, timeout=60,
            check=False,
            env={
                **os.environ, "PATH": path, "PYTHONPATH": str(ROOT),
                "PENSTOCK_DATABASE_URL": self.url,
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    engine: str = request.param
    if engine not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    folder = tmp_path_factory.mktemp("doctor")
    server = MySQLServer(folder / engine, DISTRIBUTIONS[engine], settings=DURABLE)
    try:
        server.start()
    except PenstockError as error:
        missing(DISTRIBUTIONS[engine].title, error)
    try:
        url = server.url("penstock")
        migrate.migrate(url)
        with penstock.connect(url) as connection:
            penstock.create_topic(connection, TOPIC, create_namespaces=True)
        yield Shop(engine, server, url, on_the_path(engine, folder / "bin"))
    finally:
        server.stop()


@pytest.fixture
def shop(running: Shop) -> Iterator[Shop]:
    """Nothing is wrong before a test, and nothing after it."""
    assert doctor(running.url) == []
    yield running
    assert doctor(running.url) == []


SETTINGS = {
    "flush_log": ("innodb_flush_log_at_trx_commit = 2", Severity.ERROR),
    "auto_increment": ("auto_increment_increment = 2", Severity.ERROR),
    "sql_mode": ("sql_mode = ''", Severity.WARNING),
    "isolation": ("{isolation} = 'SERIALIZABLE'", Severity.WARNING),
    "packet": ("max_allowed_packet = 1048576", Severity.WARNING),
    "read_only": ("read_only = ON", Severity.ERROR),
    "sync_binlog": ("sync_binlog = 0", Severity.ERROR),
}


@proves("F32")
@pytest.mark.parametrize("check", SETTINGS)
def test_a_wrong_setting(shop: Shop, check: str) -> None:
    spoil, severity = SETTINGS[check]
    shop.run(f"SET GLOBAL {spoil.format(isolation='transaction_isolation')}")
    if (check, shop.engine) == ("sync_binlog", "mariadb"):
        assert doctor(shop.url) == []  # without a binary log it says nothing
        return
    found = only(doctor(shop.url))
    assert (found.check, found.severity) == (check, severity)
    shop.mend(found)


def transactions(shop: Shop) -> list[Finding]:
    """Any age; InnoDB reads INNODB_TRX from a copy until nobody has asked for 0.1 seconds."""
    time.sleep(0.15)
    return doctor(shop.url, ANY)


def test_the_oldest_open_transaction(shop: Shop) -> None:
    with closing(shop.connect()) as oldest, closing(shop.connect()) as other:
        for each in (oldest, other):
            with each.cursor() as cursor:
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        assert doctor(shop.url) == []
        found = only(transactions(shop))
        assert found.check == "snapshot"
        assert f"session {oldest.thread_id()} of root in penstock (from " in found.what
        assert "(1 more like it)" in found.what
        shop.mend(found)
        with pytest.raises(pymysql.OperationalError), oldest.cursor() as cursor:
            cursor.execute("SELECT 1")


@proves("F11", how="the doctor names it")
def test_a_prepared_transaction(shop: Shop) -> None:
    shop.run("CREATE TABLE IF NOT EXISTS other (id INT PRIMARY KEY)")
    with closing(shop.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("XA START 'it''s', 'b', 7")
        cursor.execute("INSERT INTO other VALUES (1)")
        cursor.execute("XA END 'it''s', 'b', 7")
        cursor.execute("XA PREPARE 'it''s', 'b', 7")
    found = only(transactions(shop))
    assert found.check == "prepared_transaction"
    shop.mend(found)


def test_a_login_that_may_not_look(shop: Shop) -> None:
    shop.run("CREATE USER watcher@localhost IDENTIFIED BY 'pw'")
    shop.run("GRANT EXECUTE, SELECT ON penstock.* TO watcher@localhost")
    own = shop.url.replace("root@", "watcher:pw@")
    found = only(doctor(own))
    assert found.check == "hidden_sessions"
    assert "GRANT PROCESS ON *.* TO" in found.command
    with_root = found.command.replace("-u watcher", "-u root")
    shop.mend(Finding(found.check, found.severity, found.what, with_root))
    assert doctor(own) == []
    shop.run("DROP USER watcher@localhost")


def publish(shop: Shop, events: int = 1) -> None:
    """Events that wait for an hour already, as no pass was made for an hour."""
    with penstock.connect(shop.url) as connection:
        for _ in range(events):
            penstock.publish(connection, TOPIC, b"{}")
    shop.run("UPDATE events SET created_at = created_at - INTERVAL 1 HOUR")
    shop.run("UPDATE sequencer SET passed_at = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR")


def test_nobody_sequences(shop: Shop) -> None:
    publish(shop)
    assert doctor(shop.url, Limits(waiting_seconds=3_700)) == []
    found = only(doctor(shop.url))
    assert (found.check, found.severity) == ("sequencer", Severity.ERROR)
    assert found.what.endswith("and nobody sequences")
    shop.mend(found)


def test_a_sequencer_that_is_behind(shop: Shop) -> None:
    publish(shop, 3)
    with penstock.connect(shop.url) as connection:
        penstock.sequence(connection, max_events=1)
    found = only(doctor(shop.url))
    assert (found.check, found.severity) == ("unsequenced", Severity.WARNING)
    shop.mend(found)


def test_too_little_storage(shop: Shop) -> None:
    """As many partitions as are left when nobody has made any for long."""
    with closing(shop.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT PARTITION_NAME FROM information_schema.PARTITIONS WHERE TABLE_NAME = 'events'"
            " AND TABLE_SCHEMA = 'penstock' AND CAST(PARTITION_DESCRIPTION AS SIGNED) > 256000000"
        )
        names = ", ".join(name for (name,) in cursor.fetchall())
    shop.run(f"ALTER TABLE events DROP PARTITION {names}")
    found = only(doctor(shop.url))
    assert (found.check, found.severity) == ("storage", Severity.ERROR)
    shop.mend(found)


def test_a_partition_that_is_stopped_after_a_restore(shop: Shop) -> None:
    with penstock.connect(shop.url) as connection:
        report_position(
            connection, part(connection, name=TOPIC), 1_000, history=1, source="the archive"
        )
    found = only(doctor(shop.url))
    assert (found.check, found.severity) == ("restore", Severity.ERROR)
    assert f"the archive has seen sequence 1000 of {TOPIC} partition 0" in found.what
    shop.mend(found)


def test_a_schema_that_is_not_there(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SCHEMA", "fresh")
    found = only(doctor(shop.url))
    assert (found.check, found.severity, found.command) == (
        "schema", Severity.ERROR, "penstock migrate",
    )  # fmt: skip
