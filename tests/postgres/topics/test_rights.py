"""The roles: which function each may call, that none has a table, and how they are installed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import penstock
from penstock import log, subscriptions
from penstock.cli import main
from penstock.database import catalog, migrate
from penstock.errors import InvalidArgument, NotInRole, PermissionDenied
from penstock.subscriptions import stream
from penstock.topics import rights
from tests.consumers.process import Daemon, until
from tests.kit.grant_matrix import MATRIX
from tests.kit.proof import proves
from tests.kit.tenants import Tenants, tenants_of
from tests.support import PostgresServer

Connection = psycopg.Connection[tuple[Any, ...]]

TOPIC = "rights/orders"
CALLS = "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA penstock TO {}"
FUNCTION = re.compile(r"\bpenstock\.(\w+)\(")
ALLOWED = {line.split()[0]: set(line.split()[1:]) - {"."} for line in MATRIX.strip().splitlines()}


@pytest.fixture
def tenants(connection: Connection, database_url: str) -> Iterator[Tenants]:
    """Tenants of this test's database."""
    with tenants_of(connection, database_url) as found:
        yield found


@pytest.fixture
def caller_url(tenants: Tenants) -> str:
    """The URL of a login that holds no right on any table."""
    name = tenants.login()
    penstock.create_topic(tenants.owner, TOPIC, 1, create_namespaces=True)
    stream.subscribe(tenants.owner, "billing", [TOPIC])
    role = sql.Identifier(name)
    tenants.owner.execute(sql.SQL("GRANT USAGE ON SCHEMA penstock TO {}").format(role))
    tenants.owner.execute(sql.SQL(CALLS).format(role))
    return tenants.url_of(name)


def test_tables_need_no_grants(
    caller_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", caller_url)
    with psycopg.connect(caller_url, autocommit=True) as caller:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            caller.execute("SELECT FROM penstock.schema_migrations")
        penstock.publish(caller, TOPIC, b"one")
        log.sequence(caller)
        assert [each.payload for each in log.fetch(caller, TOPIC, 0, 1)] == [b"one"]
        migrate.require_usable(caller)
        assert migrate.check(caller) == []
    assert {line.state for line in migrate.status(caller_url)} == {"applied"}
    assert main.run(["status"]) == 0
    assert TOPIC in capsys.readouterr().out


def test_the_daemon_needs_no_grants_on_tables(caller_url: str, tmp_path: Path) -> None:
    roles = ("--roles", "sequencer,sweep,consumers", "--http-port", "0")
    handler = ("--consumer", "billing=tests.consumers.handlers:record")
    daemon = Daemon(caller_url, tmp_path, (*roles, *handler))
    try:
        daemon.wait_started()
        with psycopg.connect(caller_url, autocommit=True) as caller:
            penstock.publish(caller, TOPIC, b"one")
        until(daemon.handled, "the handler to see the event")
        daemon.terminate()
        assert daemon.exit_code() == 0, daemon.text()
        assert "permission denied" not in daemon.text()
    finally:
        daemon.kill()


def test_a_schema_without_the_function_is_read_directly(
    connection: psycopg.Connection[tuple[object, ...]], caller_url: str
) -> None:
    connection.execute("DROP FUNCTION penstock.applied_migrations()")
    migrate.require_usable(connection)
    with pytest.raises(PermissionDenied, match="schema_migrations"):
        migrate.check(caller_url)


def allowed(connection: Connection, role: str) -> set[str]:
    """The functions that a role may call."""
    rows = connection.execute(
        "SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'penstock'::regnamespace"
        " AND has_function_privilege(%s, p.oid, 'EXECUTE')",
        [role],
    ).fetchall()
    return {name for (name,) in rows}


@proves("S22")
def test_every_role_by_every_function(tenants: Tenants) -> None:
    """The grant matrix."""
    tenants.install()
    rows = tenants.owner.execute(
        "SELECT DISTINCT p.proname FROM pg_proc AS p"
        " WHERE p.pronamespace = 'penstock'::regnamespace"
    ).fetchall()
    present = {name for (name,) in rows}
    for kind in rights.KINDS:
        expected = {name for name, kinds in ALLOWED.items() if kind[0] in kinds} & present
        assert allowed(tenants.owner, rights.role_name(kind)) == expected, kind
    assert allowed(tenants.owner, tenants.login()) == set()
    assert len(present - ALLOWED.keys()) > 20  # helpers that nobody may call


def test_what_clients_call_some_role_may_call() -> None:
    """A function that a new statement calls has to get a place in function_roles."""
    texts = (each.text for each in catalog.statements("postgres").values())
    called = {name for text in texts for name in FUNCTION.findall(text)}
    assert called - ALLOWED.keys() == set()


def test_no_role_has_anything_but_functions(tenants: Tenants) -> None:
    """Every role by every table, sequence and column, and the schema itself."""
    tenants.install()
    for kind in rights.KINDS:
        found = tenants.owner.execute(
            "SELECT c.relname, v.verb FROM pg_class AS c"
            " CROSS JOIN unnest(CASE WHEN c.relkind = 'S' THEN '{USAGE,SELECT,UPDATE}'::text[]"
            " ELSE '{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}' END) AS v (verb)"
            " WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')"
            " AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(%(role)s, c.oid, v.verb)"
            " ELSE has_table_privilege(%(role)s, c.oid, v.verb) OR (v.verb IN"
            " ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')"
            " AND has_any_column_privilege(%(role)s, c.oid, v.verb)) END"
            " UNION ALL SELECT 'the schema', 'CREATE'"
            " WHERE has_schema_privilege(%(role)s, 'penstock', 'CREATE')",
            {"role": rights.role_name(kind)},
        ).fetchall()
        assert found == [], kind
    login = tenants.login("publisher consumer operator reader installer")
    with tenants.as_login(login) as own:
        tables = tenants.owner.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'penstock'"
        ).fetchall()
        for (table,) in tables:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                own.execute(sql.SQL("SELECT FROM penstock.{}").format(sql.Identifier(table)))


