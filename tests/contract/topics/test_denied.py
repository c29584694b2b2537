"""A login without Penstock's roles is told which role it needs, and which commands grant it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

import penstock
from penstock import database, log
from penstock.cli import main
from penstock.database import config
from penstock.doctor import doctor
from penstock.driver_errors import errno_of, sqlstate_of
from penstock.errors import DatabaseUnavailable, NotInRole, PermissionDenied
from tests.contract.databases import ContractDatabase, MySQLDatabase
from tests.contract.tenants import OPEN, Tenants, as_login, tenants_of, three_topics

pytestmark = pytest.mark.mariadb_differs("roles and rights are read in another way")

#: A call, and the role that the hint names for it.
CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "publish": (lambda own: penstock.publish(own, OPEN, b"x"), "publisher"),
    "publish_batch": (
        lambda own: penstock.publish_batch(own, [penstock.Message(OPEN, b"x")]),
        "publisher",
    ),
    "fetch": (lambda own: penstock.fetch(own, OPEN, 0, 1), "consumer"),
    "create_topic": (lambda own: penstock.create_topic(own, "open/new"), "operator"),
    "sequence": (log.sequence, "operator"),
}


def _without_database(url: str) -> str:
    """MySQL refuses to use a database before it refuses a call."""
    return url.removesuffix("penstock") if url.startswith("mysql") else url


@contextmanager
def _as_login(tenants: Tenants, login: str) -> Iterator[Any]:
    with closing(database.connect(_without_database(tenants.url_of(login)))) as own:
        yield own


@pytest.mark.parametrize("in_no_role", [True, False])
@pytest.mark.usefixtures("neighbours")
def test_what_a_login_may_not_call_says_which_role_and_which_command(
    tenants: Tenants, in_no_role: bool
) -> None:
    """Guard: denied.translated. On PostgreSQL the first refusal is of the schema."""
    login = tenants.login("" if in_no_role else "reader")
    with _as_login(tenants, login) as own:
        for name, (call, role) in CALLS.items():
            if name == "fetch" and not in_no_role:
                continue  # a reader may
            with pytest.raises(NotInRole, match="permission denied") as caught:
                call(own)
            own.rollback()
            error: PermissionDenied = caught.value
            assert "run: penstock rights install" in error.hint
            assert "penstock rights grant LOGIN " in error.hint
            if not in_no_role and name in {"create_topic", "sequence"}:
                assert f"penstock_{role}" in error.hint
                assert f"grant LOGIN {role}" in error.hint
            assert login not in str(error)


@pytest.mark.usefixtures("neighbours")
def test_the_command_says_it_without_a_traceback(
    tenants: Tenants, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    login = tenants.login()
    monkeypatch.setenv(config.URL_VARIABLE, _without_database(tenants.url_of(login)))
    for command in (["topic", "list"], ["publish", OPEN, "x"], ["status"], ["fetch", OPEN]):
        assert main.run(command) == 3
        said = capsys.readouterr().err
        assert said.startswith("penstock: permission denied"), said
        assert "penstock rights install" in said
        assert said.count("\n") == 1


def test_who_may_not_even_use_the_database_is_told_the_same(mysql_db: MySQLDatabase) -> None:
    """MySQL and MariaDB refuse such a login when it connects (1044)."""
    with tenants_of(mysql_db) as tenants:
        three_topics(tenants)
        with pytest.raises(DatabaseUnavailable) as caught:
            database.connect(tenants.url_of(tenants.login()))
    assert "penstock rights install" in caught.value.hint


def test_a_role_that_is_not_there_says_what_makes_it(db: ContractDatabase) -> None:
    """The server's own error, for a schema whose roles nobody has installed."""
    with closing(db.connect()) as own:
        host = "" if db.engine == "postgres" else "@localhost"
        user = "postgres" if db.engine == "postgres" else "root"
        with (
            pytest.raises(NotInRole, match="there is no role nobody_publisher") as caught,
            database.typed_errors("nobody"),
            closing(own.cursor()) as cursor,
        ):
            cursor.execute(f"GRANT nobody_publisher TO {user}{host}".encode())
    assert "penstock rights install" in caught.value.hint


@pytest.mark.usefixtures("neighbours")
def test_what_is_refused_elsewhere_is_left_as_it_is(tenants: Tenants) -> None:
    """An application's own table is no matter of Penstock's roles."""
    tenants.owner.cursor().execute(b"CREATE SCHEMA elsewhere")
    try:
        tenants.owner.cursor().execute(b"CREATE TABLE elsewhere.things (id INT)")
        with as_login(tenants, tenants.login("publisher")) as own:
            with pytest.raises(Exception) as caught:
                database.execute(own, "SELECT * FROM elsewhere.things")
            assert (sqlstate_of(caught.value) or errno_of(caught.value)) in {"42501", "42000", 1142}
    finally:
        cascade = b" CASCADE" if tenants.owner.__class__.__module__ == "psycopg" else b""
        tenants.owner.cursor().execute(b"DROP SCHEMA elsewhere" + cascade)


@pytest.mark.usefixtures("neighbours")
def test_the_doctor_of_a_role_without_new_functions_says_what_gives_them(
    db: ContractDatabase, tenants: Tenants
) -> None:
    """Guard: the doctor looks on when a function of this version is not its role's yet."""
    kind = "FUNCTION" if db.engine == "postgres" else "PROCEDURE"
    right = f"EXECUTE ON {kind} penstock.dead_letter_counts"
    db.run(f"REVOKE {right} FROM penstock_operator")
    try:
        found = doctor(tenants.url_of(tenants.login("operator")))
    finally:  # on MySQL and MariaDB the roles are those of all tests
        db.run(f"GRANT {right} TO penstock_operator")
    (said,) = (each for each in found if each.check == "dead_letters")
    assert said.command == "penstock rights install"
    assert "the functions of this version" in said.what
