"""The roles on every engine: which function each may call, and that none has a table."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import penstock
from penstock import database, log, subscriptions
from penstock.cli import main
from penstock.database import config, migrate
from penstock.driver_errors import errno_of
from penstock.errors import InvalidArgument, PermissionDenied, TopicNotFound
from penstock.publishing import known_topics
from penstock.subscriptions import stream
from penstock.topics import rights
from tests.contract import databases
from tests.contract.databases import ContractDatabase, MySQLDatabase
from tests.contract.tenants import MySQLTenants, Tenants, as_login, tenants_of
from tests.contract.wall_guards import LOCKED_FIRST, NAMELESS
from tests.kit.proof import proves
from tests.postgres.topics.test_rights import ALLOWED

pytestmark = pytest.mark.mariadb_differs("roles and rights are read in another way")

TOPIC = "rights/orders"
DENIED_CALL = 1370
DENIED_TABLE = 1142

#: Public, and of no role: who needs one has the owner's login.
OF_THE_OWNER = {"partition_of"}


@pytest.fixture
def mysql_tenants(mysql_db: MySQLDatabase) -> Iterator[Tenants]:
    """The same where only MySQL and MariaDB are meant."""
    with tenants_of(mysql_db) as found:
        found.install()
        yield found


def _routines(db: ContractDatabase) -> Mapping[str, str]:
    """The body of every function, or procedure, by name."""
    if db.engine != "postgres":
        return databases.routines()
    return dict(
        db.run(
            "SELECT p.proname, string_agg(p.prosrc, ' ') FROM pg_proc AS p"
            " WHERE p.pronamespace = 'penstock'::regnamespace GROUP BY p.proname"
        )
    )


def test_every_function_is_in_the_matrix_or_another_ones_helper(db: ContractDatabase) -> None:
    """What nobody in the database calls, somebody outside is to call: it needs a line in MATRIX."""
    bodies = _routines(db)
    called = {
        word
        for name, body in bodies.items()
        for word in re.findall(r"\b\w+\b", body)
        if word in bodies and word != name
    }
    unknown = bodies.keys() - ALLOWED.keys() - called - OF_THE_OWNER
    assert unknown - {"crc32"} == set()


def _callable(own: Any, names: Mapping[str, str]) -> set[str]:
    """What the login may call, found out by calling it, without arguments."""
    found = set()
    for name, body in sorted(names.items()):
        statement = "SELECT" if body.startswith("CREATE FUNCTION") else "CALL"
        try:
            database.execute(own, f"{statement} penstock.`{name}`()")
        except Exception as error:
            if errno_of(error.__cause__ or error) == DENIED_CALL:
                continue
        found.add(name)
    return found


@proves("S22")
def test_every_role_by_every_procedure(mysql_db: MySQLDatabase, mysql_tenants: Tenants) -> None:
    """The grant matrix, by statement."""
    bodies = databases.routines()
    for kind in rights.KINDS:
        expected = {name for name, kinds in ALLOWED.items() if kind[0] in kinds} & bodies.keys()
        with as_login(mysql_tenants, mysql_tenants.login(kind)) as own:
            assert _callable(own, bodies) == expected, kind
    nobody = mysql_tenants.login("reader")
    rights.remove_member(mysql_tenants.owner, "reader", nobody)
    parts = mysql_tenants.url_of(nobody).replace("/penstock", "/")
    with contextlib.closing(database.connect(parts)) as own:
        assert _callable(own, bodies) == set()


def test_every_role_by_every_table(mysql_db: MySQLDatabase, mysql_tenants: Tenants) -> None:
    """By statement: whoever is in all of the roles reads and writes no table, and makes none."""
    rows = mysql_db.run(
        "SELECT t.TABLE_NAME, MIN(c.COLUMN_NAME) FROM information_schema.TABLES AS t"
        " JOIN information_schema.COLUMNS AS c USING (TABLE_SCHEMA, TABLE_NAME)"
        " WHERE t.TABLE_SCHEMA = 'penstock' GROUP BY t.TABLE_NAME"
    )
    assert len(rows) > 25
    login = mysql_tenants.login(" ".join(rights.KINDS).replace("gateway ", ""))
    with as_login(mysql_tenants, login) as own:
        for table, column in rows:
            for statement in (
                f"SELECT 1 FROM penstock.`{table}`",
                f"INSERT INTO penstock.`{table}` () VALUES ()",
                f"UPDATE penstock.`{table}` SET `{column}` = NULL",
                f"DELETE FROM penstock.`{table}`",
                f"TRUNCATE TABLE penstock.`{table}`",
                f"ALTER TABLE penstock.`{table}` ADD more INT",
            ):
                with pytest.raises(Exception, match="denied") as refused:
                    database.execute(own, statement)
                denied = refused.value.__cause__ or refused.value
                assert errno_of(denied) == DENIED_TABLE, statement
        for statement in (
            "CREATE TABLE penstock.mine (a INT)",
            "CREATE TEMPORARY TABLE penstock.namespace_grants (a INT)",
            "CREATE PROCEDURE penstock.mine() SELECT 1",
            "DROP PROCEDURE penstock.publish",
            "SELECT User FROM mysql.user",
        ):
            with pytest.raises(Exception, match="denied"):
                database.execute(own, statement)


def test_every_procedure_runs_as_its_owner(mysql_db: MySQLDatabase) -> None:
    rows = mysql_db.run(
        "SELECT DISTINCT SECURITY_TYPE, DEFINER = CURRENT_USER()"
        " FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = 'penstock'"
    )
    assert [tuple(map(str, row)) for row in rows] in ([("DEFINER", "1")], [("DEFINER", "True")])


def test_members_work_with_functions_alone(tenants: Tenants) -> None:
    penstock.create_topic(tenants.owner, TOPIC, 1, create_namespaces=True)
    with as_login(tenants, tenants.login("publisher")) as publisher:
        known_topics.clear()
        penstock.publish(publisher, TOPIC, b"one")
        penstock.publish_batch(publisher, [penstock.Message(TOPIC, b"two")])
        with pytest.raises(Exception, match="denied"):
            penstock.fetch(publisher, TOPIC, 0, 1)
    with as_login(tenants, tenants.login("operator")) as operator:
        log.sequence(operator)
        assert log.ensure_slices(operator) == 0
        penstock.create_topic(operator, "rights/bills")
        migrate.require_usable(operator)
    with as_login(tenants, tenants.login("consumer")) as consumer:
        penstock.subscribe(consumer, "billing", [TOPIC])
        member = stream.join(consumer, "billing", "one")
        leases = stream.check_in(consumer, member)
        ((lease, events),) = stream.poll(consumer, member, leases)
        assert [event.payload for event in events] == [b"one", b"two"]
        stream.commit(consumer, member, [(lease, 2)])
        with pytest.raises(Exception, match="denied"):
            penstock.publish(consumer, TOPIC, b"three")
    with as_login(tenants, tenants.login("reader")) as reader:
        assert [each.position for each in subscriptions.lag(reader, "billing")] == [2]
        with pytest.raises(Exception, match="denied"):
            penstock.fetch(reader, TOPIC, 0, 1)


def test_a_login_is_a_member_until_it_is_taken_out(db: ContractDatabase, tenants: Tenants) -> None:
    """Also of several roles at once, of which MariaDB has but one active."""
    penstock.create_topic(tenants.owner, TOPIC, 1, create_namespaces=True)
    login = tenants.login("publisher consumer")
    found = {each.name: each for each in rights.roles(tenants.owner)}
    assert all(login in found[f"penstock_{kind}"].members for kind in ("publisher", "consumer"))
    assert "publish" in found["penstock_publisher"].functions
    rights.add_member(tenants.owner, "consumer", login)
    rights.remove_member(tenants.owner, "consumer", login)
    with as_login(tenants, login) as own:
        penstock.publish(own, TOPIC, b"x")
        with pytest.raises(Exception, match="denied"):
            penstock.fetch(own, TOPIC, 0, 1)
    for _ in range(2):
        rights.remove_member(tenants.owner, "publisher", login)
    found = {each.name: each for each in rights.roles(tenants.owner)}
    assert all(login not in each.members for each in found.values())
    for bad in ("nobody at all", ""):
        with pytest.raises(Exception, match=r"role|name"):
            rights.add_member(tenants.owner, "publisher", bad)


def test_who_may_not_is_told_what_to_run(tenants: Tenants) -> None:
    with as_login(tenants, tenants.login("publisher")) as weak:
        for call in (
            lambda: rights.install(weak),
            lambda: rights.add_member(weak, "operator", tenants.somebody),
            lambda: rights.remove_member(weak, "operator", tenants.somebody),
        ):
            with pytest.raises(PermissionDenied, match=r"run: "):
                call()


def _refusals(db: ContractDatabase, tenants: Tenants) -> Iterator[None]:
    """A stranger's calls in one open transaction, which are all refused."""
    penstock.create_topic(tenants.owner, TOPIC, 1, create_namespaces=True)
    stream.subscribe(tenants.owner, "billing", [TOPIC])
    penstock.grant_namespace(tenants.owner, "rights", tenants.somebody, "operate")
    stranger = database.connect(tenants.url_of(tenants.tenant()), autocommit=False)
    with contextlib.closing(stranger):
        # Else the first refusal would end the transaction that it has begun.
        penstock.list_topics(stranger)
        for call in (
            lambda: database.call(stranger, "set_retention", topic=TOPIC, **KEPT),
            lambda: stream.subscribe(stranger, "billing", [TOPIC]),
            lambda: stream.unsubscribe(stranger, "billing"),
        ):
            with pytest.raises(penstock.PenstockError):
                call()
            if db.engine == "postgres":
                stranger.rollback()
        yield


