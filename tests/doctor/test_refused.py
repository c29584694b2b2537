"""What a managed server refuses: the log does without it, and the doctor says the price."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import penstock
from penstock import log
from penstock.doctor import doctor
from resources.embedded import EmbeddedPostgres
from tests.doctor.kit import NOW, TOPIC, Connection, Run, only, owned_by
from tests.guards import definition
from tests.kit.log import drain, put, texts, value
from tests.kit.proof import proves

pytestmark = pytest.mark.timeout(240)

#: What tells the cluster and its timeline.
IDENTITY = ("pg_control_system()", "pg_current_wal_insert_lsn()", "pg_walfile_name(pg_lsn)")
OTHERS = (
    "pg_current_wal_lsn()",
    "pg_wal_lsn_diff(pg_lsn, pg_lsn)",
    "pg_notification_queue_usage()",
)


@pytest.fixture(scope="module")
def managed(server: EmbeddedPostgres) -> Iterator[str]:
    """A database whose owner may call none of them, also while it is migrated."""
    revoked = f"REVOKE EXECUTE ON FUNCTION {', '.join(IDENTITY + OTHERS)} FROM PUBLIC"
    with owned_by(server, "managed", revoked, "GRANT pg_read_all_stats TO {}") as url:
        with psycopg.connect(url, autocommit=True) as connection:
            penstock.create_topic(connection, TOPIC, create_namespaces=True)
        yield url


@pytest.fixture
def owner(managed: str) -> Iterator[Connection]:
    with psycopg.connect(managed, autocommit=True) as connection:
        yield connection


@pytest.fixture
def superuser(server: EmbeddedPostgres, managed: str) -> Iterator[Connection]:
    with psycopg.connect(server.url("managed"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def as_superuser(server: EmbeddedPostgres, run: Run) -> Run:
    """Runs a command as the person who may."""
    return lambda command, _: run(
        command.replace("-U managed", "-U postgres"), server.url("managed")
    )


def _announce(connection: Connection) -> None:
    connection.execute("SELECT penstock.announce(ARRAY[1::bigint])")


def _pass(connection: Connection, text: str) -> None:
    put(connection, text, name=TOPIC)
    drain(connection)
    _announce(connection)
    assert texts(connection, name=TOPIC)[-1] == text


@proves("the log does without what a managed server refuses")
def test_the_log_does_without_what_is_refused(managed: str, owner: Connection) -> None:
    """Guards: the handlers of log_identity and notices_used.  The doctor says it once."""
    _pass(owner, "refused")
    owner.execute("SELECT penstock.wake_sequencer()")
    assert value(owner, "SELECT count(*) FROM penstock.eras WHERE timeline IS NULL") == 1
    found = {each.check: each for each in doctor(managed, NOW)}
    assert set(found) == {"identity", "refused"}
    assert "loaded into another server" in found["identity"].what
    assert "a failover" in found["identity"].what
    assert "pg_notification_queue_usage()" in found["refused"].what


def test_what_a_slot_keeps_is_not_measured(managed: str, superuser: Connection) -> None:
    superuser.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    try:
        found = {each.check: each.what for each in doctor(managed, NOW)}
        assert "it keeps WAL until" in found["replication_slot"]
    finally:
        superuser.execute("SELECT pg_drop_replication_slot('standby')")


@proves("the log does without what a managed server refuses")
@pytest.mark.parametrize("refused", IDENTITY)
def test_each_may_be_refused_alone(
    managed: str, owner: Connection, superuser: Connection, as_superuser: Run, refused: str
) -> None:
    """The command that the doctor names gives it back."""
    allowed = ", ".join(each for each in (*IDENTITY, *OTHERS) if each != refused)
    superuser.execute(f"GRANT EXECUTE ON FUNCTION {allowed} TO PUBLIC".encode())
    try:
        _pass(owner, refused)
        found = only(doctor(managed))
        assert (found.check, refused in found.what) == ("identity", True)
        as_superuser(found.command, managed)
        assert doctor(managed) == []
        _pass(owner, f"{refused} is given back")
    finally:
        everything = ", ".join(IDENTITY + OTHERS)
        for each in ("PUBLIC", "managed"):
            superuser.execute(f"REVOKE EXECUTE ON FUNCTION {everything} FROM {each}".encode())
        superuser.execute("UPDATE penstock.eras SET system_identifier = NULL, timeline = NULL")
    assert value(owner, "SELECT max(era) FROM penstock.eras") == 1, "unknown counts as the same"


def test_what_is_told_later_completes_the_era(owner: Connection, superuser: Connection) -> None:
    """Guard: learn_identity.  From then on another timeline is noticed."""
    era = "SELECT (system_identifier IS NULL, timeline IS NULL)::text FROM penstock.eras"
    log.ensure_slices(owner)
    assert value(owner, era) == "(t,t)"
    with superuser.transaction(force_rollback=True):
        superuser.execute(f"GRANT EXECUTE ON FUNCTION {', '.join(IDENTITY)} TO managed".encode())
        log.ensure_slices(superuser)
        assert value(superuser, era) == "(f,f)"
        superuser.execute("UPDATE penstock.ticks SET server_started = NULL")
        superuser.execute("UPDATE penstock.eras SET timeline = '00000009'")
        log.sequence(superuser)
        assert value(superuser, "SELECT max(era) FROM penstock.eras") == 2


@proves(
    "the log does without what a managed server refuses", guard="the handlers of a refused call"
)
def test_without_the_handlers_nothing_is_sequenced(owner: Connection) -> None:
    """Mutants: each refusal ends the pass."""
    for name, call in (
        ("log_identity", log.sequence),
        ("notices_used", _announce),
    ):
        whole = definition(owner, name)
        with pytest.raises(psycopg.errors.InsufficientPrivilege), owner.transaction():
            owner.execute("SET LOCAL search_path TO penstock, pg_temp")
            owner.execute(whole.replace("insufficient_privilege OR ", "").encode())
            owner.execute("UPDATE penstock.ticks SET server_started = NULL")
            put(owner, "not sequenced", name=TOPIC)
            call(owner)
