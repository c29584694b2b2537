"""What an address of a database says, and how much of it may be shown.

Only the host, the port and the name of the database ever appear in an error, in a log or on a page.
User, password and options do not.  When an address is malformed, it is not certain which part is
the password, so nothing of it is shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from penstock.errors import ConfigurationError

#: Shown in place of an address that cannot be read, or of a part that is not shown.
HIDDEN = "***"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
_HOST = r"(?:\[[0-9A-Za-z:.%]*\]|[\w.%~-]*)(?::[0-9]{0,5})?"
_PLACE = re.compile(rf"({_HOST}(?:,{_HOST})*)(/[^?#]*)?(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_PAIR = re.compile(r"(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s']*)")
_SHOWN = frozenset({"host", "hostaddr", "port", "dbname"})
_ANYWHERE = 4
_KINDS = {
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_PORTS = {"postgresql": "5432", "mysql": "3306"}
_PORT = re.compile(r":[0-9]+$")

HINT = (
    "in user and password write %40 for @, %3A for :, %2F for /, %23 for #, %3F for ?, %25 for % "
    "and %20 for a space; the password p@ss/1 is written so: "
    "postgresql://user:p%40ss%2F1@host:5432/name"
)


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a URL, as they are written; only `place` may be shown."""

    scheme: str
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    hosts: str
    database: str
    query: str = field(repr=False)

    @property
    def place(self) -> str:
        """Host, port and database."""
        return f"{self.scheme}://{self.hosts}{self.database}"


def read(url: str) -> Address:
    """The parts of a URL; ConfigurationError when they cannot be told apart."""
    address = _read(url)
    if address is None:
        raise ConfigurationError("the address of the database cannot be read", hint=HINT)
    return address


def shown(url: str) -> str:
    """Host, port and database of a URL or of libpq's ``host=... dbname=...``; fit for logs."""
    if "://" in url:
        address = _read(url)
        return HIDDEN if address is None else address.place
    if _PAIR.match(url.lstrip()):
        said = (f"{name}={value}" for name, value in _PAIR.findall(url) if name in _SHOWN)
        return " ".join(said) or HIDDEN
    return url


def same_database(first: str, second: str) -> bool:
    """Whether two addresses lead to one installation of Penstock, whoever logs in.

    A server that has two names is not recognised.
    """
    return identity(first) == identity(second)


def identity(url: str) -> tuple[str, ...]:
    """What an address leads to: the same for all addresses of one database."""
    address = _read(url)
    if address is None:
        given = {name: value.strip("'") for name, value in _PAIR.findall(url)}
        if "://" in url or not given:
            return (url,)
        hosts, name, kind = given.get("host", ""), given.get("dbname", ""), "postgresql"
    else:
        given = dict(parse_qsl(address.query))
        hosts = given.get("host") or address.hosts
        name = given.get("dbname") or unquote(address.database.removeprefix("/"))
        kind = _KINDS.get(address.scheme.partition("+")[0].lower(), "")
    port = given.get("port") or _PORTS.get(kind, "")
    places = (host if _PORT.search(host) else f"{host}:{port}" for host in hosts.split(","))
    socket = given.get("unix_socket", "")
    # A MySQL server has one schema of Penstock's, whatever database a session begins in.
    return (kind, ",".join(places).lower(), socket, "" if kind == "mysql" else name)


def without_secrets(url: str, text: str) -> str:
    """The first line of what a driver or a server says, without parts that are not shown."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = (lines[0] if lines else "").replace(url, shown(url))
    place = shown(url)
    for secret in sorted(_secrets(url) - {""}, key=len, reverse=True):
        if secret == place or re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", place):
            continue  # this part may be shown
        if len(secret) >= _ANYWHERE:
            found = found.replace(secret, HIDDEN)
        found = re.sub(rf"(['\"]){re.escape(secret)}\1", rf"\1{HIDDEN}\1", found)
    return found


def _read(url: str) -> Address | None:
    scheme, found, rest = url.strip().partition("://")
    if not found or not _SCHEME.fullmatch(scheme) or rest.count("@") > 1:
        return None
    login, at, place = rest.rpartition("@")
    # A "/" ends the host, so one in front of the "@" is in the password, or the "@" in an option.
    parts = None if "/" in login else _PLACE.fullmatch(place)
    if parts is None:
        return None
    query = parts[3] or ""
    if query and not all("=" in pair for pair in query.split("&") if pair):
        return None
    user, colon, password = login.partition(":")
    return Address(
        scheme, user if at else None, password if colon else None, parts[1], parts[2] or "", query
    )


def _secrets(url: str) -> set[str]:
    """Every part that is not shown, as it is written in the URL and decoded."""
    if "://" not in url:
        return {value.strip("'") for name, value in _PAIR.findall(url) if name not in _SHOWN}
    address = _read(url)
    if address is None:
        return set()
    values = [value for name, value in parse_qsl(address.query) if name not in _SHOWN]
    words = (word for value in values for word in re.split(r"[\s=,]+", value))
    written = [address.user or "", address.password or "", *values, *words]
    return {*written, *map(unquote, written)}