KEPT = {"minimum_age_seconds": 0, "copies": 1, "origin": "hand", "targets": None, "max_bytes": None}


def test_a_refused_call_holds_nothing(db: ContractDatabase, tenants: Tenants) -> None:
    """Guard: on MySQL the right is asked for before the row is locked, in lock_topic and others."""
    with contextlib.contextmanager(_refusals)(db, tenants):
        short = "lock_timeout = '1s'" if db.engine == "postgres" else "innodb_lock_wait_timeout = 1"
        database.execute(tenants.owner, f"SET {short}")
        database.call(tenants.owner, "set_retention", topic=TOPIC, **KEPT)
        stream.unsubscribe(tenants.owner, "billing")


def test_without_the_guard_a_refused_call_holds_the_topic(
    mysql_db: MySQLDatabase, mysql_tenants: Tenants
) -> None:
    """Mutant of the same."""
    mysql_db.without_guard(*LOCKED_FIRST)
    with contextlib.contextmanager(_refusals)(mysql_db, mysql_tenants):
        database.execute(mysql_tenants.owner, "SET innodb_lock_wait_timeout = 1")
        with pytest.raises(Exception, match="Lock wait timeout"):
            database.call(mysql_tenants.owner, "set_retention", topic=TOPIC, **KEPT)


