"""MySQL drops a procedure and makes it anew: what `migrate` leaves alone, and who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

import pytest

from penstock import database
from penstock.database import migrate
from penstock.database.mysql import connection, migrate as mysql_migrate, replaced, scripts
from penstock.errors import MigrationRunning, NotInRole, NotMigrated, WrongIsolation
from penstock.publishing.publish import publish
from tests.contract.databases import MySQLDatabase, routines
from tests.contract.kit import count
from tests.contract.tenants import as_login, tenants_of
from tests.kit import next_version
from tests.kit.log import TOPIC, Connection, put, topic, wait_until
from tests.kit.proof import proves

pytestmark = pytest.mark.mariadb_differs("procedures are replaced in another way")

CALLED_BY_MANY = ("publish", "begin_call", "is_tombstone", "poll")
on_mysql = pytest.mark.parametrize("mysql_db", ["mysql"], indirect=True)


@pytest.fixture
def upgraded(mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[MySQLDatabase]:
    """A database that the test migrates; it is put back afterwards."""
    topic(mysql_db.connect())
    yield mysql_db
    next_version.become_this_version(mysql_db, monkeypatch)


def _made(db: MySQLDatabase) -> dict[str, Any]:
    rows = db.run(
        "SELECT ROUTINE_NAME, CREATED FROM information_schema.ROUTINES"
        " WHERE ROUTINE_SCHEMA = 'penstock'"
    )
    return dict(rows)


def _remade(db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which procedures are new when a function has another text.  Their times have seconds."""
    before = _made(db)
    database.execute(db.connect(), "SELECT SLEEP(1.05)")
    next_version.become_next_version(monkeypatch, ["publish"])
    migrate.migrate(db.url)
    now = _made(db)
    assert now.keys() == before.keys()
    return {name for name, made in now.items() if made != before[name]}


