"""Wrong settings, wrong places, wrong servers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from penstock.database import migrate
from penstock.doctor import Severity, doctor
from resources.embedded import EmbeddedPostgres
from resources.system_user import give_to_server_user
from tests.doctor.kit import Run, only, settled
from tests.doctor.pooler import Pooler
from tests.kit.proof import proves
from tests.support import missing
from tools.servers import ServerUnavailable, postgres_matrix

pytestmark = pytest.mark.timeout(240)


SETTINGS = {
    "fsync": ("ALTER SYSTEM SET fsync = off", Severity.ERROR),
    "full_page_writes": ("ALTER SYSTEM SET full_page_writes = off", Severity.ERROR),
    "autovacuum": ("ALTER SYSTEM SET autovacuum = off", Severity.WARNING),
    "autovacuum ": ("ALTER SYSTEM SET track_counts = off", Severity.WARNING),
    "synchronous_commit": ("ALTER SYSTEM SET synchronous_commit = off", Severity.ERROR),
    "synchronous_commit ": ("ALTER DATABASE shop SET synchronous_commit = off", Severity.ERROR),
    "synchronous_commit  ": ("ALTER ROLE postgres SET synchronous_commit = off", Severity.ERROR),
    "isolation": (
        "ALTER ROLE postgres IN DATABASE shop SET default_transaction_isolation = 'serializable'",
        Severity.WARNING,
    ),
    "read_only": (
        "ALTER DATABASE shop SET default_transaction_read_only = on",
        Severity.ERROR,
    ),
    "timeout": ("ALTER ROLE ALL SET statement_timeout = '1s'", Severity.WARNING),
}

RESET = [
    "ALTER SYSTEM RESET ALL",
    "ALTER DATABASE shop RESET ALL",
    "ALTER ROLE ALL RESET ALL",
    "ALTER ROLE postgres RESET ALL",
    "ALTER ROLE postgres IN DATABASE shop RESET ALL",
]


@proves("F32")
@pytest.mark.parametrize("check", SETTINGS)
def test_a_wrong_setting_wherever_it_stands(
    server: EmbeddedPostgres, url: str, run: Run, check: str
) -> None:
    spoil, severity = SETTINGS[check]
    with psycopg.connect(server.url("postgres"), autocommit=True) as elsewhere:
        elsewhere.execute(spoil.encode())
        elsewhere.execute("SELECT pg_reload_conf()")
    found = only(settled(url, lambda findings: findings != []))
    assert (found.check, found.severity) == (check.strip(), severity)
    run(found.command, url)
    assert settled(url, lambda findings: findings == []) == []
    with psycopg.connect(server.url("postgres"), autocommit=True) as elsewhere:
        for each in RESET:
            elsewhere.execute(each.encode())


def test_a_setting_of_the_client(url: str) -> None:
    mine = f"{url}?options=-c%20synchronous_commit%3Doff"
    found = only(doctor(mine))
    assert (found.check, found.command.split("#")[0].strip()) == (
        "synchronous_commit",
        "unset PGOPTIONS",
    )


def test_settings_on_the_command_line_of_the_server(tmp_path: Path, run: Run) -> None:
    given = {"fsync": "off", "synchronous_commit": "off", "transaction_timeout": "2s"}
    with EmbeddedPostgres(tmp_path / "pg", settings=given) as spoiled:
        url = spoiled.url("shop")
        migrate.migrate(url)
        found = {each.check: each for each in doctor(url)}
        assert set(found) == {"fsync", "synchronous_commit", "timeout"}
        for check in ("synchronous_commit", "timeout"):
            run(found[check].command, url)
        left = only(doctor(url))
        assert (left.check, left.command.split()[:2]) == ("fsync", ["pg_ctl", "restart"])


@pytest.fixture
def replica(server: EmbeddedPostgres, url: str, tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A standby that follows the server."""
    standby = EmbeddedPostgres(tmp_path / "standby", settings=server.settings)
    standby.data_directory.mkdir(parents=True, mode=0o700)
    standby.log_file.parent.mkdir()
    give_to_server_user(standby.data_directory, standby.log_file.parent)
    shutil.copy(server.directory / "password", standby.directory / "password")
    copied = standby._run(
        "pg_basebackup", "--checkpoint=fast", "-D", standby.data_directory, "-R", "-d",
        server.url("postgres"),
    )  # fmt: skip
    assert copied.returncode == 0, copied.stderr
    with standby:
        yield standby


def test_a_replica_says_where_its_primary_is(
    replica: EmbeddedPostgres, server: EmbeddedPostgres, url: str, run: Run
) -> None:
    address = urlunsplit(urlsplit(replica.url("postgres"))._replace(path="/shop"))
    found = only(settled(address, lambda found: "@127.0.0.1" in found[0].command))
    assert (found.check, found.severity) == ("replica", Severity.ERROR)
    said = run(f"{found.command}\necho $PENSTOCK_DATABASE_URL", url)
    assert urlsplit(said.strip()).port == server.port
    assert "postgresql://postgres@127.0.0.1:" in said
    assert said.strip().endswith("/shop")


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler(server: EmbeddedPostgres, url: str, tmp_path: Path, mode: str, run: Run) -> None:
    """A real PgBouncer; in session mode there is nothing wrong with it."""
    with Pooler(url, tmp_path / "pgbouncer", mode) as pooler:
        found = doctor(pooler.url)
        if mode == "session":
            assert found == []
            return
        assert only(found).check == "pooler"
        said = run(f"{found[0].command}\necho $PENSTOCK_DATABASE_URL", url)
        assert urlsplit(said.strip()).port == server.port


@pytest.mark.long
def test_a_server_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postgres_matrix.VERSIONS, 13, "13.23.0")
    try:
        old = postgres_matrix.MatrixPostgres(13, tmp_path / "pg", settings={"fsync": "off"})
    except ServerUnavailable as error:
        missing("PostgreSQL 13", error)
    with old:
        found = only(doctor(old.url("postgres")))
    assert (found.check, found.what) == (
        "server",
        "the server is PostgreSQL 13, Penstock needs 14 or newer",
    )
    assert found.command.startswith("upgrade the server")