def test_what_a_role_may_call_keeps_its_search_path(tenants: Tenants) -> None:
    """Every such function runs as the owner, and looks into no schema but Penstock's."""
    rows = tenants.owner.execute(
        "SELECT p.proname, p.prosecdef, p.proconfig FROM pg_proc AS p"
        " WHERE p.pronamespace = 'penstock'::regnamespace"
    ).fetchall()
    loose = {
        name
        for name, definer, settings in rows
        if name in ALLOWED and not (definer and "search_path=penstock, pg_temp" in (settings or []))
    }
    assert loose == set()


def test_a_member_works_with_functions_alone(tenants: Tenants) -> None:
    tenants.install()
    penstock.create_topic(tenants.owner, TOPIC, 1, create_namespaces=True)
    with tenants.as_login(tenants.login("publisher")) as publisher:
        penstock.publish(publisher, TOPIC, b"one")
        with publisher.transaction():
            penstock.publish_bulk(publisher, [penstock.Message(TOPIC, b"two")])
        with pytest.raises(NotInRole):
            penstock.fetch(publisher, TOPIC, 0, 1)
    with tenants.as_login(tenants.login("operator")) as operator:
        log.sequence(operator)
        penstock.create_topic(operator, "rights/bills")
    with tenants.as_login(tenants.login("consumer")) as consumer:
        penstock.subscribe(consumer, "billing", [TOPIC])
        member = stream.join(consumer, "billing", "one")
        leases = stream.check_in(consumer, member)
        ((lease, events),) = stream.poll(consumer, member, leases)
        assert [event.payload for event in events] == [b"one", b"two"]
        stream.commit(consumer, member, [(lease, 2)])
        with pytest.raises(NotInRole):
            penstock.publish(consumer, TOPIC, b"three")
    with tenants.as_login(tenants.login("reader")) as reader:
        assert [each.position for each in subscriptions.lag(reader, "billing")] == [2]
        with pytest.raises(NotInRole):
            penstock.fetch(reader, TOPIC, 0, 1)


def test_installing_twice_changes_nothing_and_takes_back_what_is_too_much(
    tenants: Tenants,
) -> None:
    tenants.install()
    before = allowed(tenants.owner, "penstock_reader")
    tenants.owner.execute("GRANT EXECUTE ON FUNCTION penstock.sequence TO penstock_reader")
    tenants.owner.execute("GRANT SELECT ON penstock.events TO penstock_reader")
    assert rights.install(tenants.owner) == []
    assert allowed(tenants.owner, "penstock_reader") == before
    row = tenants.owner.execute(
        "SELECT has_table_privilege('penstock_reader', 'penstock.events', 'SELECT')"
    ).fetchone()
    assert row == (False,)


