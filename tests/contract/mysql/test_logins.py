"""Logins of MySQL with TLS and without.

Without it, PyMySQL encrypts the password with the package cryptography.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from penstock import database
from penstock.database.mysql.blocks import Blocks, _unverified
from penstock.errors import DatabaseUnavailable, MissingExtra
from tests.contract.databases import MySQLDatabase

pytestmark = pytest.mark.mariadb_differs("roles and rights are read in another way")

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


def _cipher(url: str) -> str:
    with closing(database.connect(url)) as connection:
        ((_, cipher),) = database.execute(connection, "SHOW STATUS LIKE 'Ssl_cipher'")
    return str(cipher)


def test_without_options_it_is_encrypted(url: str) -> None:
    assert _cipher(url.partition("?")[0]).startswith("TLS")
    assert _cipher(url) == ""


def test_who_wants_the_server_verified_gets_it(url: str) -> None:
    """Nobody has signed its certificate."""
    with pytest.raises(DatabaseUnavailable, match="certificate verify failed"):
        _cipher(url.replace("ssl_disabled", "ssl_verify_cert"))


def test_without_a_look_at_the_options_any_server_is_believed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: the one context for all connections."""
    monkeypatch.setattr(Blocks, "_create_ssl_ctx", lambda self, options: _unverified())
    assert _cipher(url.replace("ssl_disabled", "ssl_verify_cert")).startswith("TLS")