@proves("an upgrade stops nobody")
def test_only_what_differs_is_made_anew(
    upgraded: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _remade(upgraded, monkeypatch) == {"publish"}


@proves("an upgrade stops nobody", guard="the marks of what is made")
def test_without_the_marks_everything_is_made_anew(
    upgraded: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the runner does not look at what is installed."""
    monkeypatch.setattr(mysql_migrate.MySQLSteps, "_installed", lambda self: {})
    assert _remade(upgraded, monkeypatch) > set(CALLED_BY_MANY)


def test_what_another_login_made_is_made_anew(
    upgraded: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A procedure runs with the rights of the login that made it."""
    *_, text = scripts.routine(routines()["rejected_commits"], replace=False)
    upgraded.run("USE penstock")
    upgraded.run("DROP PROCEDURE rejected_commits")
    upgraded.run(text.replace("CREATE ", "CREATE DEFINER = 'nobody'@'localhost' ", 1))
    next_version.become_next_version(monkeypatch, ["publish"])
    migrate.migrate(upgraded.url)
    definers = "SELECT DISTINCT DEFINER FROM information_schema.ROUTINES"
    assert len(upgraded.run(f"{definers} WHERE ROUTINE_SCHEMA = 'penstock'")) == 1


class Halted:
    """A migration that stands still after a statement.  Programs call meanwhile."""

    def __init__(self, db: MySQLDatabase, patch: pytest.MonkeyPatch, after: str, name: str) -> None:
        next_version.become_next_version(patch, [name])
        self._go, self._reached, self._looks = threading.Event(), threading.Event(), 0
        run, pauses = mysql_migrate.MySQLSteps._run, replaced.pauses

        def run_and_halt(steps: Any, statement: str, **binds: Any) -> Any:
            rows = run(steps, statement, **binds)
            if statement.startswith(f"{after} PROCEDURE") and f" {name}" in statement.split("(")[0]:
                self._reached.set()
                assert self._go.wait(30)
            return rows

        def counted(is_migrating: Any, *, is_alone: bool) -> Iterator[float]:
            for pause in pauses(is_migrating, is_alone=is_alone):
                self._looks += 1
                yield pause

        patch.setattr(mysql_migrate.MySQLSteps, "_run", run_and_halt)
        patch.setattr(replaced, "pauses", counted)
        self._migration = threading.Thread(target=migrate.migrate, args=(db.url,))

    def __enter__(self) -> Self:
        self._migration.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._go.set()
        self._migration.join(60)
        assert not self._migration.is_alive()

    def publish(self, own: Any) -> None:
        """Publish while it stands still, and let it go on once the call waits or has failed."""
        failures: list[Exception] = []

        def publish_one() -> None:
            try:
                publish(own, TOPIC, b"x")
            except Exception as error:
                failures.append(error)

        caller = threading.Thread(target=publish_one)
        try:
            assert self._reached.wait(30)
            caller.start()
            wait_until(lambda: self._looks > 2 or failures, "the call has failed twice")
        finally:
            self._go.set()
            caller.join(60)
        if failures:
            raise failures[0]


@proves("an upgrade stops nobody")
@on_mysql
@pytest.mark.parametrize("name", ["publish", "begin_call", "end_call", "refuse_serializable"])
def test_a_call_waits_for_its_procedure(
    upgraded: MySQLDatabase, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A call that is a transaction of its own is done once."""
    before = count(upgraded, "pending")
    with Halted(upgraded, monkeypatch, "DROP", name) as migration:
        migration.publish(upgraded.connect())
    assert count(upgraded, "pending") - before == 1


@proves("an upgrade stops nobody", guard="the wait for calls")
@on_mysql
def test_without_the_wait_a_call_fails(
    upgraded: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: it is not made again."""
    monkeypatch.setattr(replaced, "LONGEST_WAIT_SECONDS", 0)
    with (
        Halted(upgraded, monkeypatch, "DROP", "publish") as migration,
        pytest.raises(NotMigrated, match="publish does not exist"),
    ):
        migration.publish(upgraded.connect())


@proves("an upgrade stops nobody")
@on_mysql
@pytest.mark.parametrize("name", ["publish", "end_call"])
def test_a_transaction_is_to_begin_again(
    upgraded: MySQLDatabase, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The migration waits for its end: after a failed call the name stays locked.

    Were it to wait for the migration, neither would end.
    """
    own = upgraded.connect()
    before = count(upgraded, "pending")
    with (
        Halted(upgraded, monkeypatch, "DROP", name) as migration,
        pytest.raises(MigrationRunning, match="begin the transaction again") as caught,
        own.transaction(),
    ):
        migration.publish(own)
    assert database.is_contention(caught.value) and database.is_passing(caught.value)
    with own.transaction():
        publish(own, TOPIC, b"x")
    assert count(upgraded, "pending") - before == 1


@proves("an upgrade stops nobody", guard="the wait for calls")
@on_mysql
def test_a_transaction_that_waits_holds_up_the_migration(
    upgraded: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: it waits as a call does that is alone."""
    pauses = replaced.pauses
    monkeypatch.setattr(replaced, "LONGEST_WAIT_SECONDS", 1)
    monkeypatch.setattr(
        replaced, "pauses", lambda is_migrating, *, is_alone: pauses(is_migrating, is_alone=True)
    )
    own = upgraded.connect()
    with (
        Halted(upgraded, monkeypatch, "DROP", "publish") as migration,
        pytest.raises(NotMigrated),
        own.transaction(),
    ):
        migration.publish(own)


def _publish_as_role(db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment when the procedure is made, and the role has no right on it yet."""
    with tenants_of(db) as tenants:
        tenants.install()
        with (
            as_login(tenants, tenants.login("publisher")) as own,
            Halted(db, monkeypatch, "CREATE", "publish") as migration,
        ):
            migration.publish(own)


@proves("an upgrade stops nobody")
@on_mysql
def test_a_role_waits_for_its_right(
    upgraded: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    _publish_as_role(upgraded, monkeypatch)


@proves("an upgrade stops nobody", guard="the wait for calls")
@on_mysql
def test_without_the_wait_a_role_is_refused(
    upgraded: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the call is not made again."""
    monkeypatch.setattr(replaced, "LONGEST_WAIT_SECONDS", 0)
    with pytest.raises(NotInRole):
        _publish_as_role(upgraded, monkeypatch)


def _without(db: MySQLDatabase, *names: str) -> Connection:
    """A connection that has published, to a database that lacks procedures until the test ends."""
    own = db.connect()
    topic(own)
    put(own, "known")
    for name in names:
        db.mutants[name] = ""
        db.run(f"DROP PROCEDURE penstock.{name}")
    return own


@proves("an upgrade stops nobody")
def test_a_missing_procedure_is_said_at_once(mysql_db: MySQLDatabase) -> None:
    """No migration runs, so waiting does not help."""
    own = _without(mysql_db, "publish")
    with pytest.raises(NotMigrated, match="run `penstock migrate`"):
        put(own, "x")
    with pytest.raises(NotMigrated, match="run `penstock migrate`"), own.transaction():
        put(own, "x")


def _published_without_its_end(db: MySQLDatabase) -> int:
    """How many events a failed call leaves, when it could not even undo what it did."""
    own = _without(db, "end_call", "undo_call")
    before = count(db, "pending")
    with own.transaction(), suppress(NotMigrated):
        put(own, "x")
    return count(db, "pending") - before


@proves("an upgrade stops nobody")
def test_a_call_that_cannot_undo_itself_is_undone(mysql_db: MySQLDatabase) -> None:
    assert _published_without_its_end(mysql_db) == 0


@proves("an upgrade stops nobody", guard="the undo")
def test_without_the_undo_its_work_stays(
    mysql_db: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: a typed error is taken for one that a procedure raised after it undid its work."""
    monkeypatch.setattr(connection, "lacks_procedure", lambda error: False)
    assert _published_without_its_end(mysql_db) == 1


def test_what_a_beginning_lacks_is_named(mysql_db: MySQLDatabase) -> None:
    own = _without(mysql_db, "refuse_serializable")
    with pytest.raises(NotMigrated, match="refuse_serializable does not exist"):
        put(own, "x")


@proves("an upgrade stops nobody", guard="the narrow handler")
def test_without_its_narrow_handler_another_error_is_said(mysql_db: MySQLDatabase) -> None:
    """Mutant: begin_call takes each missing procedure for a missing savepoint."""
    own = _without(mysql_db, "refuse_serializable")
    first = "DECLARE is_torn BOOLEAN DEFAULT TRUE;\n"
    wide = "DECLARE CONTINUE HANDLER FOR 1305 CALL refuse('PS018', 'no transaction');\n"
    mysql_db.without_guard("begin_call", first, first + wide)
    with pytest.raises(WrongIsolation, match="no transaction"):
        put(own, "x")


@pytest.mark.parametrize(
    ("looks", "calls"),
    [("no no", 1), ("yes no no", 2), ("no yes no no", 3), ("yes yes yes no no", 4)],
)
def test_a_call_that_failed_between_two_looks_is_the_last(looks: str, calls: int) -> None:
    """Guard: the second look.  The migration may have ended just before the first one."""
    seen = iter(looks.split())
    assert len(list(replaced.pauses(lambda: next(seen) == "yes", is_alone=True))) == calls
    assert list(seen) == []