def test_a_right_by_a_role_leaves_the_transaction_its_savepoints(tenants: Tenants) -> None:
    """Guard: MariaDB's table of roles is not read in the caller's transaction."""
    penstock.create_topic(tenants.owner, TOPIC, 1, create_namespaces=True)
    role = tenants.role()
    penstock.grant_namespace(tenants.owner, "rights", role, "operate")
    login = tenants.login("publisher consumer")
    tenants.give_role(role, login)
    own = database.connect(tenants.url_of(login), autocommit=False)
    with contextlib.closing(own):
        known_topics.clear()
        for payload in (b"one", b"two"):
            penstock.publish(own, TOPIC, payload)
            database.execute(own, "SAVEPOINT mine")
        own.commit()
    log.sequence(tenants.owner)
    assert len(penstock.fetch(tenants.owner, TOPIC, 0, 1)) == 2


def _shadowed(tenants: Tenants, hidden_table: str) -> Any:
    """A session that has put an empty temporary table before one of Penstock's, if it could."""
    own = database.connect(tenants.url_of(tenants.tenant()))
    name = f"for {hidden_table}"
    stream.subscribe(own, name, ["open/orders"])
    stream.check_in(own, stream.join(own, name, "one"))
    database.execute(own, "DELETE FROM penstock.board")
    for statement in ("RENAME TABLE penstock.board TO", "ALTER TABLE penstock.board RENAME"):
        with contextlib.suppress(Exception):  # MySQL, and of MariaDB the second
            database.execute(own, f"{statement} penstock.{hidden_table}")
    return own


@pytest.fixture
def secret(mysql_tenants: Tenants) -> Tenants:
    """A topic that only root may read, and an open one."""
    for topic in (TOPIC, "open/orders"):
        penstock.create_topic(mysql_tenants.owner, topic, 1, create_namespaces=True)
    penstock.publish(mysql_tenants.owner, TOPIC, b"secret")
    log.sequence(mysql_tenants.owner)
    penstock.grant_namespace(mysql_tenants.owner, "rights", "root", "operate")
    return mysql_tenants


