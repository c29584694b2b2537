"""Logins of MySQL without TLS: PyMySQL encrypts the password with the package cryptography."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from penstock import database
from penstock.errors import MissingExtra
from tests.contract.databases import MySQLDatabase

_LOGIN = "penstock_test_login"


@pytest.fixture
def url(mysql_db: MySQLDatabase) -> Iterator[str]:
    """The address for a new login, whose password the server has not cached yet."""
    if mysql_db.engine != "mysql":
        pytest.skip("MariaDB has no caching_sha2_password by default")
    mysql_db.run(f"DROP USER IF EXISTS {_LOGIN}")
    mysql_db.run(f"CREATE USER {_LOGIN} IDENTIFIED WITH caching_sha2_password BY 'secret'")
    parts = urlsplit(mysql_db.url)
    yield f"mysql://{_LOGIN}:secret@{parts.hostname}:{parts.port}/?ssl_disabled=true"
    mysql_db.run(f"DROP USER {_LOGIN}")


def test_a_login_without_tls(url: str) -> None:
    with closing(database.connect(url)) as connection:
        ((login,),) = database.execute(connection, "SELECT CURRENT_USER()")
    assert login == f"{_LOGIN}@%"


def test_without_the_package_the_error_names_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an installation of PyMySQL alone meets."""
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    with pytest.raises(MissingExtra, match="cryptography is not installed"):
        database.connect(url)