def test_who_may_not_create_roles_is_told_what_to_run(tenants: Tenants) -> None:
    with (
        tenants.as_login(tenants.login()) as weak,
        pytest.raises(PermissionDenied, match='CREATE ROLE "penstock_consumer" NOLOGIN'),
    ):
        rights.install(weak)
    tenants.install()
    with (
        tenants.as_login(tenants.login()) as weak,
        pytest.raises(PermissionDenied, match=r'"penstock".install_rights\(\)'),
    ):
        rights.install(weak)
    with (
        tenants.as_login(tenants.login("publisher")) as weak,
        pytest.raises(PermissionDenied, match='GRANT "penstock_operator"'),
    ):
        rights.add_member(weak, "operator", tenants.login())


def test_a_role_that_can_log_in_is_nobodys_role(tenants: Tenants) -> None:
    """Somebody else's login of that name does not come into Penstock's functions."""
    tenants.role("LOGIN", "penstock_operator")
    with pytest.raises(InvalidArgument, match="can log in"), tenants.owner.transaction():
        rights.install(tenants.owner)
    tenants.owner.execute("ALTER ROLE penstock_operator NOLOGIN")
    tenants.install()


def test_migrate_needs_no_right_to_create_roles(
    tenants: Tenants, empty_database_url: str, postgres_server: PostgresServer
) -> None:
    """And gives what is new to the roles that were installed here, to no others."""
    tenants.install()
    login = tenants.login()
    with psycopg.connect(empty_database_url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(
            sql.SQL("ALTER DATABASE {} OWNER TO {}").format(
                sql.Identifier(name), sql.Identifier(login)
            )
        )
    own_url = tenants.url_of(login, empty_database_url)
    migrate.migrate(own_url)
    with psycopg.connect(own_url, autocommit=True) as own:
        assert allowed(own, "penstock_publisher") == set()
        assert rights.install(own) == []
        before = allowed(own, "penstock_publisher")
        assert "publish" in before
        own.execute("REVOKE EXECUTE ON FUNCTION penstock.topic_lookup FROM penstock_publisher")
        own.execute("UPDATE penstock.schema_migrations SET checksum = '' WHERE version = 0")
        assert migrate.migrate(own_url).applied == ("functions",)
        assert allowed(own, "penstock_publisher") == before
    postgres_server.drop(name)


def test_the_roles_carry_the_name_of_the_schema(
    tenants: Tenants, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SCHEMA", "outbox")
    migrate.migrate(empty_database_url)
    with (
        psycopg.connect(empty_database_url, autocommit=True) as own,
        tenants_of(own, empty_database_url) as others,
    ):
        others.install()
        assert rights.roles(own)[1].name == "outbox_consumer"
        assert 'CREATE ROLE "outbox_reader" NOLOGIN;' in rights.print_sql()
        with others.as_login(others.login("operator")) as operator:
            penstock.create_topic(operator, TOPIC, create_namespaces=True)
            penstock.grant_namespace(operator, "rights", others.role(), "read")
            assert penstock.describe_topic(operator, TOPIC).restricted


def test_the_command(
    tenants: Tenants,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    login = tenants.login()
    penstock.create_namespace(tenants.owner, "bank")
    assert main.run(["rights", "install"]) == 0
    tenants.made += [rights.role_name(kind) for kind in rights.KINDS]
    assert main.run(["rights", "grant", login, "publisher"]) == 0
    assert main.run(["rights", "grant", login, "publish", "-n", "bank"]) == 0
    capsys.readouterr()
    assert main.run(["rights", "show", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    publisher = next(role for role in shown["roles"] if role["name"] == "penstock_publisher")
    assert publisher["installed"]
    assert publisher["members"] == [login]
    assert "publish" in publisher["functions"]
    assert [(each["namespace"], each["login"]) for each in shown["grants"]] == [("bank", login)]
    assert main.run(["rights", "show"]) == 0
    assert "penstock_reader" in capsys.readouterr().out
    assert main.run(["rights", "revoke", login, "publish", "-n", "bank"]) == 2
    assert "open to all" in capsys.readouterr().err
    assert main.run(["rights", "revoke", login, "publish", "-n", "bank", "--unrestrict"]) == 0
    assert main.run(["rights", "revoke", login, "publisher"]) == 0
    assert rights.roles(tenants.owner)[3].members == ()
    for wrong in (["grant", login, "king"], ["grant", login, "king", "-n", "bank"]):
        assert main.run(["rights", *wrong]) == 2
    capsys.readouterr()
    assert main.run(["rights", "print"]) == 0
    tenants.drop()
    tenants.made = [rights.role_name(kind) for kind in rights.KINDS]
    tenants.owner.execute(capsys.readouterr().out.encode())
    assert "publish" in allowed(tenants.owner, "penstock_publisher")