def test_a_temporary_table_does_not_open_the_wall(mysql_db: MySQLDatabase, secret: Tenants) -> None:
    """A session keeps what our procedures have made, and MariaDB lets it rename that.

    Guard: every query of rights names the columns it needs.
    """
    for hidden_table in (
        "namespace_grants",
        "namespaces",
        "topics",
        "installed_roles",
        "role_edges",
    ):
        with (
            contextlib.closing(_shadowed(secret, hidden_table)) as own,
            pytest.raises(Exception, match=r"no topic|Unknown column"),
        ):
            penstock.fetch(own, TOPIC, 0, 1)


def test_without_the_guard_a_temporary_table_opens_it(
    mysql_db: MySQLDatabase, secret: Tenants
) -> None:
    """Mutant of the same; MySQL refuses the renaming."""
    mysql_db.without_guard(*NAMELESS)
    with contextlib.closing(_shadowed(secret, "namespace_grants")) as own:
        if mysql_db.engine == "mariadb":
            assert penstock.fetch(own, TOPIC, 0, 1)
        else:
            with pytest.raises(TopicNotFound):
                penstock.fetch(own, TOPIC, 0, 1)


def test_installing_twice_takes_back_what_is_too_much(
    mysql_db: MySQLDatabase, mysql_tenants: Tenants
) -> None:
    def granted() -> set[str]:
        return {str(line) for (line,) in mysql_db.run("SHOW GRANTS FOR penstock_reader")}

    before = granted()
    other = mysql_tenants.role()
    for too_much in (
        "EXECUTE ON PROCEDURE penstock.`sequence`",
        "SELECT ON penstock.events",
        "CREATE TEMPORARY TABLES ON penstock.*",
        f"`{other}`",
    ):
        mysql_db.run(f"GRANT {too_much} TO penstock_reader")
    mysql_db.run("REVOKE EXECUTE ON PROCEDURE penstock.log_status FROM penstock_reader")
    assert granted() != before
    assert rights.install(mysql_tenants.owner) == []
    assert granted() == before


def test_a_role_that_can_log_in_is_nobodys_role(mysql_tenants: Tenants) -> None:
    """On MySQL a role is an account; on MariaDB no user is one."""
    if database.execute(mysql_tenants.owner, "SELECT VERSION() LIKE '%MariaDB%'") == [(1,)]:
        mysql_tenants.owner.query("DROP ROLE penstock_reader")
        mysql_tenants.owner.query("CREATE USER penstock_reader IDENTIFIED BY 'x'")
        try:
            with pytest.raises(InvalidArgument, match="no role"):
                database.call(mysql_tenants.owner, "install_rights")
        finally:
            mysql_tenants.owner.query("DROP USER penstock_reader")
            MySQLTenants.made_on.clear()
    else:
        mysql_tenants.owner.query("ALTER USER penstock_reader ACCOUNT UNLOCK")
        try:
            with pytest.raises(InvalidArgument, match="can log in"):
                rights.install(mysql_tenants.owner)
        finally:
            mysql_tenants.owner.query("ALTER USER penstock_reader ACCOUNT LOCK")
    rights.install(mysql_tenants.owner)


def test_a_grant_in_a_transaction_is_refused(mysql_tenants: Tenants) -> None:
    """Every GRANT commits: it would take the caller's transaction with it."""
    with contextlib.closing(
        database.connect(mysql_tenants.url_of("root").replace("root:x", "root"), autocommit=False)
    ) as own:
        database.execute(own, "SELECT * FROM penstock.histories")
        with pytest.raises(InvalidArgument, match="inside a transaction"):
            rights.install(own)


