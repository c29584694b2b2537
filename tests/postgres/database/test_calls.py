"""Connections are opened with limits, and named statements run on any of them."""

from __future__ import annotations

import socket
from typing import Any

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm

from penstock import database
from penstock.database import config
from penstock.errors import ConfigurationError, DatabaseUnavailable, InvalidArgument, PenstockError


def test_a_connection_has_a_name_and_limits(database_url: str) -> None:
    with database.connect(database_url, statement_timeout_ms=1234) as connection:
        found = connection.execute(
            "SELECT current_setting('application_name'), current_setting('statement_timeout')"
        ).fetchone()
        assert connection.autocommit
    assert found == ("penstock", "1234ms")


def test_what_the_url_says_wins(database_url: str) -> None:
    url = f"{database_url}?application_name=mine&options=-c%20work_mem%3D5MB"
    with database.connect(url, autocommit=False) as connection:
        found = connection.execute(
            "SELECT current_setting('application_name'), current_setting('work_mem'),"
            " current_setting('statement_timeout')"
        ).fetchone()
    assert found == ("mine", "5MB", "30s")


def test_the_environment_names_the_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url.replace("://", "+psycopg://", 1))
    with database.connect() as connection:
        assert connection.info.dbname in database_url


def test_the_parts_of_the_environment_reach_the_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = psycopg.conninfo.conninfo_to_dict(database_url)
    for name in (config.URL_VARIABLE, *config.PARTS):
        monkeypatch.delenv(name, raising=False)
    for part in ("host", "port", "user", "password", "dbname"):
        name = "NAME" if part == "dbname" else part.upper()
        if given.get(part):
            monkeypatch.setenv(f"DB_{name}", str(given[part]))
    with database.connect() as connection:
        assert connection.info.dbname == given["dbname"]


def test_a_closed_port_is_named_without_the_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"postgresql://teller:s3cret@127.0.0.1:{taken.getsockname()[1]}/bank"
        with pytest.raises(DatabaseUnavailable, match="refused") as caught:
            database.connect(url)
    assert "s3cret" not in str(caught.value)
    assert "teller" not in str(caught.value)
    assert "start the server" in caught.value.hint


def test_a_missing_database_and_a_wrong_password_say_what_to_do(database_url: str) -> None:
    missing = psycopg.conninfo.make_conninfo(database_url, dbname="nowhere")
    with pytest.raises(DatabaseUnavailable, match="create them"):
        database.connect(missing)


@pytest.mark.parametrize("url", ["postgresql://h:port/x", "postgresql://h/x?no_such_option=1"])
def test_an_address_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises((ConfigurationError, DatabaseUnavailable)):
        database.connect(url)


def test_what_needs_libpq_refuses_another_database() -> None:
    with pytest.raises(ConfigurationError, match="needs PostgreSQL"):
        database.libpq_url("mysql://h/x")


def test_a_call_with_other_binds_is_refused(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(InvalidArgument, match="path"):
        database.call(connection, "create_namespace", name="x")


def test_a_call_joins_the_transaction_of_a_session(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    with sqlalchemy.orm.Session(engine) as session:
        database.call(session, "create_namespace", path="a")
        assert len(database.call(session, "list_namespaces")) == 1
        session.rollback()
        assert database.call(session, "list_namespaces") == []
    engine.dispose()


def test_a_scoped_session_and_a_raw_connection_work(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    scoped = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))
    assert database.call(scoped, "list_namespaces") == []
    scoped.remove()
    raw = engine.raw_connection()
    assert database.call(raw, "list_namespaces") == []
    with engine.connect() as other:
        assert database.database_key(raw) == database.database_key(other)
    raw.close()
    engine.dispose()


def test_two_databases_are_told_apart(
    connection: psycopg.Connection[Any], empty_database_url: str
) -> None:
    with psycopg.connect(empty_database_url) as other:
        first, second = database.database_key(connection), database.database_key(other)
    assert first is not None
    assert first != second


def test_a_lost_connection_is_recognised(connection: psycopg.Connection[Any]) -> None:
    with psycopg.connect(connection.info.dsn, password=connection.info.password) as other:
        connection.execute("SELECT pg_terminate_backend(%s)", [other.info.backend_pid])
        with pytest.raises(psycopg.OperationalError) as caught:
            other.execute("SELECT 1")
    assert database.is_unavailable(caught.value)
    assert not database.is_unavailable(psycopg.errors.UniqueViolation())


@pytest.mark.parametrize("password", ["s3cr%zz", "s3 cr et", "s3cr%"])
def test_an_address_that_cannot_be_read_does_not_tell_its_password(password: str) -> None:
    with pytest.raises(PenstockError) as refused:
        database.connect(f"postgresql://app:{password}@127.0.0.1:1/db")
    assert "s3" not in str(refused.value)
