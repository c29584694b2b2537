"""What a gateway needs of the embedded database of a checkout, made where it is missing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from consumers.gateway.settings import URL_VARIABLE
from penstock import database
from penstock.accounts import MasterKeys
from penstock.accounts.masters import FILE_VARIABLE, VARIABLE
from penstock.database import config
from penstock.topics import rights

LOGIN = "penstock_gateway_dev"
_FILE, _PASSWORD_FILE = "gateway_key", "gateway_password"


def access(environ: Mapping[str, str]) -> tuple[str, MasterKeys] | None:
    """The database by a login for gateways, and a master key; None unless all is embedded.

    That is so where no master key is given, no login for the gateway, and the database is the
    embedded one of this machine, which is this user's own.
    """
    given = (VARIABLE, FILE_VARIABLE, URL_VARIABLE)
    url = environ.get(config.URL_VARIABLE, "")
    if any(environ.get(name) for name in given) or not url:
        return None
    from penstock.cli.embedded import running

    found = running()
    return None if found is None or found[1] != url else made(url, found[0])


def made(url: str, directory: Path) -> tuple[str, MasterKeys]:
    """The same, with the login and the key in this directory, which only its owner reads.

    Two secrets: the database knows the password, and the master key is never in it.
    """
    key, password = _secret(directory / _FILE), _secret(directory / _PASSWORD_FILE)
    with database.connect(url) as connection:
        rights.install(connection)
        there = database.execute(
            connection, "SELECT 1 FROM pg_roles WHERE rolname = %(login)s", {"login": LOGIN}
        )
        verb = "ALTER" if there else "CREATE"
        # Both are of fixed letters: the name, and a password of hexadecimal digits.
        database.execute(connection, f"{verb} ROLE {LOGIN} LOGIN PASSWORD '{password}'")
        rights.add_member(connection, rights.GATEWAY, LOGIN)
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{LOGIN}:{password}@{host}")), MasterKeys([key])


def _secret(path: Path) -> str:
    try:
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return path.read_text("ascii").strip()
    with os.fdopen(made, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    return path.read_text("ascii")
