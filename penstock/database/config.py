"""What comes from the environment: the address of the database and the name of the schema."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from urllib.parse import quote

from penstock.database import address
from penstock.errors import DEFAULT_SCHEMA, ConfigurationError

URL_VARIABLE = "PENSTOCK_DATABASE_URL"
SCHEMA_VARIABLE = "PENSTOCK_SCHEMA"
PARTS = ("DB_TYPE", "DB_HOST", "DB_PORT", "DB_NAME", "DB_USER", "DB_PASSWORD")

_DIALECTS = {
    "postgres": "postgres",
    "postgresql": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
}
#: The kind of address of a log in memory (penstock.testing); no environment names one.
_TESTING = "testing"
#: Where addresses stand that are not in the environment, by what they lead to.
_entries: dict[tuple[str, ...], str] = {}
_SCHEMES = {"postgres": "postgresql", "mysql": "mysql"}
_DEFAULT_PORTS = {"postgres": 5432, "mysql": 3306}
_HIGHEST_PORT = 65_535
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_RESERVED_SCHEMAS = frozenset({"public", "information_schema"})


def is_configured(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment names a database at all."""
    environ = os.environ if environ is None else environ
    return any(environ.get(name) for name in (URL_VARIABLE, *PARTS))


def database_url(environ: Mapping[str, str] | None = None) -> str:
    """The URL of the database, from PENSTOCK_DATABASE_URL or else from the DB_* parts."""
    environ = os.environ if environ is None else environ
    url = environ.get(URL_VARIABLE, "").strip()
    if url:
        dialect_of_url(url)
        return url
    if is_configured(environ):
        return _from_parts(environ)
    raise ConfigurationError(
        "no database is configured",
        hint=f"set {URL_VARIABLE}, for example postgresql://user:password@host:5432/name"
        f" or mysql://user:password@host:3306/name, or {', '.join(PARTS)}",
    )


def dialect_of_url(url: str) -> str:
    """'postgres', 'mysql' or 'memory'; a string such as ``host=... dbname=...`` is libpq's."""
    scheme, found, _ = url.partition("://")
    if scheme == _TESTING:
        return "memory"
    if not found:
        if re.match(r"\s*\w+\s*=", url):
            return "postgres"
        raise ConfigurationError(
            "the address of the database is not a URL", hint="write postgresql://user@host/name"
        )
    dialect = _DIALECTS.get(scheme.partition("+")[0].lower())
    if dialect is None:
        raise ConfigurationError(
            "the type of the database in the address is not known",
            hint="use postgresql://, mysql:// or mariadb://",
        )
    return dialect


def stands_in(url: str, entry: str) -> None:
    """Remember where an address is written, so that errors say what has to be corrected."""
    _entries[address.identity(url)] = entry


def entry_of(url: str) -> str:
    """Where an address is written, as far as it is known."""
    return _entries.get(address.identity(url), URL_VARIABLE)


def redact(url: str) -> str:
    """Host, port and database of an address, which may be shown; any other text as it is."""
    return address.shown(url)


def schema_name(environ: Mapping[str, str] | None = None) -> str:
    """The database schema that holds Penstock: PENSTOCK_SCHEMA, or 'penstock'."""
    environ = os.environ if environ is None else environ
    return validate_schema(environ.get(SCHEMA_VARIABLE) or DEFAULT_SCHEMA)


@cache
def validate_schema(name: str) -> str:
    """The name itself when it can be a schema of its own, else ConfigurationError."""
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_") or name in _RESERVED_SCHEMAS:
        raise ConfigurationError(
            f"{name[:80]!r} cannot be the name of Penstock's schema",
            hint="use a schema of its own: 1 to 31 of a-z, 0-9 and _, no digit first, not pg_...",
        )
    return name


def _from_parts(environ: Mapping[str, str]) -> str:
    kind = environ.get("DB_TYPE") or "postgres"
    dialect = _DIALECTS.get(kind.strip().lower())
    if dialect is None:
        raise ConfigurationError(
            f"DB_TYPE {kind!r} is not known", hint="use postgres, mysql or mariadb"
        )
    name = environ.get("DB_NAME")
    if not name:
        raise ConfigurationError(
            "DB_NAME is not set", hint=f"name the database, or set {URL_VARIABLE} instead"
        )
    port = _port(environ.get("DB_PORT"), _DEFAULT_PORTS[dialect])
    return f"{_SCHEMES[dialect]}://{_login(environ)}{_place(environ, port)}/{quote(name, safe='')}"


def _login(environ: Mapping[str, str]) -> str:
    user, password = environ.get("DB_USER"), environ.get("DB_PASSWORD")
    if password and not user:
        raise ConfigurationError("DB_PASSWORD is set without DB_USER", hint="set DB_USER as well")
    if not user:
        return ""
    secret = f":{quote(password, safe='')}" if password else ""
    return f"{quote(user, safe='')}{secret}@"


def _place(environ: Mapping[str, str], port: int) -> str:
    host = environ.get("DB_HOST") or "localhost"
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"  # an IPv6 address
    if "/" in host:
        host = quote(host, safe="")  # a folder with a Unix socket
    return f"{host}:{port}"


def _port(text: str | None, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _HIGHEST_PORT):
        raise ConfigurationError(
            f"DB_PORT is {text[:40]!r}",
            hint=f"it has to be a whole number from 1 to {_HIGHEST_PORT}",
        )
    return int(text)