@pytest.fixture
def schema(mysql_tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a schema that is not there; removed after the test, with its roles."""
    name = f"penstock_r{os.getpid()}"
    monkeypatch.setenv("PENSTOCK_SCHEMA", name)
    assert config.schema_name() == name
    yield name
    owner = mysql_tenants.owner
    database.execute(owner, f"DROP DATABASE IF EXISTS {name}")
    for kind in rights.KINDS:
        database.execute(owner, f"DROP ROLE IF EXISTS {name}_{kind}")


@pytest.mark.long_on("mariadb")
def test_an_owner_without_rights_on_the_server(
    mysql_tenants: Tenants, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It migrates, its roles get what is new, and the walls hold while it is locked."""
    admin = mysql_tenants.owner
    owner = mysql_tenants.login()
    trusted = database.execute(admin, "SELECT @@log_bin_trust_function_creators")[0][0]
    database.execute(admin, "SET GLOBAL log_bin_trust_function_creators = 1")
    database.execute(admin, f"GRANT ALL ON {schema}.* TO `{owner}`")
    url = mysql_tenants.url_of(owner).replace("/penstock", "/")
    try:
        migrate.migrate(url)
        rights.install(admin)
        _outdate(admin, schema)
        with pytest.raises(PermissionDenied):
            migrate.migrate(url)
        database.execute(admin, f"GRANT ALL ON {schema}.* TO `{owner}` WITH GRANT OPTION")
        before = _granted(admin, schema)
        database.execute(
            admin, f"REVOKE EXECUTE ON PROCEDURE {schema}.publish FROM {schema}_publisher"
        )
        assert migrate.migrate(url).applied == ("functions",)
        assert _granted(admin, schema) == before
        database.execute(admin, f"DROP ROLE {schema}_reader")
        _outdate(admin, schema)
        assert migrate.migrate(url).applied == ("functions",)
        database.execute(admin, f"ALTER USER `{owner}` ACCOUNT LOCK")
        _walls_hold(mysql_tenants, schema)
    finally:
        database.execute(admin, f"SET GLOBAL log_bin_trust_function_creators = {int(trusted)}")


def _outdate(admin: Any, schema: str) -> None:
    database.execute(
        admin, f"UPDATE {schema}.schema_migrations SET checksum = 'x' WHERE version = 0"
    )


def _granted(admin: Any, schema: str) -> set[tuple[Any, ...]]:
    rows = database.execute(
        admin,
        "SELECT User, Routine_name FROM mysql.procs_priv WHERE Db = %(schema)s AND User <> ''",
        {"schema": schema},
    )
    return {row for row in rows if str(row[0]).startswith(schema)}


def _walls_hold(tenants: Tenants, schema: str) -> None:
    admin = tenants.owner
    operator, member = tenants.login("operator"), tenants.login("consumer")
    with contextlib.closing(_of_schema(tenants, operator, schema)) as own:
        penstock.create_topic(own, TOPIC, 1, create_namespaces=True)
        penstock.grant_namespace(own, "rights", "root", "operate")
    assert _finds(tenants, operator, schema)
    assert not _finds(tenants, member, schema)
    database.execute(admin, f"DELETE FROM {schema}.installed_roles WHERE kind = 'operator'")
    assert not _finds(tenants, operator, schema)


def _finds(tenants: Tenants, login: str, schema: str) -> bool:
    with contextlib.closing(_of_schema(tenants, login, schema)) as own:
        try:
            database.call(own, "describe_topic", topic=TOPIC)
        except TopicNotFound:
            return False
    return True


def _of_schema(tenants: Tenants, login: str, schema: str) -> Any:
    return database.connect(tenants.url_of(login).replace("/penstock", f"/{schema}"))


def test_the_command(
    mysql_db: MySQLDatabase,
    mysql_tenants: Tenants,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", mysql_db.url)
    tenants = mysql_tenants
    login = tenants.login()
    penstock.create_namespace(tenants.owner, "bank")
    for command in (
        ["install"],
        ["refresh"],
        ["grant", login, "publisher"],
        ["grant", login, "publish", "-n", "bank"],
    ):
        assert main.run(["rights", *command]) == 0
    capsys.readouterr()
    assert main.run(["rights", "show", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    publisher = next(role for role in shown["roles"] if role["name"] == "penstock_publisher")
    assert publisher["installed"]
    assert login in publisher["members"]
    assert [(each["namespace"], each["login"]) for each in shown["grants"]] == [("bank", login)]
    assert main.run(["rights", "revoke", login, "publish", "-n", "bank"]) == 2
    assert "open to all" in capsys.readouterr().err
    assert main.run(["rights", "revoke", login, "publish", "-n", "bank", "--unrestrict"]) == 0
    assert main.run(["rights", "revoke", login, "publisher"]) == 0
    for wrong in (["grant", login, "king"], ["grant", login, "king", "-n", "bank"]):
        assert main.run(["rights", *wrong]) == 2
    capsys.readouterr()
    assert main.run(["rights", "print"]) == 0
    printed = capsys.readouterr().out
    for statement in printed.split(";\n")[:-1]:
        if not statement.startswith("CREATE ROLE"):  # they are there already
            database.execute(tenants.owner, statement)
